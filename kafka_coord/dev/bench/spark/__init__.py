"""``kafka-coord bench spark``: compares this project's source and Spark's own on the same topic in the same run."""
