"""Readers follow ``/consumers/cluster``: what they call ``/brokers/...`` is Kafka's own or the mirror."""

from __future__ import annotations

import pytest

from kafka_coord.errors import StoreError
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, Source
from kafka_coord.zk.store import GetChildren, GetData, Node, Store, WatchEvent
from kafka_coord.zk.watches import Watches
from tests.simulation.store import SimulatedStore, connected_store
from tests.waiting import eventually

MIRRORED = ClusterRecord(Source.BROKERS, 5, "a test")


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
    record = ClusterRecord(Source.BROKERS, 12, "setting", "tree-1", "cluster-1")
    assert ClusterRecord.from_znode(record.to_bytes()) == record
    assert record.root is layout.Root.MIRROR
    assert ClusterRecord(Source.ZOOKEEPER, 12).root is layout.Root.KAFKA


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
    store.set(layout.CLUSTER, ClusterRecord(Source.ZOOKEEPER, 9, "an operator").to_bytes())
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
