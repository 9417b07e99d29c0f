"""What operators look at: groups, lag, channels, history, metrics, the doctor and the audit."""
