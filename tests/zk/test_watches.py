"""Tests of watches that survive deletion, reconnection and the end of the session, with a real ZooKeeper."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk.options import Acl, Digest, ZkOptions
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Create, Delete, Node, SessionState
from kafka_coord.zk.watches import Watches
from tests.waiting import eventually
from tests.zk.losing_replies import LosingReplies
from tests.zk.sessions import OpenStore, expire

pytestmark = pytest.mark.zookeeper


class Owner:
    """The owner of watches. It steps when it is woken, and records the events that its listeners receive."""

    def __init__(self, store: KazooStore) -> None:
        self.woken = threading.Event()
        self.watches = Watches(store, self.woken.set)
        self.heard: list[object] = []
        self.thread = threading.current_thread()

    def data(self, node: Node | None) -> None:
        assert threading.current_thread() is self.thread
        self.heard.append(node.data if node else None)

    def children(self, names: tuple[str, ...] | None) -> None:
        assert threading.current_thread() is self.thread
        self.heard.append(names)

    def hears(self, *expected: object) -> None:
        """Steps whenever it is woken, until its listeners have received exactly these events since the last call."""

        def heard() -> bool:
            if self.woken.is_set():
                self.woken.clear()
                self.watches.step()
            return self.heard[: len(expected)] == list(expected)

        try:
            eventually(heard)
        except AssertionError:
            raise AssertionError(f"heard {self.heard}, expected {list(expected)}") from None
        assert self.heard == list(expected)
        self.heard.clear()

    def settles(self) -> None:
        """Steps until all watches are armed, and asserts that there were no new events."""
        eventually(self.watches.step)
        self.woken.clear()
        assert self.heard == []


@pytest.fixture
def owner(store: KazooStore) -> Iterator[Owner]:
    owner = Owner(store)
    yield owner
    owner.watches.close()


@pytest.fixture
def other(open_store: OpenStore) -> KazooStore:
    """Another client, which changes znodes."""
    return open_store()


def test_the_first_step_reports_the_current_state_and_later_steps_only_changes(owner: Owner, other: KazooStore) -> None:
    other.multi([Create("/a", b"1"), Create("/a/x")])
    owner.watches.data("/a", owner.data)
    owner.watches.children("/a", owner.children)
    assert owner.watches.step() is True
    assert sorted(map(str, owner.heard)) == ["('x',)", "b'1'"]
    owner.heard.clear()
    owner.settles()

    other.set("/a", b"2")
    owner.hears(b"2")
    other.create("/a/y")
    owner.hears(("x", "y"))
    owner.settles()


def test_many_changes_between_two_steps_cause_one_call_with_the_last_value(owner: Owner, other: KazooStore) -> None:
    other.create("/a", b"0")
    owner.watches.data("/a", owner.data)
    owner.watches.step()
    owner.heard.clear()

    for n in range(1, 20):
        other.set("/a", str(n).encode())

    owner.hears(b"19")
    owner.settles()


def test_a_znode_that_was_created_and_deleted_between_two_steps_is_reported_as_missing(
    owner: Owner, other: KazooStore
) -> None:
    """A listener that read the znode in between must learn about its deletion."""
    owner.watches.data("/a", owner.data)
    owner.watches.step()
    assert owner.heard == [None]
    owner.heard.clear()

    other.create("/a", b"1")
    other.delete("/a")

    owner.hears(None)
    owner.settles()


def test_a_znode_that_is_deleted_and_recreated_is_still_watched(owner: Owner, other: KazooStore) -> None:
    other.multi([Create("/a", b"1"), Create("/a/x")])
    owner.watches.data("/a", owner.data)
    owner.watches.step()
    owner.hears(b"1")
    for round_ in (b"2", b"3"):
        other.multi([Delete("/a/x"), Delete("/a")])
        owner.hears(None)
        other.multi([Create("/a", round_), Create("/a/x")])
        owner.hears(round_)
        other.set("/a", b"more")
        owner.hears(b"more")


def test_children_are_watched_before_their_parent_exists_and_after_it_is_recreated(
    owner: Owner, other: KazooStore
) -> None:
    owner.watches.children("/p", owner.children)
    owner.watches.step()
    owner.hears(None)
    for _ in range(2):
        other.create("/p")
        owner.hears(())
        other.create("/p/c")
        owner.hears(("c",))
        other.multi([Delete("/p/c"), Delete("/p")])
        owner.hears(None)


def test_equal_data_or_children_of_a_recreated_znode_count_as_a_change(owner: Owner, other: KazooStore) -> None:
    other.multi([Create("/p"), Create("/p/c", b"same")])
    owner.watches.data("/p/c", owner.data)
    owner.watches.children("/p", owner.children)
    owner.watches.step()
    owner.heard.clear()

    other.multi([Delete("/p/c"), Create("/p/c", b"same")])

    eventually(owner.woken.is_set)
    eventually(lambda: owner.watches.step() and len(owner.heard) == 2)
    assert set(owner.heard) == {b"same", ("c",)}


def test_a_deletion_is_reported_once_for_each_path_even_if_the_znode_was_recreated(
    owner: Owner, other: KazooStore
) -> None:
    other.multi([Create("/a"), Create("/b"), Create("/c")])
    gone: list[str] = []
    owner.watches.gone(["/a", "/b", "/c", "/never"], gone.append)
    owner.watches.step()
    assert gone == ["/never"]

    other.set("/a", b"still there")
    other.delete("/b")
    other.multi([Delete("/c"), Create("/c")])
    eventually(lambda: owner.watches.step() and len(gone) == 3)
    other.create("/b")
    other.delete("/b")
    other.delete("/a")
    eventually(lambda: owner.watches.step() and len(gone) == 4)

    assert (gone[0], set(gone[1:3]), gone[3]) == ("/never", {"/b", "/c"}, "/a")


def test_listeners_can_add_and_drop_watches_and_the_same_step_serves_them(owner: Owner, other: KazooStore) -> None:
    other.multi([Create("/p"), Create("/p/a", b"A"), Create("/p/b", b"B")])
    known: set[str] = set()

    def children(names: tuple[str, ...] | None) -> None:
        for name in set(names or ()) - known:
            owner.watches.data(f"/p/{name}", owner.data)
        for name in known - set(names or ()):
            owner.watches.drop(f"/p/{name}")
        known.clear()
        known.update(names or ())

    owner.watches.children("/p", children)
    owner.watches.step()
    assert sorted(map(str, owner.heard)) == ["b'A'", "b'B'"]
    owner.heard.clear()

    other.delete("/p/a")
    eventually(lambda: known == {"b"} or not owner.watches.step())
    owner.heard.clear()  # depending on the order, the end of /p/a may have been reported before its watch was dropped
    other.create("/p/a", b"A2")
    owner.hears(b"A2")


def test_a_dropped_watch_is_silent(owner: Owner, other: KazooStore) -> None:
    other.create("/a")
    owner.watches.data("/a", owner.data)
    owner.watches.children("/a", owner.children)
    owner.watches.step()
    owner.heard.clear()

    owner.watches.drop("/a")
    other.set("/a", b"1")

    eventually(owner.woken.is_set)
    owner.settles()


def test_all_watches_are_armed_and_compared_again_after_a_restart_of_the_server(
    zookeeper_server_factory: Callable[..., ZooKeeperServer], open_store: OpenStore
) -> None:
    server = zookeeper_server_factory()
    store = open_store(server.connect_string, session_timeout_ms=20_000, call_timeout_s=15)
    other = open_store(server.connect_string, session_timeout_ms=20_000, call_timeout_s=15)
    other.multi([Create("/same", b"1"), Create("/changes", b"1"), Create("/p")])
    owner = Owner(store)
    for path in ("/same", "/changes"):
        owner.watches.data(path, owner.data)
    owner.watches.children("/p", owner.children)
    owner.watches.step()
    owner.heard.clear()

    server.kill()
    eventually(lambda: store.session.state is not SessionState.CONNECTED)
    assert owner.watches.step() is False
    server.start()
    other.multi([Delete("/p"), Create("/p")])
    eventually(lambda: store.session.state is SessionState.CONNECTED)

    assert not owner.watches.is_current(), "the owner knows what was true before the outage"
    owner.hears(())  # /p is a new znode; the others are unchanged
    assert owner.watches.is_current()
    other.set("/changes", b"2")
    owner.hears(b"2")
    owner.watches.close()


def test_watches_survive_the_end_of_the_session(owner: Owner, store: KazooStore, other: KazooStore) -> None:
    other.create("/a", b"1")
    owner.watches.data("/a", owner.data)
    owner.watches.step()
    owner.heard.clear()
    session_id = store.session.session_id

    expire(store)
    eventually(lambda: store.session.session_id not in {0, session_id})
    other.set("/a", b"2")

    owner.hears(b"2")
    other.set("/a", b"3")
    owner.hears(b"3")


@pytest.mark.parametrize("call", ["arm", "exists_many"])
def test_if_a_reply_is_lost_while_arming_the_next_step_arms_the_watch(store: KazooStore, call: str) -> None:
    lossy = LosingReplies(store)
    woken = threading.Event()
    watches = Watches(lossy, woken.set)  # type: ignore[arg-type]
    heard: list[object] = []
    store.create("/a", b"1")
    watches.data("/a", heard.append)
    watches.children("/missing", heard.append)

    lossy.lose_after(call)
    assert watches.step() is False
    assert watches.step() is True

    assert len(heard) == 2
    watches.close()


def test_a_listener_that_fails_is_called_again_and_does_not_affect_other_listeners(
    owner: Owner, other: KazooStore, caplog: pytest.LogCaptureFixture
) -> None:
    other.multi([Create("/bad", b"1"), Create("/good", b"1")])
    failures = [ValueError("its own fault"), ValueError("its own fault"), StoreUnavailable("read nothing")]

    def failing(node: Node | None) -> None:
        if failures:
            raise failures.pop(0)
        owner.data(node)

    owner.watches.data("/bad", failing)
    owner.watches.data("/good", owner.data)
    with caplog.at_level(logging.WARNING):
        assert owner.watches.step() is False
        assert owner.heard == [b"1"]
        assert owner.watches.step() is False
        # a lasting failure is reported once
        assert len([r for r in caplog.records if "path=/bad" in r.getMessage()]) == 1
        other.set("/bad", b"2")
        assert owner.watches.step() is False
        assert owner.watches.step() is True

    assert owner.heard == [b"1", b"2"]


def test_an_unreadable_znode_is_reported_and_other_watches_are_served(
    owner: Owner, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    private = open_store(options=ZkOptions(digest=Digest("o", "o"), acl=Acl.CREATOR_ONLY))
    private.create("/private", b"1")
    other = open_store()
    other.create("/open", b"1")

    for path in ("/private", "/open"):
        owner.watches.data(path, owner.data)
        owner.watches.children(path, owner.children)
    with caplog.at_level(logging.WARNING):
        owner.watches.step()
        owner.watches.step()

    assert sorted(map(str, owner.heard)) == ["()", "b'1'"]
    # one warning for each of the two watches
    assert len([r for r in caplog.records if "path=/private" in r.getMessage()]) == 2
    owner.heard.clear()
    other.set("/open", b"2")
    owner.hears(b"2")


def test_closed_watches_call_no_listener_and_wake_no_owner(owner: Owner, other: KazooStore) -> None:
    other.create("/a", b"1")
    owner.watches.data("/a", owner.data)
    owner.watches.step()
    owner.heard.clear()

    owner.watches.close()
    other.set("/a", b"2")

    assert owner.watches.step() is True
    assert owner.heard == []


def requests_received(server: ZooKeeperServer) -> int:
    """The number of requests that the server has received, according to the server itself."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as asking:
        asking.sendall(b"mntr")
        told = b"".join(iter(lambda: asking.recv(65_536), b"")).decode()
    found = re.search(r"^zk_packets_received\s+(\d+)$", told, re.MULTILINE)
    assert found, told
    return int(found[1])


def test_thousands_of_watches_are_armed_with_few_requests(
    owner: Owner, other: KazooStore, zookeeper: ZooKeeperServer
) -> None:
    other.create("/p")
    paths = [f"/p/{n}" for n in range(2_000)]
    for start in range(0, 2_000, 1_000):
        other.multi([Create(path) for path in paths[start : start + 1_000]])
    for path in paths:
        owner.watches.data(path, owner.data)
        owner.watches.children(path, owner.children)

    received = requests_received(zookeeper)
    assert owner.watches.step() is True
    assert requests_received(zookeeper) - received < 100, "the watches must share requests"
    assert len(owner.heard) == 4_000
