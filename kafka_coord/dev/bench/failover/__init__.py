"""``kafka-coord bench failover``: measures how long groups go without a coordinator, and what a takeover costs."""
