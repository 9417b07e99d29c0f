"""Spark's own Kafka connector, for the comparison: fetched once, and kept with Kafka's jars."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kafka_coord.dev.cluster.cache import cache_directory
from kafka_coord.dev.cluster.ivy import Artifact, retrieve
from kafka_coord.dev.cluster.jars import kafka_class_path, pyspark_jars_directory
from kafka_coord.errors import DevClusterError

SPARK_VERSION = "4.2.0"
_SPARK = "org.apache.spark"
_JARS = (
    Artifact(_SPARK, "spark-sql-kafka-0-10_2.13", SPARK_VERSION),
    # The connector asks for this artifact in its own version, which was never published; version 4.0.0 works too.
    Artifact(_SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
)


def own_connector() -> tuple[Path, ...]:
    """Returns the jars for ``spark.jars`` that Spark does not include. Raises :class:`DevClusterError` if they are
    missing and cannot be fetched.
    """
    home = cache_directory() / f"spark-kafka-{SPARK_VERSION}"
    jars = tuple(home / artifact.file_name for artifact in _JARS)
    if not all(jar.is_file() for jar in jars):
        _fetch(home)
    clients = next(jar for jar in kafka_class_path() if jar.name.startswith("kafka-clients-"))
    return (*jars, clients)


def _fetch(home: Path) -> None:
    ivy = next(pyspark_jars_directory().glob("ivy-*.jar"), None)
    if ivy is None:
        raise DevClusterError(f"{pyspark_jars_directory()} has no ivy, which fetches Spark's Kafka connector")
    try:
        home.mkdir(parents=True, exist_ok=True)
        # beside the destination, because a rename is atomic only within a file system
        with tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=home.parent, ignore_cleanup_errors=True) as work:
            fetched = Path(work, "jars")
            retrieve(_JARS, fetched, ivy=ivy, work=Path(work))
            for jar in fetched.glob("*.jar"):
                jar.replace(home / jar.name)
    except OSError as error:
        raise DevClusterError(f"Spark's Kafka connector cannot be stored in {home}: {error}") from error
