"""The integration with Spark: a structured-streaming query as a member of a group, exactly-once sinks, and a batch job.

``spark.dataSource.register(KafkaCoordSource)`` registers ``format("kafka_coord")`` with a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_coord.spark.session import register
    from kafka_coord.spark.source import KafkaCoordSource

__all__ = ["KafkaCoordSource", "register"]


def __getattr__(name: str) -> Any:  # import Spark only if the caller needs it
    if name == "KafkaCoordSource":
        from kafka_coord.spark.source import KafkaCoordSource

        return KafkaCoordSource
    if name == "register":
        from kafka_coord.spark.session import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
