"""Runs the examples of docs/spark.md in order. Only addresses, names and paths are replaced."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.spark.sinks import read_table
from tests.waiting import eventually

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"
GOOD, BAD = 40, 3


pytestmark = pytest.mark.usefixtures("elected")


class Examples:
    """The code blocks of the guide. A block can use names that earlier blocks defined."""

    def __init__(self, replaced: dict[str, str]) -> None:
        self._blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
        self._replaced = replaced
        self.names: dict[str, Any] = {}
        self.ran = 0

    def run(self, containing: str) -> None:
        (block,) = [block for block in self._blocks if containing in block]
        for written, meant in self._replaced.items():
            block = block.replace(written, meant)
        self.ran += 1
        exec(compile(block, str(GUIDE), "exec"), self.names)  # noqa: S102  what a reader would type

    def all_ran(self) -> bool:
        return self.ran == len(self._blocks)


def produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for n in range(GOOD):
        flight = {"carrier": "UA", "origin": "EWR", "delay": n / 2}
        producer.produce(topic, json.dumps(flight).encode(), partition=n % 2)
    for _ in range(BAD):
        producer.produce(topic, b"no flight", partition=0)
    assert producer.flush(90) == 0


def rows_in(directory: Path) -> int:
    """Counts the rows in complete files, of which there may be none yet."""
    return sum(pq.read_metadata(file).num_rows for file in directory.glob("*.parquet"))


@pytest.mark.timeout(480)  # three queries start; on a slow machine, each takes a minute
def test_the_examples_of_the_guide_work_as_described(spark, kafka_cluster, make_topic, tmp_path):
    topic = make_topic(partitions=2)
    produce(kafka_cluster.bootstrap_servers, topic)
    settings = tmp_path / "kafka-coord.toml"
    settings.write_text('[zookeeper]\ndigest = "delays:secret"\n')
    examples = Examples(
        {
            "zk1:2181,zk2:2181/kafka": kafka_cluster.zookeeper,
            "zk1:2182,zk2:2182/kafka": kafka_cluster.zookeeper,
            "/etc/kafka-coord.toml": str(settings),
            "zk1:2181/kafka": kafka_cluster.zookeeper,
            '"topics", "flights"': f'"topics", "{topic}"',
            '"group", "delays"': '"group", "documented"',
            'group="delays"': 'group="documented"',
            "0.0.0.0:9405": f"127.0.0.1:{free_port()}",
            "/data/": f"{tmp_path}/",
        }
    )
    names = examples.names

    examples.run("SparkSession.builder")
    assert names["spark"] is spark or names["spark"].version == spark.version
    examples.run("secured")
    assert names["secured"].columns == names["flights"].columns
    examples.run("keep_aside")

    watching = threading.Thread(target=examples.run, args=["awaitTermination"])
    watching.start()
    good = tmp_path / "flights"
    try:
        eventually(lambda: rows_in(good) == GOOD, within_s=200, every_s=0.5)
    finally:
        eventually(lambda: "query" in names)
        names["query"].stop()
        watching.join(60)
    assert not watching.is_alive()
    assert spark.read.parquet(str(tmp_path / "undecodable")).count() == BAD
    assert spark.read.parquet(str(good)).agg({"delay": "max"}).collect()[0][0] == (GOOD - 1) / 2

    examples.run("ParquetTable")
    produce(kafka_cluster.bootstrap_servers, topic)
    eventually(lambda: names["table"].state().rows >= GOOD + BAD, within_s=200, every_s=0.5)
    names["query"].stop()

    produce(kafka_cluster.bootstrap_servers, topic)
    examples.run("BetweenBatches")
    assert not names["query"].isActive
    held = read_table(spark, tmp_path / "delays")
    assert held.count() == held.select("topic", "partition", "offset").distinct().count()
    assert examples.all_ran(), "this test must run every example of the guide"
