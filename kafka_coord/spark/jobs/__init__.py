"""The batch job ``history``, which analyses coordinator decisions. The sample job is in :mod:`kafka_coord.dev.jobs`."""
