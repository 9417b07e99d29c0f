"""What a group has committed, and how far that is from the end of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka_coord.channel.operations import decode_offset
from kafka_coord.errors import MalformedValue
from kafka_coord.model import (
    NO_PARTITIONS,
    Ledger,
    Observation,
    PartitionSet,
    TopicInfo,
    TopicPartition,
    Unreadable,
    same_topic,
)
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.monitor.reading import Reading
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, ReadResult, Store


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offsets of one group: per partition the offset of the next record to read.

    ``of_earlier_topic`` are partitions whose offset belongs to a topic of the same name that was deleted: a consumer
    starts as if nothing were committed, so they count as not committed here as well.
    """

    offsets: Mapping[TopicPartition, int]
    of_earlier_topic: PartitionSet = NO_PARTITIONS
    unreadable: tuple[Unreadable, ...] = ()


def read_committed(store: Store, group: str, topics: Mapping[str, TopicInfo]) -> Committed:
    """Everything below ``offsets`` of the group, in three rounds of reads."""
    reading = Reading(store)
    (listing,) = reading.many([GetChildren(layout.offsets(group))])
    names = reading.names(layout.offsets(group), listing)
    found = reading.many(
        [GetData(layout.topic_offsets(group, name)) for name in names]
        + [GetChildren(layout.topic_offsets(group, name)) for name in names]
    )
    identities, listings = found[: len(names)], found[len(names) :]
    partitions = [
        tp
        for name, children in zip(names, listings, strict=True)
        for tp in _partitions(reading, layout.topic_offsets(group, name), name, children)
    ]
    earlier = {
        name
        for name, node in zip(names, identities, strict=True)
        if isinstance(node, Node) and node.data and name in topics
        if not same_topic(node.data.decode(errors="replace"), topics[name].identity)
    }
    offsets: dict[TopicPartition, int] = {}
    nodes = reading.many(GetData(layout.offset(group, *tp)) for tp in partitions)
    for tp, node in zip(partitions, nodes, strict=True):
        if not isinstance(node, Node) or tp.topic in earlier:
            continue
        try:
            offsets[tp] = decode_offset(node.data, layout.offset(group, *tp))
        except MalformedValue as error:
            reading.refuse(error.where, error.reason)
    return Committed(
        offsets=offsets,
        of_earlier_topic=PartitionSet.of(tp for tp in partitions if tp.topic in earlier),
        unreadable=tuple(reading.unreadable),
    )


def _partitions(reading: Reading, parent: str, topic: str, listing: ReadResult) -> Iterable[TopicPartition]:
    for name in listing if isinstance(listing, tuple) else ():
        if name.isascii() and name.isdigit() and len(name) <= 10 and int(name) <= MAX_PARTITION:
            yield TopicPartition(topic, int(name))
        else:
            reading.refuse(f"{parent}/{name}", "not a partition number")


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition of a group. ``lag`` is ``None`` where it cannot be known: nothing committed, or no end offset.

    ``holding`` is ``owned``, or ``stopping`` while its owner has yet to acknowledge a stop-fetcher, or ``""``.
    """

    topic: str
    partition: int
    owner: str | None
    holding: str
    committed_offset: int | None
    end_offset: int | None
    lag: int | None


def partitions_of(seen: Observation, committed: Committed) -> PartitionSet:
    """Every partition a group has to do with: subscribed to, held, or with an offset of its own."""
    found = PartitionSet.of(committed.offsets)
    for ledger in seen.ledgers.values():
        found |= ledger.held
    subscriptions = {
        (m.subscription.kind, m.subscription.pattern or id(m)): m.subscription for m in seen.members.values()
    }
    for subscription in subscriptions.values():
        if subscription.is_wildcard:
            wanted = [name for name in seen.topics if subscription.wants(name)]
        else:
            wanted = [name for name in subscription.topics if name in seen.topics]
        found |= PartitionSet({name: seen.topics[name].partitions for name in wanted})
    return found


def holders(ledgers: Iterable[Ledger]) -> dict[TopicPartition, tuple[str, str]]:
    """(consumer, ``owned`` or ``stopping``) of every partition that is held."""
    held: dict[TopicPartition, tuple[str, str]] = {}
    for ledger in ledgers:
        held |= dict.fromkeys(ledger.owned, (ledger.consumer, "owned"))
        held |= dict.fromkeys(ledger.stopping, (ledger.consumer, "stopping"))
    return held


def offset_rows(
    seen: Observation, committed: Committed, end_offsets: Mapping[TopicPartition, int]
) -> tuple[OffsetRow, ...]:
    """One row a partition, in order of topic and partition."""
    held = holders(seen.ledgers.values())
    rows = []
    for tp in partitions_of(seen, committed):
        owner, holding = held.get(tp, (None, ""))
        offset, end = committed.offsets.get(tp), end_offsets.get(tp)
        rows.append(OffsetRow(tp.topic, tp.partition, owner, holding, offset, end, lag_of(offset, end)))
    return tuple(rows)


def lag_of(committed: int | None, end: int | None) -> int | None:
    """Records from the committed offset to the end; ``None`` where either is unknown.

    A committed offset beyond the end (the log was truncated) is a lag of 0, never a negative one.
    """
    return None if committed is None or end is None else max(0, end - committed)
