from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.spark.session import spark_session
from tests import spark_jvm
from tests.conftest import shared_brokers
from tests.end_to_end.conftest import numbered, reader, store
from tests.end_to_end.parties import coordinator

__all__ = ["numbered", "reader", "store"]


@pytest.fixture(scope="session", autouse=True)
def _class_archive(request: pytest.FixtureRequest) -> Iterator[None]:
    """Writes the archive while the first tests run without it. If this fails, Spark only starts more slowly.

    Only the long tests start enough applications: the archive costs 60 CPU seconds, and an application saves four.
    """
    if not request.config.option.long:
        yield
        return
    with subprocess.Popen([sys.executable, "-m", spark_jvm.__name__], stdin=subprocess.DEVNULL):
        yield


@pytest.fixture(scope="package")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker, which stops after the last of these tests; three would idle while the process runs other groups."""
    with shared_brokers(tmp_path_factory.mktemp("kafka-spark"), 1) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """A Spark session on this machine's two cores, with the source registered."""
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stopTimeout": "120s"}
    with spark_session("kafka_coord tests", master="local[2]", conf=conf) as session:
        session.sparkContext.setLogLevel("ERROR")
        yield session


@pytest.fixture
def elected(kafka_cluster: Any) -> Iterator[CoordinatorService]:
    """A coordinator for the brokers."""
    with coordinator(kafka_cluster.zookeeper) as service:
        yield service


def source_options(zookeeper: str, group: str, topic: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that all queries of the tests share, and those of one query."""
    return {
        "zookeeper": zookeeper,
        "group": group,
        "topics": topic,
        "startingOffsets": "earliest",
        "sessionTimeoutMs": 10_000,
        **options,
    }


@pytest.fixture
def query(spark: Any, kafka_cluster: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts queries that pass each micro-batch to a function. Stops those that a test leaves running."""
    started: list[Any] = []

    def start(
        group: str, topic: str, each: Callable[[Any, int], None], *, checkpoint: str = "1", **options: Any
    ) -> Any:
        given = source_options(kafka_cluster.zookeeper, group, topic, options)
        rows = spark.readStream.format("kafka_coord").options(**given).load()
        writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / checkpoint))
        started.append(writer.trigger(processingTime="200 milliseconds").start())
        return started[-1]

    yield start
    for one in started:
        one.stop()
