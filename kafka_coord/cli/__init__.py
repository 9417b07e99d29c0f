"""``kafka-coord``: click commands, which print results and exit."""
