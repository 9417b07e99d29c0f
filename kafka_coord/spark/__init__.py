"""The integration with Spark: a structured-streaming query as a member of a group, exactly-once sinks, and a batch job.

``spark.dataSource.register(KafkaCoordSource)`` registers ``format("kafka_coord")`` with a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_coord.spark.source import KafkaCoordSource

__all__ = ["KafkaCoordSource", "register"]


def register(spark: Any) -> None:
    """Registers ``format("kafka_coord")`` with the Spark session. Raises :class:`~kafka_coord.errors.SettingsError` if
    pyspark, pandas or pyarrow is missing or its version is not supported.
    """
    from kafka_coord.spark.session import require_versions

    require_versions()
    from kafka_coord.spark.source import KafkaCoordSource

    spark.dataSource.register(KafkaCoordSource)


def __getattr__(name: str) -> Any:  # import Spark only if the caller needs it
    if name == "KafkaCoordSource":
        from kafka_coord.spark.source import KafkaCoordSource

        return KafkaCoordSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
