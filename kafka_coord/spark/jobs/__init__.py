"""The job ``history``: a batch over what coordinators decided. The sample job is in :mod:`kafka_coord.dev.jobs`."""
