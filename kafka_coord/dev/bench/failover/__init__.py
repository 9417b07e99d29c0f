"""``kafka-coord bench failover``: how long many groups are without a coordinator, and what taking them over costs."""
