"""This project as a client of Kafka: connection and security, metadata, offsets, the coordinators of groups, and the
reader of a log."""
