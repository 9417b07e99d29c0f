"""Tests of persistent watches: they report creations and deletions below a znode until the connection breaks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from kazoo.client import KazooClient

from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk import bulk, kazoo_private, layout
from kafka_coord.zk.kazoo_session import PersistentWatches
from kafka_coord.zk.options import Acl, Digest, ZkOptions
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Create, Delete, SessionState, SetData, WatchEvent, WatchType
from tests.waiting import eventually
from tests.zk.sessions import OpenStore

pytestmark = pytest.mark.zookeeper

CREATED, DELETED = WatchType.CREATED, WatchType.DELETED


def told(events: list[WatchEvent]) -> list[tuple[WatchType, str]]:
    return [(event.type, event.path) for event in events]


def test_creations_and_deletions_of_the_znode_and_its_children_are_reported_in_order(
    store: KazooStore, open_store: OpenStore
) -> None:
    events: list[WatchEvent] = []
    store.multi([Create("/p"), Create("/p/a")])
    assert store.follow("/p", events.append)

    other = open_store()
    other.multi([Create("/p/b"), Create("/p/b/below"), SetData("/p/a", b"1"), SetData("/p", b"1"), Create("/q")])
    other.multi([Delete("/p/a"), Create("/p/a"), Delete("/p/b/below")])
    other.multi([Delete("/p/b"), Delete("/p/a"), Delete("/p")])
    other.create("/p")

    expected = [(CREATED, "/p/b"), (DELETED, "/p/a"), (CREATED, "/p/a"), (DELETED, "/p/b"), (DELETED, "/p/a")]
    expected += [(DELETED, "/p"), (CREATED, "/p")]
    eventually(lambda: told(events) == expected)


def test_a_watcher_that_follows_twice_gets_each_event_once_and_none_after_unfollow(store: KazooStore) -> None:
    events: list[WatchEvent] = []
    others: list[WatchEvent] = []
    store.create("/p")
    for watcher in (events.append, events.append, others.append):
        assert store.follow("/p", watcher)
    store.create("/p/a")
    eventually(lambda: told(others) == [(CREATED, "/p/a")])
    assert events == others

    store.unfollow("/p", events.append)
    store.delete("/p/a")
    eventually(lambda: told(others)[1:] == [(DELETED, "/p/a")])
    assert len(events) == 1


def test_one_shot_watches_fire_in_addition_to_persistent_ones(store: KazooStore) -> None:
    following: list[WatchEvent] = []
    watching: list[WatchEvent] = []
    store.create("/p")
    assert store.follow("/p", following.append)
    store.exists("/p/a", watching.append)
    store.children("/p", watching.append)

    store.create("/p/a")
    store.create("/p/b")

    eventually(lambda: told(following) == [(CREATED, "/p/a"), (CREATED, "/p/b")])
    assert told(watching) == [(CREATED, "/p/a"), (WatchType.CHILD, "/p")]


def test_a_broken_connection_is_reported_and_ends_a_persistent_watch(
    zookeeper_server_factory: Callable[..., ZooKeeperServer], open_store: OpenStore
) -> None:
    store = open_store(zookeeper_server_factory().connect_string)
    events: list[WatchEvent] = []
    store.create("/p")
    assert store.follow("/p", events.append)

    kazoo_private.break_connection(store._client)
    eventually(lambda: told(events) == [(WatchType.CONNECTION, "/p")])
    eventually(lambda: store.session.state is SessionState.CONNECTED)
    store.create("/p/unseen")
    assert store.follow("/p", events.append)
    store.create("/p/seen")

    eventually(lambda: told(events)[1:] == [(CREATED, "/p/seen")])


def test_paths_of_events_are_relative_to_the_chroot(store: KazooStore, zk_hosts: str, open_store: OpenStore) -> None:
    store.create("/deep")
    deep = open_store(f"{zk_hosts}/deep")
    events: list[WatchEvent] = []
    assert deep.follow("/", events.append)
    store.multi([Create("/beside"), Create("/deep/p")])
    eventually(lambda: told(events) == [(CREATED, "/p")])


def test_a_server_that_does_not_know_the_request_gets_it_once(
    store: KazooStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test uses a request type that no server knows, as type 106 is unknown to ZooKeeper 3.4 and 3.5."""
    monkeypatch.setattr(bulk.AddWatch, "type", 2_222)
    sent = []
    call = kazoo_private.call
    monkeypatch.setattr(kazoo_private, "call", lambda client, request: sent.append(1) or call(client, request))
    events: list[WatchEvent] = []

    assert [store.follow("/p", events.append) for _ in range(3)] == [False] * 3

    assert len(sent) == 1
    with suppress(StoreUnavailable):  # after the refusal, the server closes the connection
        store.ensure_path("/p")
    store.ensure_path("/p/a")
    assert all(event.type is WatchType.CONNECTION for event in events)


def test_one_shot_watches_replace_persistent_ones_on_a_server_that_refuses_them(
    zookeeper_server_factory: Callable[..., ZooKeeperServer], open_store: OpenStore
) -> None:
    """``WatchManagerOptimized``, for servers with very many watches, refuses the request as if it were unreadable."""
    manager = "org.apache.zookeeper.server.watch.WatchManagerOptimized"
    settings = ZooKeeperSettings(jvm_properties={"zookeeper.watchManagerName": manager})
    store = open_store(zookeeper_server_factory(settings=settings).connect_string)
    assert isinstance(ConsumerChannel(store, "g", "c").register(b"{}"), Registration)
    channel = ConsumerChannel(store, "g", "c")
    heard: list[WatchEvent] = []

    assert not store.follow("/p", heard.append)
    assert channel.outstanding(heard.append) == ((), ())
    store.create(layout.command("g", "c", "stop-0000000001"))

    eventually(lambda: told(heard) == [(WatchType.CHILD, layout.channel("g", "c"))])


def test_a_server_that_closes_the_connection_at_the_request_gets_it_a_limited_number_of_times(
    store: KazooStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialize = bulk.AddWatch.serialize

    def hung_up_on(request: bulk.AddWatch) -> bytes:
        kazoo_private.break_connection(store._client)
        return serialize(request)

    monkeypatch.setattr(bulk.AddWatch, "serialize", hung_up_on)
    events: list[WatchEvent] = []
    for _ in range(3):
        eventually(lambda: store.session.state is SessionState.CONNECTED)
        with pytest.raises(StoreUnavailable):
            store.follow("/p", events.append)
    assert not store.follow("/p", events.append)


def test_after_closed_connections_the_request_is_sent_once_in_each_later_session() -> None:
    following = PersistentWatches(KazooClient(), str)
    for _ in range(3):
        assert following.may_be_asked_for(session_id=1)
        following.unanswered(session_id=1)
    assert not following.may_be_asked_for(session_id=1)

    assert following.may_be_asked_for(session_id=2)
    following.unanswered(session_id=2)
    assert not following.may_be_asked_for(session_id=2)

    assert following.may_be_asked_for(session_id=3)
    following.accepted()
    following.unanswered(session_id=3)
    assert following.may_be_asked_for(session_id=3)


def test_no_persistent_watch_is_set_with_a_kazoo_whose_events_are_inaccessible(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kazoo_private, "on_watch_events", lambda _client, _tell: False)
    events: list[WatchEvent] = []
    assert not open_store().follow("/p", events.append)
    assert not open_store(options=ZkOptions(multi_read=False)).follow("/p", events.append)


def test_events_below_an_unreadable_znode_are_not_reported(open_store: OpenStore) -> None:
    owner = open_store(options=ZkOptions(digest=Digest("o", "o"), acl=Acl.CREATOR_ONLY))
    owner.create("/private")
    stranger = open_store()
    events: list[WatchEvent] = []
    stranger.follow("/private", events.append)
    owner.create("/private/secret")
    stranger.sync()
    assert not [event for event in events if event.path != "/private"]
