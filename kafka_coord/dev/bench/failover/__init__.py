"""``kafka-coord bench failover``: how long many groups have no coordinator, and the cost of taking them over."""
