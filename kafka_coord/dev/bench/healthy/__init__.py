"""``kafka-coord bench healthy``: lets every kind of member work as it should, and counts findings and warnings."""
