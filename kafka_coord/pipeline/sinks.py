"""The old name of :mod:`kafka_coord.spark.sinks`."""

from kafka_coord.spark.sinks import *  # noqa: F403
