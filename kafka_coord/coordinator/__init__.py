"""The service that runs beside each broker: election, listeners, and decisions about groups."""
