"""What Spark jobs are made of, and the job ``history``.

``streaming`` runs a query that writes a group's records into a table (:mod:`~kafka_coord.spark.jobs.streaming`);
``history`` is a batch over what coordinators decided (:mod:`~kafka_coord.spark.jobs.history`).
"""
