"""Operator tools: groups, lag, channels, history, metrics, the doctor and the audit."""
