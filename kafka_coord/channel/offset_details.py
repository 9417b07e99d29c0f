"""What belongs to a stored offset: the details that Kafka clients commit with it (the leader epoch and the client's
metadata), and whether its topic still exists, so that nobody is given the offset of one that does not (ADR 42).

The details have a znode of their own, so the offset's znode still contains nothing but a decimal number. As soon as any
client writes the offset again, the details are no longer valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum, auto

from kafka_coord.channel.operations import Registration, chunks, decode_offset
from kafka_coord.errors import MalformedValue, NoAuth
from kafka_coord.model import CommittedOffset, OffsetDetails, TopicInfo, TopicOfOffsets, TopicPartition, is_identity
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import topic_identity
from kafka_coord.zk.store import Create, GetChildren, GetData, Node, Op, ReadResult, SetData, Store


class Owner(Enum):
    """What has become of the topic that stored offsets belong to."""

    PRESENT = auto()
    """The topic exists, or nothing shows that it does not."""
    GONE = auto()
    """It is certain that no topic of this name exists."""
    REPLACED = auto()
    """The name has another id."""


def identity_reads(group: str, topics: Iterable[str]) -> list[GetData]:
    """Returns the reads of the identities that the group's offsets belong to. They must come before the reads of the
    offsets: a new identity is written together with the removal of the old offsets."""
    return [GetData(layout.topic_offsets(group, topic)) for topic in topics]


def replaced_topics(store: Store, topics: Iterable[str], stored: Iterable[ReadResult]) -> frozenset[str]:
    """Returns the topics whose stored offsets do not count: the topic does not exist, or the name has another id.
    ``stored`` are the results of :func:`identity_reads`. Raises :class:`StoreError`."""
    identities = dict(zip(topics, stored, strict=True))
    with_offsets = {topic: node for topic, node in identities.items() if isinstance(node, Node)}
    owners = owners_of_offsets(store, with_offsets)
    return frozenset(name for name, owner in owners.items() if owner is not Owner.PRESENT)


def owners_of_offsets(store: Store, stored: Mapping[str, ReadResult]) -> dict[str, Owner]:
    """Returns what has become of each topic. ``stored`` maps the topics to the results of :func:`identity_reads`. A
    topic that cannot be read counts as the same one. Raises :class:`StoreError`."""
    names = list(stored)
    unknown = dict.fromkeys(names, Owner.PRESENT)
    try:
        parent, *nodes = store.read_many(
            [GetData(layout.BROKER_TOPICS), *(GetData(layout.broker_topic(name)) for name in names)] if names else []
        ) or (None,)
    except NoAuth:
        if len(names) <= 1:
            return unknown
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        return {n: one for half in halves for n, one in owners_of_offsets(store, {n: stored[n] for n in half}).items()}
    if not isinstance(parent, Node):
        return unknown
    return {name: _owner(name, stored[name], topic) for name, topic in zip(names, nodes, strict=True)}


def _owner(name: str, stored: ReadResult, topic: ReadResult) -> Owner:
    if not isinstance(topic, Node):
        return Owner.GONE
    written = TopicOfOffsets.read(stored.data).identity if isinstance(stored, Node) else ""
    with suppress(MalformedValue):
        identity, former = topic_identity(fields.load_object(topic.data, layout.broker_topic(name)), topic)
        is_same = TopicInfo(name, frozenset(), identity, former_identity=former).is_same(written)
        return Owner.PRESENT if is_same or not is_identity(written) else Owner.REPLACED
    return Owner.PRESENT


def details_paths(group: str, partitions: Iterable[TopicPartition]) -> list[str]:
    """Returns the paths of the details' znodes and of their parents, parents first."""
    wanted = sorted(partitions)
    topics = dict.fromkeys(tp.topic for tp in wanted)
    return [
        *([layout.details(group)] if wanted else []),
        *(layout.topic_details(group, topic) for topic in topics),
        *(layout.offset_details(group, *tp) for tp in wanted),
    ]


def details_ops(group: str, details: OffsetDetails, existing: Collection[str]) -> list[Op]:
    """Returns the operations that write the details, which must not be sent before the offsets. ``existing`` contains
    the :func:`details_paths` that already exist."""
    values = {layout.offset_details(group, *tp): one.to_bytes() for tp, one in details.items()}
    return [
        SetData(path, values[path]) if path in existing and path in values else Create(path, values.get(path, b""))
        for path in details_paths(group, details)
        if path in values or path not in existing
    ]


def write_details(store: Store, group: str, details: OffsetDetails, registration: Registration | None = None) -> None:
    """Writes the details of offsets that are already stored, as the member with the given registration or, without one,
    as a coordinator. Raises :class:`StoreError`."""
    paths = details_paths(group, details)
    existing = {path for path, stat in zip(paths, store.exists_many(paths), strict=True) if stat is not None}
    fence = registration.fence() if registration is not None else ()
    for request in chunks(details_ops(group, details, existing), (), fence, store.acl_bytes):
        store.multi(request)


def read_offsets(
    store: Store, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedOffset | MalformedValue | None]:
    """Returns the stored offset of each partition with its details, or ``None`` if there is no offset, or if it belongs
    to an earlier topic of the same name, or the error of an offset that cannot be decoded. Ignores details that cannot
    be read. Raises :class:`StoreError`."""
    requested = list(partitions)
    paths = [layout.offset(group, *tp) for tp in requested]
    names = sorted({tp.topic for tp in requested})
    identities, details_of_group = identity_reads(group, names), GetChildren(layout.details(group))
    found = store.read_many([*identities, details_of_group, *(GetData(path) for path in paths)])
    listed, nodes = found[len(names)], found[len(names) + 1 :]
    replaced = replaced_topics(store, names, found[: len(names)])
    offsets: dict[TopicPartition, CommittedOffset | MalformedValue | None] = dict.fromkeys(requested)
    written: dict[TopicPartition, int] = {}
    for tp, path, node in zip(requested, paths, nodes, strict=True):
        if isinstance(node, Node) and tp.topic not in replaced:
            written[tp] = node.stat.mzxid
            try:
                offsets[tp] = CommittedOffset(decode_offset(node.data, path))
            except MalformedValue as error:
                offsets[tp] = error
    topics = frozenset(listed) if isinstance(listed, tuple) else frozenset()
    detailed = [tp for tp, one in offsets.items() if tp.topic in topics and isinstance(one, CommittedOffset)]
    details = store.read_many([GetData(layout.offset_details(group, *tp)) for tp in detailed]) if detailed else ()
    for tp, more in zip(detailed, details, strict=True):
        bare = offsets[tp]
        if isinstance(bare, CommittedOffset):
            offsets[tp] = with_details(bare, written[tp], more)
    return offsets


def with_details(bare: CommittedOffset, written: int, node: object) -> CommittedOffset:
    """Returns the offset with its details, or without them if they are no longer valid. ``written`` is the zxid of the
    offset's last write, and ``node`` the result of reading the details."""
    if not isinstance(node, Node) or node.stat.mzxid < written:
        return bare
    try:
        details = CommittedOffset.from_bytes(node.data, "")
    except MalformedValue:
        return bare
    return details if details.offset == bare.offset else bare
