from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from kafka_coord.testing import FakeCluster
from kafka_coord.testing.real_cluster import RealCluster
from tests.end_to_end.parties import coordinator
from tests.waiting import eventually

_numbers = itertools.count(1)

Cluster = FakeCluster | RealCluster


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The fake, and the real servers that all tests share."""
    if request.param == "fake":
        with FakeCluster() as fake:
            yield fake
        return
    servers = request.getfixturevalue("kafka_cluster")
    with (
        coordinator(servers.zookeeper) as service,
        RealCluster(servers.zookeeper, servers.bootstrap_servers) as real,
    ):
        eventually(lambda: service.leads)
        yield real


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with two partitions."""
    name = f"contract-{next(_numbers)}"
    cluster.create_topic(name, 2)
    return name


@pytest.fixture
def fill(cluster: Cluster, topic: str) -> Callable[[int], list[bytes]]:
    """``fill(count)`` writes records to partition 0, and returns their values."""

    def fill(count: int) -> list[bytes]:
        values = [b"%d" % number for number in range(count)]
        for value in values:
            cluster.produce(topic, value, b"k")
        return values

    return fill
