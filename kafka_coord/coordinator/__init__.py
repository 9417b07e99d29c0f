"""The service beside each broker: election, listeners, and the decisions about groups."""
