"""``kafka-coord bench sockets``: measures a coordinator of thousands of consumers that connect over sockets."""
