"""``kafka-coord``: click commands that print and exit. They decide nothing."""
