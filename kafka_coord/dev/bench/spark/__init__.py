"""``kafka-coord bench spark``: this project's source beside Spark's own, over the same topic in the same run."""
