"""Committed offsets as the coordinator needs them: read for a start, fenced against a topic that was recreated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka_coord.channel.operations import decode_offset, offset_op
from kafka_coord.errors import MalformedValue
from kafka_coord.model import NO_OFFSET, PartitionSet, TopicInfo, TopicPartition, Unreadable
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, GetChildren, GetData, Node, Op, SetData, Store


@dataclass(frozen=True, slots=True)
class StartOffsets:
    """Where each partition begins. ``prepare`` are the writes a start must bring along, by topic: the parents of its
    offset znodes, or the removal of offsets that belong to an earlier topic of the same name.
    Partitions whose offset znode is unreadable are in ``unreadable`` and must not be started: any guess could skip
    records."""

    offsets: Mapping[TopicPartition, int]
    prepare: Mapping[str, tuple[Op, ...]]
    unreadable: Mapping[TopicPartition, Unreadable]


def read_start_offsets(store: Store, group: str, wanted: PartitionSet, topics: Mapping[str, TopicInfo]) -> StartOffsets:
    """Reads what is committed for ``wanted``. ``offsets/<topic>`` holds the identity of the topic they belong to."""
    names = wanted.topics
    partitions = tuple(wanted)
    found = store.read_many(
        [
            GetChildren(layout.offsets(group)),
            *(GetData(layout.topic_offsets(group, t)) for t in names),
            *(GetChildren(layout.topic_offsets(group, t)) for t in names),
            *(GetData(layout.offset(group, tp.topic, tp.partition)) for tp in partitions),
        ]
    )
    parent_missing = found[0] is None
    parents = dict(zip(names, found[1 : 1 + len(names)], strict=True))
    children = dict(zip(names, found[1 + len(names) : 1 + 2 * len(names)], strict=True))
    nodes = dict(zip(partitions, found[1 + 2 * len(names) :], strict=True))

    prepare: dict[str, tuple[Op, ...]] = {}
    stale: set[str] = set()
    for topic in names:
        ops: list[Op] = [Create(layout.offsets(group))] if parent_missing else []
        parent_missing = False  # the first unit makes it for all
        identity = topics[topic].identity.encode()
        node = parents[topic]
        path = layout.topic_offsets(group, topic)
        if not isinstance(node, Node):
            ops.append(Create(path, identity))
        elif not node.data:  # 0.8's own, or made by hand: theirs is the topic that is there now
            ops.append(SetData(path, identity, node.stat.version))
        elif node.data != identity:
            stale.add(topic)
            listing = children[topic]
            ops += [Delete(f"{path}/{name}") for name in (listing if isinstance(listing, tuple) else ())]
            ops.append(SetData(path, identity, node.stat.version))
        if ops:
            prepare[topic] = tuple(ops)
    offsets: dict[TopicPartition, int] = {}
    unreadable: dict[TopicPartition, Unreadable] = {}
    for tp, node in nodes.items():
        if tp.topic in stale or not isinstance(node, Node):
            offsets[tp] = NO_OFFSET
            continue
        try:
            offsets[tp] = decode_offset(node.data, layout.offset(group, tp.topic, tp.partition))
        except MalformedValue as error:
            unreadable[tp] = Unreadable(error.where, error.reason)
    return StartOffsets(offsets, prepare, unreadable)


def write_ops(group: str, offsets: Mapping[TopicPartition, int], existing: Iterable[TopicPartition]) -> list[Op]:
    """The writes that set ``offsets``; ``existing`` are those whose znode is there already."""
    there = frozenset(existing)
    return [offset_op(group, tp, offset, exists=tp in there) for tp, offset in sorted(offsets.items())]
