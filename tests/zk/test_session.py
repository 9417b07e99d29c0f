"""Tests of the store's view of its session when the server freezes, dies, returns, or ends the session."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk import SystemClock
from kafka_coord.zk.session import KazooStore, connect
from kafka_coord.zk.store import GetData, SessionState, SetData, WatchEvent
from tests.waiting import eventually
from tests.zk.sessions import OpenStore, Wire, expire

pytestmark = pytest.mark.zookeeper

ServerFactory = Callable[..., ZooKeeperServer]


def states_of(store: KazooStore) -> list[SessionState]:
    seen: list[SessionState] = []
    store.on_session(seen.append)
    return seen


def test_the_negotiated_timeout_is_known_if_it_differs_from_the_requested_one(open_store: OpenStore) -> None:
    assert open_store(session_timeout_ms=10_000).session.timeout_ms == 10_000
    assert open_store(session_timeout_ms=100).session.timeout_ms == 400  # two ticks, the server's minimum


def test_an_idle_session_stays_proven_by_its_heartbeat(open_store: OpenStore) -> None:
    store = open_store(session_timeout_ms=6_000)
    first = store.session.lease_deadline()

    eventually(lambda: store.session.lease_deadline() > first + 6.0)

    assert store.clock.monotonic() < store.session.lease_deadline() < store.clock.monotonic() + 6.0


def test_every_kind_of_call_ends_by_its_deadline_while_the_server_is_frozen(
    zookeeper_server_factory: ServerFactory, open_store: OpenStore
) -> None:
    server = zookeeper_server_factory()
    store = open_store(server.connect_string, session_timeout_ms=4_000, call_timeout_s=0.7)
    store.create("/a")
    server.pause()
    try:
        for call in (
            lambda: store.get("/a"),
            lambda: store.set("/a", b"1"),
            lambda: store.multi([SetData("/a", b"1")]),
            lambda: store.read_many([GetData("/a")] * 600),
            lambda: store.exists_many(["/a"] * 600),
            lambda: store.children_many(["/a"]),
            store.sync,
        ):
            with pytest.raises(StoreUnavailable):  # kazoo's own calls would wait until the server continues
                call()
        store.close()
    finally:
        server.resume()


def test_the_client_disconnects_from_a_frozen_server_in_time_and_resumes_the_session_later(
    zookeeper_server_factory: ServerFactory, open_store: OpenStore
) -> None:
    server = zookeeper_server_factory()
    store = open_store(server.connect_string, session_timeout_ms=6_000)
    seen = states_of(store)
    session_id = store.session.session_id
    server.pause()
    try:
        eventually(lambda: store.session.state is SessionState.SUSPENDED, within_s=6)
        since = store.session.suspended_since
        assert since is not None
        assert since <= store.clock.monotonic()
    finally:
        server.resume()

    eventually(lambda: store.session.state is SessionState.CONNECTED)

    assert store.session.session_id == session_id
    assert store.session.suspended_since is None
    assert seen[:2] == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert store.session.lease_deadline() > store.clock.monotonic()


@pytest.mark.parametrize("timeout_ms", [600, 1_500])
def test_the_client_gives_up_its_session_before_the_server_ends_it(
    zookeeper_server_factory: ServerFactory, open_store: OpenStore, timeout_ms: int
) -> None:
    server = zookeeper_server_factory()
    watching = open_store(server.connect_string)
    clock = SystemClock()
    with Wire(server.port) as wire:
        cut_off = open_store(wire.hosts, session_timeout_ms=timeout_ms)
        cut_off.create("/mine", ephemeral=True)
        gone_at: list[float] = []

        def note(_event: WatchEvent) -> None:
            gone_at.append(clock.monotonic())

        watching.exists("/mine", note)
        eventually(lambda: cut_off.session.lease_deadline() > clock.monotonic() + timeout_ms / 1000 * 0.6)
        wire.cut()
        last_deadline = cut_off.session.lease_deadline()

        eventually(lambda: gone_at)

        assert last_deadline <= gone_at[0]
        assert cut_off.session.lease_deadline() == last_deadline
        assert cut_off.session.state is not SessionState.CONNECTED or clock.monotonic() > last_deadline


def test_a_session_that_the_server_ended_is_lost_and_another_begins_automatically(open_store: OpenStore) -> None:
    store = open_store()
    seen = states_of(store)
    before = store.session.session_id
    store.create("/mine", ephemeral=True)

    expire(store)

    eventually(lambda: SessionState.LOST in seen)
    eventually(lambda: store.session.state is SessionState.CONNECTED)
    assert store.session.session_id not in {0, before}
    assert seen.index(SessionState.LOST) < len(seen) - 1 - seen[::-1].index(SessionState.CONNECTED)
    assert store.session.lease_deadline() > store.clock.monotonic()
    assert store.exists("/mine") is None


def test_nothing_is_proven_while_a_session_is_lost(open_store: OpenStore) -> None:
    store = open_store()
    proven: list[float] = []
    store.on_session(
        lambda state: proven.append(store.session.lease_deadline()) if state is SessionState.LOST else None
    )

    expire(store)

    eventually(lambda: proven)
    assert proven == [0.0]


def test_a_restarted_server_finds_the_same_session(
    zookeeper_server_factory: ServerFactory, open_store: OpenStore
) -> None:
    server = zookeeper_server_factory()
    store = open_store(server.connect_string, session_timeout_ms=20_000, call_timeout_s=15)
    session_id = store.session.session_id
    store.create("/mine", ephemeral=True)

    server.kill()
    server.start()

    assert store.get("/mine").stat.ephemeral_owner == session_id  # the call waits for the connection


def test_a_listener_that_fails_or_was_removed_does_not_affect_other_listeners(open_store: OpenStore) -> None:
    store = open_store()
    taken_off: list[SessionState] = []

    def failing(_state: SessionState) -> None:
        raise ValueError("a listener's own fault")

    store.on_session(failing)
    store.on_session(taken_off.append)()
    seen = states_of(store)

    store.close()

    assert seen == [SessionState.CLOSED]
    assert taken_off == []


def test_a_kazoo_client_that_stopped_is_started_again(open_store: OpenStore) -> None:
    """An unknown error permanently ends kazoo's connection thread."""
    store = open_store(session_timeout_ms=2_000)
    before = store.session.session_id
    store._client.stop()  # like such an error, this leaves the client CLOSED without a call to close()

    eventually(lambda: store.session.session_id not in {0, before} and store.session.state is SessionState.CONNECTED)
    assert store.children("/") == ()


def test_connect_waits_for_a_slow_name_lookup(zk_hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the lookup ends, kazoo's state is the same as after a refused connection."""
    look_up = socket.getaddrinfo

    def slowly(*arguments: Any, **more: Any) -> Any:
        time.sleep(1.0)
        return look_up(*arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    store = connect(zk_hosts)
    try:
        assert store.session.state is SessionState.CONNECTED
    finally:
        store.close()


def test_the_error_for_an_unknown_host_name_says_so():
    with pytest.raises(StoreUnavailable, match=r"cannot resolve no-such-host\.invalid"):
        connect("no-such-host.invalid:2181", connect_timeout_s=10)
