"""Tests of many reads at once, by multi-read, and one by one if a server does not support multi-reads."""

from __future__ import annotations

import pytest

from kafka_coord.errors import NoAuth
from kafka_coord.zk import bulk, kazoo_private, session
from kafka_coord.zk.options import Acl, Digest, ZkOptions
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Create, Delete, GetChildren, GetData, Node, Read, SetData, WatchEvent, WatchType
from tests.waiting import eventually
from tests.zk.sessions import OpenStore

pytestmark = pytest.mark.zookeeper

BOTH_WAYS = pytest.mark.parametrize("multi_read", [True, False], ids=["multi-read", "one by one"])


@pytest.fixture(params=[1, 1_000], ids=["at once", "one by one"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with both ways of setting watches."""
    monkeypatch.setattr(session, "_MANY_WATCHES", request.param)


@BOTH_WAYS
def test_data_children_and_missing_znodes_are_returned_in_the_order_of_the_reads(
    open_store: OpenStore, multi_read: bool
) -> None:
    store = open_store(options=ZkOptions(multi_read=multi_read))
    store.multi([Create("/p"), Create("/p/b", b"B"), Create("/p/a", b""), Create("/p/ü", "ü".encode())])

    found = store.read_many(
        [GetChildren("/p"), GetData("/p/b"), GetData("/none"), GetChildren("/none"), GetChildren("/p/a"), GetData("/")]
    )

    assert found[0] == ("a", "b", "ü")
    assert found[1] == store.get("/p/b")
    assert found[2:5] == (None, None, ())
    assert isinstance(found[5], Node)
    assert store.read_many([]) == ()


@BOTH_WAYS
def test_thousands_of_reads_are_chunked_and_all_are_answered(open_store: OpenStore, multi_read: bool) -> None:
    store = open_store(options=ZkOptions(multi_read=multi_read))
    store.create("/many")
    store.multi([Create(f"/many/{n}", str(n).encode()) for n in range(1_300)])
    reads: list[Read] = [GetData(f"/many/{n}") for n in range(1_300)]

    found = store.read_many([*reads, GetChildren("/many")])

    assert [node.data for node in found[:-1] if isinstance(node, Node)] == [str(n).encode() for n in range(1_300)]
    assert found[-1] == tuple(sorted(map(str, range(1_300))))


@BOTH_WAYS
def test_the_error_for_a_forbidden_read_names_the_znode(open_store: OpenStore, multi_read: bool) -> None:
    owner = open_store(options=ZkOptions(digest=Digest("o", "o"), acl=Acl.CREATOR_ONLY))
    owner.create("/private")
    with pytest.raises(NoAuth, match="/private"):
        open_store(options=ZkOptions(multi_read=multi_read)).read_many([GetData("/"), GetData("/private")])


def test_a_server_without_multi_read_gets_one_multi_read_and_then_single_reads(
    store: KazooStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test uses a request type that no server knows, as type 22 is unknown to ZooKeeper 3.4 and 3.5."""
    store.create("/a", b"1")
    monkeypatch.setattr(bulk.MultiRead, "type", 2_222)
    sent = []
    call = kazoo_private.call
    monkeypatch.setattr(kazoo_private, "call", lambda client, request: sent.append(1) or call(client, request))

    for _ in range(3):
        found = store.read_many([GetData("/a"), GetData("/none")])
        assert isinstance(found[0], Node)
        assert (found[0].data, found[1]) == (b"1", None)

    assert len(sent) == 1


def test_reads_work_with_a_kazoo_without_the_private_functions(
    store: KazooStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kazoo_private, "call", lambda client, request: None)
    assert store.read_many([GetChildren("/"), GetData("/none")]) == ((), None)


def test_big_values_shrink_the_next_chunk() -> None:
    asked: list[int] = []

    def ask(reads: object) -> tuple[list[None], int]:
        count = len(reads)  # type: ignore[arg-type]
        asked.append(count)
        return [None] * count, count * 100_000

    assert len(bulk.in_chunks([GetData("/x")] * 1_000, ask)) == 1_000
    assert asked[0] == bulk.FIRST_CHUNK
    assert set(asked[1:]) == {bulk.MIN_CHUNK}


def test_long_paths_shrink_the_request() -> None:
    asked: list[int] = []

    def ask(reads: object) -> tuple[list[None], int]:
        asked.append(sum(len(read.path) for read in reads))  # type: ignore[attr-defined]
        return [None] * len(reads), 1  # type: ignore[arg-type]

    bulk.in_chunks([GetData("/" + "x" * 5_000)] * 700, ask)
    assert max(asked) <= bulk.MAX_REQUEST_BYTES


@pytest.mark.usefixtures("watching")
def test_exists_many_and_children_many_return_stats_and_listings_and_arm_sets_watches(store: KazooStore) -> None:
    store.multi([Create("/p"), Create("/p/b"), Create("/p/a")])
    stats = store.exists_many(["/p", "/none"])
    listings = store.children_many(["/p", "/none", "/p/a"])

    assert [stat is not None for stat in stats] == [True, False]
    assert [listing.names if listing else None for listing in listings] == [("a", "b"), None, ()]
    assert listings[0] is not None
    assert listings[0].stat.cversion == 2

    events: list[WatchEvent] = []
    reads = [GetData("/p/b"), GetChildren("/none"), GetData("/p/a"), GetChildren("/p")]
    armed = store.arm(["/p", "/none"], ["/p/a", "/p/none"], events.append, reads)
    assert armed.listings == (listings[0], None)
    assert [stat is not None for stat in armed.stats] == [True, False]
    assert armed.answers == store.read_many(reads)
    assert armed.answers[1:] == (None, Node(b"", armed.stats[0]), ("a", "b"))
    store.multi([Create("/p/none"), Delete("/p/a")])
    eventually(
        lambda: (
            {(event.type, event.path) for event in events}
            == {(WatchType.CHILD, "/p"), (WatchType.CREATED, "/p/none"), (WatchType.DELETED, "/p/a")}
        )
    )


@pytest.mark.usefixtures("watching")
def test_a_watch_reports_each_change_once_and_no_earlier_changes(store: KazooStore, open_store: OpenStore) -> None:
    other = open_store()
    store.multi([Create("/p"), Create("/p/a"), Create("/p/gone"), Create("/end")])
    for value in (b"1", b"2"):  # another client writes these after this client's last reply
        other.set("/p/a", value)
        other.create(f"/p/{value.decode()}")
    events: list[WatchEvent] = []

    store.arm(["/p", "/p/a"], ["/p/a", "/p/gone", "/p/new", "/end"], events.append)
    store.arm(["/p", "/p/a"], ["/p/a", "/p/gone", "/p/new", "/end"], events.append)
    for _ in range(2):
        other.set("/p/a", b"3")
        other.create("/p/new")
        other.multi([Delete("/p/new"), Delete("/p/gone"), Create("/p/gone")])
    other.set("/end", b"")

    eventually(lambda: WatchEvent(WatchType.CHANGED, "/end") in events)
    assert sorted(f"{event.type.value} {event.path}" for event in events) == [
        "changed /end",
        "changed /p/a",
        "child /p",
        "created /p/new",
        "deleted /p/gone",
    ]


@pytest.mark.parametrize("change", ["data", "children", "created", "deleted", "deleted and created"])
def test_a_change_between_the_read_and_the_watch_is_reported(
    store: KazooStore, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    other = open_store()
    paths = [f"/p{n}" for n in range(session._MANY_WATCHES)]
    store.multi([Create(path) for path in paths])
    read = store._read_there
    changes = {
        "data": ([SetData("/p3", b"new")], {"changed /p3"}),
        "children": ([Create("/p3/child")], {"child /p3"}),
        "created": ([Create("/none")], {"created /none"}),
        "deleted": ([Delete("/p3")], {"deleted /p3"}),
        "deleted and created": ([Delete("/p3"), Create("/p3")], {"changed /p3", "child /p3"}),
    }
    ops, told = changes[change]

    def and_then_it_changes(reads: list[Read]) -> object:
        found = read(reads)
        other.multi(ops)
        return found

    monkeypatch.setattr(store, "_read_there", and_then_it_changes)
    events: list[WatchEvent] = []
    listings, stats, _ = store.arm(paths, [*paths, "/none"], events.append)

    assert [listing is not None for listing in listings] == [True] * len(paths)
    assert [stat is not None for stat in stats] == [True] * len(paths) + [False]
    eventually(lambda: told <= {f"{event.type.value} {event.path}" for event in events})
    assert {f"{event.type.value} {event.path}" for event in events} == told


@pytest.mark.usefixtures("watching")
def test_the_error_for_one_forbidden_read_of_many_names_the_znode(open_store: OpenStore) -> None:
    """The watches are then set one by one, as after a single exists (ZOOKEEPER-2590)."""
    open_store(options=ZkOptions(digest=Digest("o", "o"), acl=Acl.CREATOR_ONLY)).create("/private")
    with pytest.raises(NoAuth, match="/private"):
        open_store().exists_many(["/a", "/b", "/private"], lambda _event: None)


def test_watches_that_were_set_together_report_a_lost_connection(store: KazooStore) -> None:
    paths = [f"/p{n}" for n in range(session._MANY_WATCHES)]
    events: list[WatchEvent] = []
    store.exists_many(paths, events.append)

    kazoo_private.break_connection(store._client)

    eventually(lambda: {(event.type, event.path) for event in events} == {(WatchType.CONNECTION, p) for p in paths})


def test_watches_work_with_a_kazoo_that_stores_them_elsewhere(
    store: KazooStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kazoo_private, "can_remember_watches", lambda _client: False)
    paths = [f"/p{n}" for n in range(session._MANY_WATCHES)]
    events: list[WatchEvent] = []
    store.exists_many(paths, events.append)
    store.create("/p1")
    eventually(lambda: events == [WatchEvent(WatchType.CREATED, "/p1")])


def test_a_request_for_watches_stays_within_its_size() -> None:
    wanted = [(kind, f"/{number:04}" + "x" * 995) for number in range(600) for kind in bulk.WatchOf]

    chunks = list(bulk.watch_chunks(wanted))

    assert [one for chunk in chunks for one in chunk] == wanted
    requests = [bulk.SetWatches(7, chunk, before_sending=lambda: None).serialize() for chunk in chunks]
    assert max(map(len, requests)) <= bulk.MAX_REQUEST_BYTES + 100
    assert len(chunks) == 4
    assert list(bulk.watch_chunks([])) == []


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_watch_gone_reports_deleted_znodes_and_those_already_missing(
    store: KazooStore, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    monkeypatch.setattr(kazoo_private, "can_remember_watches", lambda _client: at_once)
    store.multi([Create("/p"), Create("/p/a"), Create("/p/b"), Create("/p/c")])
    store.delete("/p/b")
    events: list[WatchEvent] = []
    store.watch_gone(["/p/a", "/p/b", "/p/c"], events.append)
    eventually(lambda: events == [WatchEvent(WatchType.DELETED, "/p/b")])
    open_store().multi([Delete("/p/a"), Delete("/p/c")])
    eventually(
        lambda: {(event.type, event.path) for event in events[1:]} == {(WatchType.DELETED, f"/p/{n}") for n in "ac"}
    )
    store.watch_gone(["/p/a"], events.append)
    assert events[3:] == [WatchEvent(WatchType.DELETED, "/p/a")]
