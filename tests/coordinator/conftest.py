from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from kafka_coord.zk.store import Store
from tests.coordinator.harness import World


@pytest.fixture
def world(zk_hosts: str) -> Iterator[World]:
    """This test's own chroot on a real ZooKeeper, with a topic ``flights`` of four partitions."""
    made = World(zk_hosts)
    made.kafka.topic("flights", 4)
    yield made
    made.close()


@pytest.fixture
def expire() -> Callable[[Store], None]:
    """Ends a store's session on the server, like a session timeout. A second client takes it over and closes it."""

    def end(store: Store) -> None:
        client: Any = store._client  # type: ignore[attr-defined]
        twin = KazooClient(
            client.hosts if isinstance(client.hosts, str) else ",".join(f"{h}:{p}" for h, p in client.hosts)
        )
        twin._session_id, twin._session_passwd = client._session_id, client._session_passwd
        twin.start(timeout=15)
        twin.stop()
        twin.close()

    return end
