"""``kafka-coord bench rebalance``: the cost of a rebalance to real members of a real group."""
