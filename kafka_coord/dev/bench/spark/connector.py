"""Spark's own Kafka connector, for the comparison. It is fetched once into the cache."""

from __future__ import annotations

from pathlib import Path

from kafka_coord.dev.cluster.jars import KAFKA, Artifact, Release, class_path

SPARK_VERSION = "4.2.0"
_SPARK = "org.apache.spark"
_CONNECTOR = Release(
    f"Spark's Kafka connector {SPARK_VERSION}",
    (
        Artifact(_SPARK, "spark-sql-kafka-0-10_2.13", SPARK_VERSION),
        # The connector requires this artifact in its own version, which was never published. Version 4.0.0 also works.
        Artifact(_SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
    ),
)


def own_connector() -> tuple[Path, ...]:
    """Returns the jars for ``spark.jars`` that Spark does not include. Raises
    :class:`~kafka_coord.errors.DevClusterError` if they are missing and cannot be fetched.
    """
    clients = next(jar for jar in class_path(KAFKA) if jar.name.startswith("kafka-clients-"))
    return (*class_path(_CONNECTOR), clients)
