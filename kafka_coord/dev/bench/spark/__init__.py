"""``kafka-coord bench spark``: this project's source and Spark's own, on the same topic in the same run."""
