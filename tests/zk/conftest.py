"""Stores on the shared ZooKeeper, each below the test's own chroot. All are closed when the test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.zk.session import KazooStore
from tests.zk.sessions import OpenStore, opening_stores


@pytest.fixture
def open_store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """Opens stores on ``zk_hosts`` (which is used only if no other hosts are given)."""
    with opening_stores(lambda: str(request.getfixturevalue("zk_hosts"))) as open_one:
        yield open_one


@pytest.fixture
def store(open_store: OpenStore) -> KazooStore:
    return open_store()
