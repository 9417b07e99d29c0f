from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.monitor.audit import Report, audit
from tests.audit.scribe import Scribe, make_root
from tests.conftest import FAST_ZOOKEEPER
from tests.coordinator.harness import World

_chroots = itertools.count(1)


def next_chroot(server: ZooKeeperServer) -> str:
    """Creates a new, empty znode on ``server``."""
    return make_root(server.connect_string, f"/audited-{next(_chroots)}")


@pytest.fixture(scope="session")
def logged_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Runs a server whose log has only the writes of these tests. Each test has its own chroot."""
    with ZooKeeperServer(tmp_path_factory.mktemp("audited"), settings=FAST_ZOOKEEPER) as server:
        yield server


@pytest.fixture
def world(logged_server: ZooKeeperServer) -> Iterator[World]:
    """Runs coordinators and scripted consumers below this test's own chroot, with a topic ``flights`` of four
    partitions."""
    made = World(f"{logged_server.connect_string}{next_chroot(logged_server)}")
    made.kafka.topic("flights", 4)
    yield made
    made.close()


@pytest.fixture
def scribe(logged_server: ZooKeeperServer) -> Iterator[Scribe]:
    """Writes a group that has reached its target, with the writes of a coordinator and two consumers."""
    with Scribe(logged_server.connect_string, next_chroot(logged_server)) as made:
        made.elect(1)
        made.join("c1")
        made.join("c2")
        made.assign(1, {"c1": {"flights": "0-1"}, "c2": {"flights": "2-3"}})
        made.obey("c1", {0: 100, 1: 100})
        made.obey("c2", {2: 100, 3: 100})
        yield made


@pytest.fixture
def judged(logged_server: ZooKeeperServer, scribe: Scribe) -> Callable[[], Report]:
    """Audits the scribe's writes while the server runs."""

    def judge() -> Report:
        return audit([Path(logged_server.directory)], chroot=scribe.chroot)

    return judge
