"""Tests of every call of the store on a real ZooKeeper, with its results and errors."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import (
    BadVersion,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    NotEmpty,
    RequestTooLarge,
    SessionLost,
    StoreError,
    StoreUnavailable,
)
from kafka_coord.zk import connect
from kafka_coord.zk.options import Acl, Digest, ZkOptions
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Check, Create, Delete, Node, SessionState, SetData, Stat, WatchEvent, WatchType
from tests.waiting import eventually
from tests.zk.sessions import OpenStore, create_chroot

pytestmark = pytest.mark.zookeeper


# --- one znode -------------------------------------------------------------------------------------------------------


def test_a_znode_is_created_read_replaced_and_deleted(store: KazooStore) -> None:
    assert store.create("/a", b"1") == "/a"
    node = store.get("/a")
    assert (node.data, node.stat.version, node.stat.ephemeral_owner) == (b"1", 0, 0)

    written = store.set("/a", b"22", version=0)

    assert (written.version, written.data_length, written.czxid) == (1, 2, node.stat.czxid)
    assert store.exists("/a") == written
    assert store.children("/") == ("a",)
    store.delete("/a", version=1)
    assert store.exists("/a") is None


def test_sequential_and_ephemeral_znodes_are_named_and_owned(store: KazooStore) -> None:
    first = store.create("/s-", b"", sequence=True, ephemeral=True)
    second = store.create("/s-", b"", sequence=True, ephemeral=True)

    assert first == "/s-0000000000"
    assert second == "/s-0000000001"
    assert store.get(first).stat.ephemeral_owner == store.session.session_id


def test_ensure_path_creates_missing_znodes_and_leaves_existing_ones_unchanged(store: KazooStore) -> None:
    store.create("/a", b"kept")
    store.ensure_path("/a/b/c")
    store.ensure_path("/a/b/c")
    assert store.children("/a/b") == ("c",)
    assert store.get("/a").data == b"kept"


def test_refusals_are_typed_and_name_the_znode(store: KazooStore) -> None:
    store.ensure_path("/a/b")
    refused: list[tuple[type[StoreError], str, Callable[[], object]]] = [
        (NoNode, "/x", lambda: store.get("/x")),
        (NoNode, "/x", lambda: store.children("/x")),
        (NoNode, "/x", lambda: store.set("/x", b"")),
        (NoNode, "/x", lambda: store.delete("/x")),
        (NoNode, "/x/y", lambda: store.create("/x/y")),
        (NodeExists, "/a", lambda: store.create("/a")),
        (NotEmpty, "/a", lambda: store.delete("/a")),
        (BadVersion, "/a", lambda: store.set("/a", b"", version=7)),
        (BadVersion, "/a/b", lambda: store.delete("/a/b", version=7)),
    ]
    for error, path, call in refused:
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        assert caught.value.path == path
        assert path in str(caught.value)


def test_an_ephemeral_znode_cannot_have_children(store: KazooStore) -> None:
    store.create("/e", ephemeral=True)
    with pytest.raises(StoreError, match="ephemeral"):
        store.create("/e/child")


# --- chroot ----------------------------------------------------------------------------------------------------------


def test_a_missing_chroot_causes_an_error_that_names_it(open_store: OpenStore, zk_hosts: str) -> None:
    with pytest.raises(NoNode, match=r"no/such does not exist"):
        open_store(f"{zk_hosts}/no/such")

    chroot = create_chroot(zk_hosts, "/no/such")
    open_store(chroot).create("/inside")

    assert open_store().children("/no/such") == ("inside",)
    assert open_store(chroot).children("/") == ("inside",)


# --- multi -----------------------------------------------------------------------------------------------------------


def test_a_multi_executes_all_operations_and_returns_their_results(store: KazooStore) -> None:
    store.create("/old")
    results = store.multi(
        [Check("/old"), Create("/n", b"1"), Create("/q-", sequence=True), SetData("/n", b"2", 0), Delete("/old")]
    )
    checked, made, queued, written, deleted = results
    assert (checked, made, queued, deleted) == (None, "/n", "/q-0000000002", None)
    assert isinstance(written, Stat)
    assert written.version == 1
    assert store.children("/") == ("n", "q-0000000002")


def test_an_empty_multi_returns_no_results(store: KazooStore) -> None:
    assert store.multi([]) == ()


@pytest.mark.parametrize(
    ("at_fault", "cause"),
    [
        (Check("/a", 5), BadVersion),
        (Check("/missing"), NoNode),
        (Create("/a"), NodeExists),
        (SetData("/a", b"", 9), BadVersion),
        (Delete("/missing"), NoNode),
        (Delete("/full"), NotEmpty),
    ],
)
def test_the_error_of_a_failed_multi_names_the_operation_and_nothing_is_changed(
    store: KazooStore, at_fault: Check | Create | SetData | Delete, cause: type[StoreError]
) -> None:
    store.create("/a")
    store.ensure_path("/full/child")
    with pytest.raises(MultiFailed, match="changed nothing") as caught:
        store.multi([Check("/a", 0), Create("/new"), at_fault, SetData("/a", b"later"), Create("/a")])
    assert caught.value.index == 2
    assert type(caught.value.cause) is cause
    assert store.exists("/new") is None
    assert store.get("/a").data == b""


# --- too large -------------------------------------------------------------------------------------------------------


def test_a_request_that_is_too_large_for_any_server_is_refused_before_it_is_sent(store: KazooStore) -> None:
    store.create("/a")
    too_much = b"x" * 1_048_576
    session = store.session.session_id
    for call in (
        lambda: store.create("/b", too_much),
        lambda: store.set("/a", too_much),
        lambda: store.multi([SetData("/a", too_much[:600_000]), SetData("/a", too_much[:600_000])]),
    ):
        with pytest.raises(RequestTooLarge, match=r"jute\.maxbuffer"):
            call()
    assert store.session.state is SessionState.CONNECTED
    assert store.session.session_id == session


def test_the_server_accepts_the_largest_request_that_the_client_allows(store: KazooStore) -> None:
    """The limit is exact: the server accepts a request of this size, and the client refuses one byte more."""
    store.create("/a")
    overhead = 1_048_575 - largest_accepted(store, "/a")
    assert 0 < overhead < 100
    store.set("/a", b"x" * (1_048_575 - overhead))
    assert store.get("/a").stat.data_length == 1_048_575 - overhead


def largest_accepted(store: KazooStore, path: str) -> int:
    low, high = 1_000_000, 1_048_576
    while high - low > 1:
        middle = (low + high) // 2
        try:
            store.set(path, b"x" * middle)
        except RequestTooLarge:
            high = middle
        else:
            low = middle
    return low


def test_a_request_that_breaks_the_connection_twice_counts_as_too_large(
    zookeeper_server_factory: Callable[..., ZooKeeperServer], open_store: OpenStore
) -> None:
    server = zookeeper_server_factory(
        settings=ZooKeeperSettings(tick_ms=200, jvm_properties={"jute.maxbuffer": "200000"})
    )
    store = open_store(server.connect_string)
    store.create("/a")

    with pytest.raises(StoreUnavailable, match=r"check the servers' jute\.maxbuffer"):
        store.set("/a", b"x" * 300_000)
    with pytest.raises(RequestTooLarge, match="broke twice"):
        store.set("/a", b"x" * 300_000)

    store.set("/a", b"x" * 150_000)
    assert store.get("/a").stat.data_length == 150_000


# --- ACLs ------------------------------------------------------------------------------------------------------------


def test_requests_that_an_acl_forbids_raise_no_auth_and_others_succeed(open_store: OpenStore) -> None:
    owner = open_store(options=ZkOptions(digest=Digest("owner", "secret"), acl=Acl.CREATOR_ONLY))
    readable = open_store(options=ZkOptions(digest=Digest("owner", "secret"), acl=Acl.CREATOR_WORLD_READ))
    stranger = open_store()
    owner.create("/private", b"1")
    readable.create("/public", b"2")

    with pytest.raises(NoAuth, match="/private"):
        stranger.get("/private")
    with pytest.raises(NoAuth):
        stranger.set("/public", b"3")
    with pytest.raises(MultiFailed) as caught:
        stranger.multi([Check("/public"), SetData("/public", b"3")])
    assert isinstance(caught.value.cause, NoAuth)
    assert stranger.get("/public").data == b"2"
    assert readable.get("/private").data == b"1"


# --- opening and closing ---------------------------------------------------------------------------------------------


def test_the_error_for_an_unreachable_server_has_its_address_the_time_and_what_to_check() -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1 .*within 0\.5 s: check that it is running"):
        connect("127.0.0.1:1/kafka", connect_timeout_s=0.5)


def test_close_ends_the_session_at_once_and_may_be_called_again(open_store: OpenStore) -> None:
    closing, watching = open_store(), open_store()
    closing.create("/e", ephemeral=True)

    closing.close()
    closing.close()

    assert watching.exists("/e") is None
    assert closing.session.state is SessionState.CLOSED
    assert closing.session.lease_deadline() == 0.0
    with pytest.raises(SessionLost, match="closed"):
        closing.get("/")


def test_the_error_in_a_forked_child_says_to_open_a_new_session(store: KazooStore) -> None:
    context = multiprocessing.get_context("fork")
    told: multiprocessing.Queue[str] = context.Queue()

    def in_child() -> None:
        try:
            store.get("/")
        except StoreUnavailable as error:
            told.put(str(error))
        store.close()  # this must not end the parent's session
        told.close()
        told.join_thread()
        os._exit(0)

    child = context.Process(target=in_child)
    child.start()
    sentence = told.get(timeout=20)
    child.join(20)
    told.close()
    told.join_thread()

    assert "open a new session after fork()" in sentence
    store.sync()
    assert isinstance(store.get("/"), Node)


# --- watchers --------------------------------------------------------------------------------------------------------


def test_a_watcher_set_several_times_is_called_once_and_also_when_the_connection_breaks(
    zookeeper_server_factory: Callable[..., ZooKeeperServer], open_store: OpenStore
) -> None:
    server = zookeeper_server_factory()
    store = open_store(server.connect_string)
    events: list[WatchEvent] = []
    for _ in range(3):
        store.exists_many(["/a", "/b"], events.append)

    store.create("/a")
    eventually(lambda: events)
    store.sync()
    assert events == [WatchEvent(WatchType.CREATED, "/a")]
    server.kill()

    eventually(lambda: len(events) == 2)
    assert events[1] == WatchEvent(WatchType.CONNECTION, "/b")
