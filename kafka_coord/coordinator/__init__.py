"""The service beside each broker: election, what it listens to, and the decisions about groups."""
