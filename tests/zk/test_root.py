"""Readers follow ``/consumers/cluster``: what they call ``/brokers/...`` is Kafka's own or the mirror."""

from __future__ import annotations

import pytest
from msgspec import structs

from kafka_coord.errors import RequestRefused, StoreError, TreeRefused, TreeUnfinished, UnknownVersion
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, OwnTree, Source, finish_tree, make_tree, read_cluster_record
from kafka_coord.zk.store import GetChildren, GetData, Node, Store, WatchEvent
from kafka_coord.zk.watches import Watches
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import SimulatedStore, connected_store
from tests.waiting import eventually

TREE = ClusterRecord("t1", 3, Source.ZOOKEEPER, 5, kafka="k1")
MIRRORED = structs.replace(TREE, source=Source.BROKERS, by="a test")


def trees(store: Store) -> None:
    for path, data in (
        ("/brokers/ids", b""),
        ("/brokers/topics", b""),
        ("/brokers/topics/flights", b"kafka's"),
        (layout.CONSUMERS, b""),
    ):
        store.ensure_path(path)
        store.set(path, data)


def mirror(store: Store, data: bytes = MIRRORED.to_bytes()) -> None:
    store.create(layout.CLUSTER, data)


def mirrored_topics(store: Store) -> None:
    store.create(layout.MIRRORED_TOPICS)
    store.create(f"{layout.MIRRORED_TOPICS}/flights", b"mirrored")


def deliver(store: SimulatedStore) -> None:
    while store.has_notification():
        store.deliver()


def test_the_record_keeps_what_it_says() -> None:
    record = structs.replace(MIRRORED, making="restore", superseded_by="tree t2, generation 4")
    assert ClusterRecord.from_znode(record.to_bytes()) == record
    assert record.root is layout.Root.MIRROR
    assert TREE.root is layout.Root.KAFKA


@pytest.mark.parametrize("path", ["/brokers/ids", "/brokers/ids/1", "/brokers/topics/a/partitions/0/state"])
def test_a_place_leads_back_to_its_name(path: str) -> None:
    there = layout.Root.MIRROR.at(path)
    assert there.startswith(layout.CLUSTER)
    assert layout.as_readers_name_it(there) == path
    assert layout.Root.KAFKA.at(path) == path == layout.as_readers_name_it(path)


def test_every_read_follows_the_record() -> None:
    store = connected_store()
    trees(store)
    assert store.get("/brokers/topics/flights").data == b"kafka's"
    mirror(store)
    mirrored_topics(store)
    deliver(store)
    assert store.get("/brokers/topics/flights").data == b"mirrored"
    assert store.children("/brokers/topics") == ("flights",)
    data, names, ids = store.read_many(
        [GetData("/brokers/topics/flights"), GetChildren("/brokers/topics"), GetChildren("/brokers/ids")]
    )
    assert isinstance(data, Node)
    assert data.data == b"mirrored"
    assert (names, ids) == (("flights",), None)
    (own,) = store.read_many([GetData(layout.kafkas_own("/brokers/topics/flights"))])
    assert isinstance(own, Node)
    assert own.data == b"kafka's"


def test_watches_move_with_the_record_and_back() -> None:
    store = connected_store()
    trees(store)
    seen: list[bytes] = []
    names: list[tuple[str, ...] | None] = []
    watches = Watches(store, lambda: None)
    watches.data("/brokers/topics/flights", lambda node: seen.append(node.data if node else b""))
    watches.children("/brokers/topics", names.append)
    watches.step()
    mirror(store)
    mirrored_topics(store)
    deliver(store)
    watches.step()
    assert seen == [b"kafka's", b"mirrored"]
    store.set(f"{layout.MIRRORED_TOPICS}/flights", b"grown")
    store.create(f"{layout.MIRRORED_TOPICS}/new")
    deliver(store)
    watches.step()
    assert seen[-1] == b"grown"
    assert names[-1] == ("flights", "new")
    store.set(layout.CLUSTER, TREE.to_bytes())
    deliver(store)
    watches.step()
    assert seen[-1] == b"kafka's"
    assert names[-1] == ("flights",)
    store.set("/brokers/topics/flights", b"kafka's later")
    deliver(store)
    watches.step()
    assert seen[-1] == b"kafka's later"


def test_a_record_of_another_format_stops_every_reader() -> None:
    store = connected_store()
    trees(store)
    mirror(store, b'{"version":2,"source":"brokers","since_ms":1}')
    deliver(store)
    with pytest.raises(StoreError, match="version 2; this release supports version 1"):
        store.get("/brokers/topics/flights")
    assert store.get(layout.CONSUMERS).data == b""


def test_a_real_server_moves_one_watch_and_many(store: Store) -> None:
    trees(store)
    topics = [f"/brokers/topics/t{number}" for number in range(80)]  # enough for SetWatches
    for topic in topics:
        store.create(topic, b"kafka's")
    events: list[WatchEvent] = []
    store.get("/brokers/topics/flights", events.append)
    armed = store.arm((), topics, events.append, [GetData(topics[0])])
    assert isinstance(armed.answers[0], Node)
    mirror(store)
    mirrored_topics(store)
    eventually(lambda: any(event.path == layout.CLUSTER for event in events))
    assert store.get("/brokers/topics/flights").data == b"mirrored"
    many = [*topics, "/brokers/topics/flights"]
    assert [stat is not None for stat in store.arm((), many, events.append).stats] == [False] * 80 + [True]
    store.set(f"{layout.MIRRORED_TOPICS}/flights", b"grown")
    eventually(lambda: any(event.path == "/brokers/topics/flights" for event in events))


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (None, "is gone, and with it tree t1, generation 3"),
        (structs.replace(TREE, tree="t2"), "here is tree t2, generation 3 now: start it again"),
        (structs.replace(TREE, generation=4), "here is tree t1, generation 4 now"),
        (structs.replace(TREE, superseded_by="tree t2, generation 4"), "is superseded by tree t2, generation 4"),
    ],
)
def test_an_instance_serves_only_the_tree_that_it_has_joined(data: ClusterRecord | None, refusal: str) -> None:
    store = connected_store()
    trees(store)
    mirror(store, TREE.to_bytes())
    own = OwnTree(store)
    own.join()
    own.check(store.get(layout.CLUSTER))
    if data is None:
        store.delete(layout.CLUSTER)
    else:
        store.set(layout.CLUSTER, data.to_bytes())
    with pytest.raises(TreeRefused, match=refusal):
        own.read()


def test_another_format_of_the_tree_is_named() -> None:
    store = connected_store()
    trees(store)
    mirror(store, b'{"version":2}')
    with pytest.raises(UnknownVersion, match="the tree has another format"):
        OwnTree(store).join()
    deliver(store)
    with pytest.raises(StoreError, match="the tree has another format"):
        store.children(layout.BROKER_TOPICS)


def test_the_first_instance_makes_the_tree_and_the_others_join_it() -> None:
    server = SimulatedZooKeeper()
    one, other = connected_store(server), connected_store(server)
    one.ensure_path("/cluster")
    one.create(layout.KAFKA_ID, b'{"version":"1","id":"k1"}')
    first, second = OwnTree(one), OwnTree(other)
    first.join()
    second.join()
    assert first.record == second.record == read_cluster_record(one)
    assert (first.record.generation, first.record.kafka) == (1, "k1")


def test_nobody_serves_a_tree_before_it_is_finished() -> None:
    store = connected_store()
    record = ClusterRecord.new(store, 4, kafka="k1", making="restore")
    make_tree(store, record)
    with pytest.raises(TreeUnfinished, match="if kafka-coord restore no longer runs, run it again"):
        OwnTree(store).join()
    with pytest.raises(RequestRefused, match=f"there is a tree already: {record.name}"):
        make_tree(store, TREE)
    with pytest.raises(RequestRefused, match="there is another tree now"):
        finish_tree(store, TREE)
    finish_tree(store, record)
    OwnTree(store).join()


def test_whoever_finds_a_newer_tree_tells_all_instances() -> None:
    store = connected_store()
    trees(store)
    mirror(store, TREE.to_bytes())
    one, other = OwnTree(store), OwnTree(store)
    one.join()
    other.join()
    one.superseded("tree t2, generation 4")
    with pytest.raises(TreeRefused, match="is superseded by tree t2"):
        other.read()
    with pytest.raises(TreeRefused, match="give them that one's --zookeeper"):
        OwnTree(store).join()
