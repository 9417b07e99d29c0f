"""Views for operators: groups, lag, channels, history, metrics, the doctor and the audit."""
