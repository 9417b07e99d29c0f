"""The batch job ``history``, which analyses the coordinators' decisions. The sample job is in
:mod:`kafka_coord.dev.jobs`."""
