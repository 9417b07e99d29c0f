from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import numbered, reader

__all__ = ["numbered", "reader"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session of this machine's two cores, with the source registered."""
    from pyspark.sql import SparkSession

    from kafka_coord.pipeline import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    where = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("kafka_coord tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(where / "local"))
        .config("spark.sql.warehouse.dir", str(where / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def query(spark: Any, kafka_cluster: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts queries that hand each micro-batch to a function; those a test leaves running are stopped."""
    started: list[Any] = []

    def start(
        group: str, topic: str, each: Callable[[Any, int], None], *, checkpoint: str = "1", **options: Any
    ) -> Any:
        given = {
            "zookeeper": kafka_cluster.zookeeper,
            "group": group,
            "topics": topic,
            "startingOffsets": "earliest",
            "sessionTimeoutMs": 3_000,
            **options,
        }
        rows = spark.readStream.format("kafka_coord").options(**given).load()
        writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / checkpoint))
        started.append(writer.trigger(processingTime="200 milliseconds").start())
        return started[-1]

    yield start
    for one in started:
        one.stop()
