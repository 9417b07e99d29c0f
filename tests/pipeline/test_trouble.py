"""What can go wrong around a query: real Spark, brokers and ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.zk import layout
from kafka_coord.zk.session import connect
from tests.end_to_end.parties import coordinator
from tests.pipeline.test_source import Seen
from tests.waiting import eventually


@pytest.fixture
def elected(kafka_cluster) -> Iterator[CoordinatorService]:
    with coordinator(kafka_cluster.zookeeper) as service:
        yield service


def registered(zookeeper: str, group: str) -> list[str]:
    store = connect(zookeeper)
    try:
        return sorted(store.children(layout.ids(group)))
    finally:
        store.close()


def test_a_query_that_is_stopped_leaves_its_group_at_once(kafka_cluster, elected, query, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(100)
    seen = Seen()
    running = query("spark-leaves", topic, seen, sessionTimeoutMs=60_000, consumerId="one")
    eventually(lambda: len(seen.records) >= 100, within_s=150)
    assert registered(kafka_cluster.zookeeper, "spark-leaves") == ["one"]
    running.stop()
    eventually(lambda: registered(kafka_cluster.zookeeper, "spark-leaves") == [], within_s=15)
