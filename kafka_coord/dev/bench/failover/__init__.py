"""``kafka-coord bench failover``: measures how long many groups have no coordinator, and what a takeover costs."""
