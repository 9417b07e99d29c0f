"""``kafka-coord bench failover``: measures how long many groups have no coordinator, and the cost of a takeover."""
