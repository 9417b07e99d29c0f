"""Pytest fixtures. To use them, set ``pytest_plugins = ["kafka_coord.testing.fixtures"]`` in a ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.testing.fake_cluster import FakeCluster
from kafka_coord.testing.real_cluster import RealCluster


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    """Yields a fake cluster for one test. Afterwards, closes the consumers that the test created with
    ``consumer()``."""
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Starts a real ZooKeeper, one Kafka broker and a coordinator on loopback, for all tests of the session. Give each
    test its own topics and groups."""
    try:
        from kafka_coord.dev.cluster.cluster import DevCluster
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{error}: the fixture real_cluster needs pip install . ./kafka_coord/dev (in a clone)"
        ) from error

    with (
        DevCluster(tmp_path_factory.mktemp("kafka-coord"), brokers=1, coordinators=True) as servers,
        RealCluster(servers.zookeeper, servers.bootstrap_servers) as cluster,
    ):
        yield cluster
