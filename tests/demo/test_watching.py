"""The watcher of the demo while ZooKeeper is unavailable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.dev.demo.watching import Watcher
from kafka_coord.errors import NotFound, StoreUnavailable
from kafka_coord.zk import connect


def test_the_watcher_waits_until_zookeeper_is_back_and_then_answers(
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory()
    with contextlib.closing(connect(server.connect_string)) as store:
        watcher = Watcher(store, "127.0.0.1:1", "delays", "flights", lambda _: None)
        store._calls._timeout_s = 0.3  # of an open session, because a busy machine takes longer to open one
        server.pause()
        with pytest.raises(StoreUnavailable):
            store.exists("/")
        back = threading.Timer(2.0, server.resume)
        back.start()
        assert watcher.history() == ()
        with pytest.raises(NotFound):
            watcher.describe()
        back.join()
