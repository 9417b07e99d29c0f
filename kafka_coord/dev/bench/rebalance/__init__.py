"""``kafka-coord bench rebalance``: real members of a real group, and what a rebalance costs them."""
