"""The simulator of client-assigned groups: the real coordinator and terms on a simulated partition of the log."""
