"""``kafka-coord bench sockets``: thousands of consumers without ZooKeeper, and one coordinator."""
