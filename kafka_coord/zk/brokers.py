"""Decodes the znodes of Kafka's brokers and topics, Kafka's own or the mirror's (ADR 56): the brokers, with what is
wrong with unusable registrations, and the topics with their identities (ADR 42). Reads how far a migration is."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from kafka_coord.errors import MalformedValue, NoAuth, StoreError
from kafka_coord.model import Broker, TopicInfo, Unreadable, is_topic_id
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.zk import layout
from kafka_coord.zk.root import reads_mirror, tell_changed
from kafka_coord.zk.store import GetChildren, GetData, Node, ReadResult, Store

MIGRATING = (
    "migrates its metadata to KRaft: its znodes are up to date until the migration is finalised, and after that new"
    " topics and partitions would never be seen"
)
DO_NOT_FINALISE = (
    "do not finalise the migration (zookeeper.metadata.migration.enable stays true on the controllers) before"
    " kafka-coord doctor says that the metadata comes from the brokers"
)
NEW_WITHIN_S = 1.5
"""How long somebody who names a topic waits until the mirror has it, in seconds."""
_LOOK_AGAIN_S = 0.1
_MAX_ID = 2**31 - 1
_WRITTEN_WITHIN_MS = 10_000
"""A KRaft controller that still writes Kafka's znodes has written a change within this time."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """The registered brokers. A broker whose registration is unreadable is left out of ``live`` and listed in
    ``unreadable``."""

    live: tuple[Broker, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


class Migration(Enum):
    """How far Kafka is on its way from ZooKeeper to KRaft, as far as its znodes tell (KIP-866). They do not tell when a
    migration is finalised: Kafka only ceases to write them."""

    NONE = auto()
    PREPARED = auto()
    """A KRaft controller has begun to prepare it, or it was rolled back."""
    RUNNING = auto()
    """A KRaft controller is active. It keeps the znodes of topics up to date until the migration is finalised."""

    @classmethod
    def of(cls, controller: ReadResult | Unreadable, migration: ReadResult | Unreadable) -> Migration:
        """``controller`` and ``migration`` are what reading ``/controller`` and ``/migration`` returned."""
        try:
            written = fields.load_object(controller.data, layout.CONTROLLER) if isinstance(controller, Node) else {}
        except MalformedValue:
            written = {}
        epoch = written.get("kraftControllerEpoch")
        if isinstance(epoch, int) and epoch >= 0:
            return cls.RUNNING
        return cls.PREPARED if isinstance(migration, Node) else cls.NONE


def broker_number(name: str) -> int | None:
    """Returns the broker id in a znode's name, or ``None`` if the name is not an id."""
    return fields.decimal(name, _MAX_ID)


def numbers(listing: ReadResult) -> tuple[int, ...]:
    """Returns the broker ids among the names in a listing, sorted."""
    names = listing if isinstance(listing, tuple) else ()
    return tuple(sorted(number for name in names if (number := broker_number(name)) is not None))


def decode_brokers(names: Sequence[str], nodes: Sequence[ReadResult | Unreadable]) -> Brokers:
    """Decodes registrations. ``nodes`` holds the results of reading ``names``, in the same order. Skips znodes that no
    longer exist."""
    live: list[Broker] = []
    unreadable: list[Unreadable] = []
    for name, node in zip(names, nodes, strict=True):
        where, number = layout.broker(name), broker_number(name)
        if isinstance(node, Unreadable):
            unreadable.append(node)
        elif isinstance(node, Node) and number is None:
            unreadable.append(Unreadable(where, "its name is not a broker id"))
        elif isinstance(node, Node) and number is not None:
            try:
                value = fields.load_object(node.data, where)
                if value.get("away") is not True:  # in the mirror: no broker names it any more
                    live.append(Broker.from_json(value, number, where))
            except MalformedValue as error:
                unreadable.append(Unreadable(where, error.reason))
    return Brokers(tuple(live), tuple(unreadable))


def read_brokers(store: Store) -> Brokers | None:
    """Reads all brokers in two round trips. Returns ``None`` if Kafka does not keep its metadata here. Raises
    :class:`StoreUnavailable`."""
    (listing,) = store.read_many([GetChildren(layout.BROKER_IDS)])
    if not isinstance(listing, tuple):
        return None
    return decode_brokers(listing, store.read_many([GetData(layout.broker(name)) for name in listing]))


def read_migration(store: Store) -> Migration:
    """Raises :class:`StoreUnavailable`."""
    try:
        controller, migration = store.read_many([GetData(layout.CONTROLLER), GetData(layout.MIGRATION)])
    except NoAuth:
        return Migration.NONE
    return Migration.of(controller, migration)


def read_left_behind(store: Store) -> tuple[tuple[int, ...], str]:
    """Returns which brokers are still registered in Kafka's own znodes, and a topic that the mirror has shown for a
    while with partitions that Kafka's own znodes lack, or "". If there is one, Kafka has ceased to write them. Raises
    :class:`StoreUnavailable`."""
    own = layout.kafkas_own(layout.BROKER_TOPICS)
    ids, names = store.read_many([GetChildren(layout.kafkas_own(layout.BROKER_IDS)), GetChildren(layout.BROKER_TOPICS)])
    topics = sorted(names) if isinstance(names, tuple) else []
    before_ms = round(store.clock.time() * 1000) - _WRITTEN_WITHIN_MS
    with_own = zip(
        topics,
        store.read_many([GetData(layout.broker_topic(name)) for name in topics]),
        store.read_many([GetData(f"{own}/{name}") for name in topics]),
        strict=True,
    )
    lacks = (
        name
        for name, node, there in with_own
        if isinstance(node, Node)
        and node.stat.mtime_ms < before_ms
        and _partition_count(node) > _partition_count(there)
    )
    return numbers(ids), next(lacks, "")


def _partition_count(node: ReadResult) -> int:
    try:
        found = fields.load_object(node.data, "").get("partitions") if isinstance(node, Node) else None
    except MalformedValue:
        return 0
    return len(found) if isinstance(found, dict) else 0


def topic_identity(value: fields.Json, node: Node) -> tuple[str, str]:
    """Returns the identity of the topic whose znode (Kafka's, or in the mirror) contains ``value``, and its former
    identity if Kafka has given it an id since; see :class:`kafka_coord.model.TopicInfo`."""
    topic_id, written = value.get("topic_id"), value.get("czxid")
    czxid = str(written if isinstance(written, int) else node.stat.czxid)  # the mirror keeps that of Kafka's own znode
    if isinstance(topic_id, str) and is_topic_id(topic_id):
        return topic_id, czxid
    return czxid, ""


def decode_topic(name: str, node: Node, broker_racks: Mapping[int, str]) -> TopicInfo:
    """Decodes ``/brokers/topics/<topic>``: ``{"version":3,"topic_id":"…","partitions":{"0":[1,2]}, …}``.

    The partition list is in the *data* (KAFKA-1075). Kafka 2.8 and later write ``topic_id``. Raises
    :class:`MalformedValue`.
    """
    where = layout.broker_topic(name)
    if not is_legal(name):
        raise MalformedValue(where, "not a legal topic name")
    value = fields.load_object(node.data, where)
    written = value.get("partitions")
    if not isinstance(written, dict):
        raise MalformedValue(where, "field 'partitions' is not an object of replica lists")
    replicas: dict[int, tuple[int, ...]] = {}
    for partition, brokers in written.items():
        number = fields.decimal(partition, MAX_PARTITION)
        if number is None:
            raise MalformedValue(where, f"{partition[:40]!r} is not a partition number")
        if not isinstance(brokers, list):
            raise MalformedValue(where, f"the replicas of partition {partition} are not a list")
        replicas[number] = tuple(b for b in brokers if isinstance(b, int))
    racks = {
        number: frozenset(broker_racks[b] for b in brokers if b in broker_racks)
        for number, brokers in (replicas.items() if broker_racks else ())
    }
    identity, former = topic_identity(value, node)
    return TopicInfo(
        name=name,
        partitions=frozenset(replicas),
        identity=identity,
        replica_racks={number: found for number, found in racks.items() if found},
        former_identity=former,
    )


def await_new(store: Store, named: Mapping[str, Collection[int] | None]) -> None:
    """Gives a mirror, if there is one, the time to get topics and partitions that brokers may know already. To be
    called before anybody is told that what was ``named`` does not exist. Raises :class:`StoreError`."""
    highest = {topic: max(numbers or (0,)) for topic, numbers in named.items() if is_legal(topic)}
    deadline, is_told = store.clock.monotonic() + NEW_WITHIN_S, False
    while store.clock.monotonic() < deadline:
        nodes = store.read_many([GetData(layout.broker_topic(topic)) for topic in highest]) if highest else ()
        if all(_partition_count(node) > one for node, one in zip(nodes, highest.values(), strict=True)):
            return
        if not is_told:
            if not reads_mirror(store):
                return
            with suppress(StoreError):  # whoever may only read sees it a little later
                tell_changed(store)
            is_told = True
        time.sleep(_LOOK_AGAIN_S)
