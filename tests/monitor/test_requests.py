"""Tests of requests without a coordinator while ZooKeeper is unreachable."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import Timeout
from kafka_coord.groups.requests import await_answer, submit
from kafka_coord.model import Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import connect, layout

pytestmark = pytest.mark.zookeeper


def test_the_wait_for_an_answer_continues_after_a_zookeeper_outage(
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory()
    store, other = connect(server.connect_string), connect(server.connect_string)
    told: list[str] = []
    try:
        asked = submit(store, Request(RequestType.LOOK, group="delays"))
        store._calls._timeout_s = 0.3
        server.pause()
        with pytest.raises(Timeout, match=f"within 1 s, and none from ZooKeeper .*; {asked} stays queued"):
            await_answer(store, asked, 1.0, told.append)
        assert told == [], "without ZooKeeper, nothing is known about the election"

        back = threading.Timer(1.0, server.resume)
        back.start()
        path = layout.request(asked)

        def answer() -> None:
            back.join()
            done = Request(RequestType.LOOK, group="delays", result="done", message="looked")
            other.set(path, fields.dump(done.to_json()))

        answering = threading.Thread(target=answer, name="answering")
        answering.start()
        assert await_answer(store, asked, 60.0, told.append).message == "looked"
        answering.join()
    finally:
        server.resume()
        store.close()
        other.close()
