"""``kafka-coord bench rebalance``: measures what a rebalance costs real members of a real group."""
