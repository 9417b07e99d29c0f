"""The jars ZooKeeper and Kafka are made of."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from kafka_coord.errors import DevClusterError

# ZooKeeper 3.9 with what it loads at run time; all of it comes with PySpark.
_ZOOKEEPER_JARS = (
    "zookeeper-3",
    "zookeeper-jute-",
    "netty-",
    "slf4j-api-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
    "metrics-core-",
    "snappy-java-",
    "commons-io-",
    "commons-cli-",
)


def zookeeper_class_path() -> tuple[Path, ...]:
    """The jars to run ZooKeeper with. Needs PySpark installed, no network."""
    return _matching(pyspark_jars_directory(), _ZOOKEEPER_JARS)


def pyspark_jars_directory() -> Path:
    """Where PySpark keeps its jars, found without importing it. Raises :class:`DevClusterError` if it is not there."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise DevClusterError(
            "PySpark is not installed, and ZooKeeper's jars come with it; run `pip install 'kafka-coord[dev]'`"
        )
    jars = Path(spec.origin).parent / "jars"
    if not jars.is_dir():
        raise DevClusterError(
            f"PySpark has no jars in {jars}; reinstall it with `pip install --force-reinstall pyspark`"
        )
    return jars


def _matching(directory: Path, prefixes: Sequence[str]) -> tuple[Path, ...]:
    found = sorted(jar for jar in directory.glob("*.jar") if jar.name.startswith(tuple(prefixes)))
    missing = [prefix for prefix in prefixes if not any(jar.name.startswith(prefix) for jar in found)]
    if missing:
        raise DevClusterError(f"{directory} lacks the jars {', '.join(f'{prefix}*.jar' for prefix in missing)}")
    return tuple(found)
