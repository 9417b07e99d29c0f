from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias, Union

import pytest

from kafka_coord.testing import FakeCluster

if TYPE_CHECKING:  # pytest must be the first to import a plugin
    from kafka_coord.testing.fixtures import RealCluster

_numbers = itertools.count(1)

Cluster: TypeAlias = Union[FakeCluster, "RealCluster"]


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The fake, and the real one."""
    if request.param == "real":
        yield request.getfixturevalue("real_cluster")
        return
    with FakeCluster() as fake:
        yield fake


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
