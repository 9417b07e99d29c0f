"""Tests of the socket under a link: how it waits, and how it ends."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from kafka_coord.channel.frames import Decoder, Frame, encode
from kafka_coord.channel.link import SocketClient, SocketLink, _Line, ask_cluster_metadata
from kafka_coord.errors import NoAuth, StoreUnavailable
from kafka_coord.model import Member, Subscription
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import SystemClock
from tests.waiting import eventually


class Refusing(threading.Thread):
    """Claims to be the coordinator, refuses every registration, and closes the connection immediately."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(name="refusing", daemon=True)
        self._listening = listening
        self._endpoint = f"127.0.0.1:{listening.getsockname()[1]}"

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):
                    (frame,) = Decoder().feed(connection.recv(65_536))
                    connection.sendall(encode({"id": 1, **self._answer(frame)}))

    def _answer(self, frame: Frame) -> Frame:
        if frame["type"] == "cluster-metadata":
            coordinator = {"instance": 1, "epoch": 1, "endpoint": self._endpoint}
            nothing = {"instance": 1, "instances": [], "brokers": [], "protocols": {}}
            return {"type": "answer", "coordinator": coordinator, **nothing}
        return {"type": "error", "code": "not-authenticated", "message": "no user has this secret"}


def test_a_refusal_before_the_close_reaches_the_waiting_caller() -> None:
    clock = SystemClock()
    link = SocketLink(
        "delays", "c1", clock, session_timeout_ms=10_000, resume_key="mine", auto_commit=True,
        wake=lambda: None, patience_s=5.0,
    )  # fmt: skip
    value = fields.dump(Member("c1", 0, Subscription.to(["flights"]), session_timeout_ms=10_000).to_json())

    def refused() -> bool:
        try:
            link.register(value)
        except NoAuth:
            return True
        except StoreUnavailable:
            return False
        return False

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Refusing(listening).start()
        client = SocketClient([f"127.0.0.1:{listening.getsockname()[1]}"], link)
        client.start()
        try:
            assert eventually(refused)
        finally:
            link.close()
            client.close()
            listening.shutdown(socket.SHUT_RDWR)


def test_a_wait_ends_when_the_coordinator_stays_silent() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        late = threading.Timer(5.0, other.shutdown, (socket.SHUT_RDWR,))
        late.start()
        try:
            with pytest.raises(TimeoutError):
                _Line(mine).receive(0.05)
        finally:
            late.cancel()


def test_a_client_that_waits_for_a_hosts_answer_can_be_closed() -> None:
    link = SocketLink(
        "delays",
        "c1",
        SystemClock(),
        session_timeout_ms=10_000,
        resume_key="mine",
        auto_commit=True,
        wake=lambda: None,
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = SocketClient([f"127.0.0.1:{silent.getsockname()[1]}"], link)
        client.start()
        asking, _ = silent.accept()
        with asking:
            assert asking.recv(100)
            client.close(timeout_s=1.0)
            assert not [thread for thread in threading.enumerate() if thread.name == "socket-c1"]


def test_a_consumer_that_leaves_does_not_warn_that_its_connection_ends(caplog: pytest.LogCaptureFixture) -> None:
    link = SocketLink(
        "delays", "c1", SystemClock(), session_timeout_ms=10_000, resume_key="mine", auto_commit=True,
        wake=lambda: None, patience_s=0.0,
    )  # fmt: skip
    client = SocketClient(["127.0.0.1:1"], link)
    client.on_lost_connection("the coordinator closed the connection")
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    link.is_leaving = True
    client.on_lost_connection("the coordinator closed the connection")
    assert [one.levelname for one in caplog.records if one.levelname == "WARNING"] == ["WARNING"]


@pytest.mark.parametrize("abruptly", [False, True])
def test_a_close_without_an_answer_asks_whether_the_port_is_a_brokers(abruptly: bool) -> None:
    """A broker takes the first bytes of a frame's JSON for an API that it does not know, and closes the connection."""

    def close(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            if not abruptly:  # unread data resets the connection
                connection.recv(65_536)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        broker = threading.Thread(target=close, args=(listening,))
        broker.start()
        with pytest.raises(OSError, match=r"A Kafka broker does so: is this the broker's port, rather than"):
            ask_cluster_metadata(f"127.0.0.1:{listening.getsockname()[1]}")
        broker.join()
