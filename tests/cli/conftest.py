from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.cli.running import Run, run
from tests.coordinator.harness import World
from tests.monitor.written import Tree, opened


@pytest.fixture
def world(zk_hosts: str) -> Iterator[World]:
    """A chroot of this test's own with a topic ``flights`` of four partitions; instances and consumers as wanted."""
    made = World(zk_hosts)
    made.kafka.topic("flights", 4)
    yield made
    made.close()


@pytest.fixture
def tree(zk_hosts: str) -> Iterator[Tree]:
    """The same, written znode by znode, with nobody alive behind it."""
    with opened(zk_hosts) as store:
        yield Tree(store)


@pytest.fixture
def coord(zk_hosts: str) -> Run:
    """``coord("groups", "list")``: the command on this test's ZooKeeper."""
    return partial(run, zookeeper=zk_hosts)
