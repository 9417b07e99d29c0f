from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.coordinator.conftest import world
from tests.fuzzing.odd_cluster import OddCluster
from tests.fuzzing.tools import odd_cluster
from tests.monitor.written import Tree, opened

__all__ = ["tree", "world"]


@pytest.fixture
def cluster() -> Iterator[OddCluster]:
    """A cluster whose brokers answer as brokers do, and whose tree the test may spoil."""
    with odd_cluster(Random(1)) as found:
        for broker in (found.broker, found.instance):
            broker.becomes(Random(1), sane=True)
        yield found


@pytest.fixture
def tree(zk_hosts: str) -> Iterator[Tree]:
    """This test's own chroot. The test writes its znodes, and no coordinator or consumer runs."""
    with opened(zk_hosts) as store:
        yield Tree(store)
