"""The jobs that come with the package; ``kafka-coord pipeline run`` runs them.

``flights`` is a query of a group (:mod:`~kafka_coord.spark.jobs.flights`), ``history`` a batch over what a
coordinator decided (:mod:`~kafka_coord.spark.jobs.history`).
"""
