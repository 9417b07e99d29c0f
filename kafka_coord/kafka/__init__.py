"""This project as a client of Kafka: the connection to a broker with its security, the cluster's metadata, and the
reader of a log."""
