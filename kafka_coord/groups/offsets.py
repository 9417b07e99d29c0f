"""Reads the committed offsets of managed groups, and parses an operator's choice of partitions (``flights:0,3-5``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from kafka_coord.channel.offset_details import Owner, owners_of_offsets
from kafka_coord.channel.operations import decode_offset
from kafka_coord.coordinator.start_offsets import unclaimed
from kafka_coord.errors import MalformedValue, NotFound, SettingsError
from kafka_coord.groups.cluster import Reading
from kafka_coord.groups.group import NOT_SUBSCRIBED, OffsetRow, Time
from kafka_coord.model import (
    NO_PARTITIONS,
    Ledger,
    Observation,
    PartitionSet,
    TopicInfo,
    TopicOfOffsets,
    TopicPartition,
    Unreadable,
    is_identity,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import legal
from kafka_coord.model.offsets import Lag, LogRange, lag_of
from kafka_coord.model.partitions import MAX_PARTITION, parse_ranges
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, ReadResult, Store


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offsets of one group. Each is the offset of the next record to read.

    ``of_earlier_topic`` are the partitions whose offset belongs to a topic that was deleted, and perhaps made anew.
    Nobody is given such an offset, so they count as uncommitted. ``stored`` are all partitions with an offset znode,
    readable or not. ``at_ms`` are the times of the last commits (ms since 1970). ``once_subscribed`` are the existing
    partitions of the topics that members have subscribed to, and whose offsets have not expired since.
    """

    offsets: Mapping[TopicPartition, int]
    of_earlier_topic: PartitionSet = NO_PARTITIONS
    unreadable: tuple[Unreadable, ...] = ()
    stored: PartitionSet = NO_PARTITIONS
    at_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    once_subscribed: PartitionSet = NO_PARTITIONS


def read_committed(store: Store, group: str, topics: Mapping[str, TopicInfo]) -> Committed:
    """Reads everything below the group's ``offsets``."""
    return read_all_committed(store, [group], topics)[group]


def read_all_committed(store: Store, groups: Iterable[str], topics: Mapping[str, TopicInfo]) -> dict[str, Committed]:
    """Reads everything below each group's ``offsets`` in three round trips, however many groups there are, and one more
    if there are offsets of topics that are not among ``topics``: one that cannot be read is not gone."""
    names, reading = tuple(groups), Reading(store)
    listings = reading.all(GetChildren(layout.offsets(group)) for group in names)
    parents = [
        (group, topic)
        for group in names
        for topic in reading.names(layout.offsets(group), listings[GetChildren(layout.offsets(group))])
    ]
    found = reading.all(read(layout.topic_offsets(*one)) for one in parents for read in (GetData, GetChildren))
    absent = dict.fromkeys(topic for _, topic in parents if topic not in topics)
    owners = owners_of_offsets(store, absent) if absent else {}
    gone = {topic for topic, owner in owners.items() if owner is Owner.GONE}
    stored: dict[str, list[TopicPartition]] = {group: [] for group in names}
    earlier: dict[str, list[TopicPartition]] = {group: [] for group in names}
    current: list[tuple[str, TopicPartition]] = []
    once_subscribed: dict[str, dict[str, frozenset[int]]] = {group: {} for group in names}
    for group, topic in parents:
        path = layout.topic_offsets(group, topic)
        partitions = [*_partitions(reading, path, topic, found[GetChildren(path)])]
        belong, node = _Belong.EARLIER, found[GetData(path)]
        if topic not in gone:
            belong = _belong(reading, path, node, topics.get(topic))
        first = TopicOfOffsets.read(node.data).first if isinstance(node, Node) else None
        if belong is _Belong.CURRENT and topic in topics and first is not None:
            once_subscribed[group][topic] = topics[topic].partitions
        stored[group] += partitions
        if belong is _Belong.EARLIER:
            earlier[group] += partitions
        elif belong is _Belong.CURRENT:
            current += ((group, tp) for tp in partitions)
    offsets: dict[str, dict[TopicPartition, int]] = {group: {} for group in names}
    at_ms: dict[str, dict[TopicPartition, int]] = {group: {} for group in names}
    nodes = reading.many(GetData(layout.offset(group, *tp)) for group, tp in current)
    for (group, tp), node in zip(current, nodes, strict=True):
        if not isinstance(node, Node):
            continue
        try:
            offsets[group][tp] = decode_offset(node.data, layout.offset(group, *tp))
            at_ms[group][tp] = node.stat.mtime_ms
        except MalformedValue as error:
            reading.refuse(error.where, error.reason)
    unreadable = reading.by_group()
    return {
        group: Committed(
            offsets[group],
            PartitionSet.of(earlier[group]),
            tuple(unreadable.get(group, ())),
            PartitionSet.of(stored[group]),
            at_ms[group],
            PartitionSet(once_subscribed[group]),
        )
        for group in names
    }


class _Belong(Enum):
    """Says whether offsets belong to the current topic, or to an earlier one of the same name."""

    CURRENT = auto()
    EARLIER = auto()
    UNKNOWN = auto()


def _belong(reading: Reading, path: str, node: ReadResult, topic: TopicInfo | None) -> _Belong:
    if not isinstance(node, Node) or not node.data or topic is None:
        return _Belong.CURRENT
    written = TopicOfOffsets.read(node.data).identity
    if topic.is_same(written):
        return _Belong.CURRENT
    if is_identity(written):
        return _Belong.EARLIER
    reading.refuse(path, unclaimed(node.data.decode(errors="replace"), topic.identity))
    return _Belong.UNKNOWN


def _partitions(reading: Reading, parent: str, topic: str, listing: ReadResult) -> Iterable[TopicPartition]:
    for name in listing if isinstance(listing, tuple) else ():
        number = fields.decimal(name, MAX_PARTITION)
        if number is None:
            reading.refuse(f"{parent}/{name}", "not a partition number")
        else:
            yield TopicPartition(topic, number)


def partitions_of(seen: Observation, committed: Committed) -> PartitionSet:
    """Returns all partitions that a group subscribes to, holds, or has a committed offset for. A group without members
    also has the partitions that its former ones subscribed to: they may have stopped before they read from all."""
    partitions = PartitionSet.of(committed.offsets) | (subscribed(seen) if seen.members else committed.once_subscribed)
    for ledger in seen.ledgers.values():
        partitions |= ledger.held
    return partitions


def subscribed(seen: Observation) -> PartitionSet:
    """Returns the existing partitions of the topics that members subscribe to."""
    partitions = NO_PARTITIONS
    subscriptions = {
        (m.subscription.kind, m.subscription.pattern or id(m)): m.subscription for m in seen.members.values()
    }
    for subscription in subscriptions.values():
        if subscription.is_wildcard:
            topics = [name for name in seen.topics if subscription.wants(name)]
        else:
            topics = [name for name in subscription.topics if name in seen.topics]
        partitions |= PartitionSet({name: seen.topics[name].partitions for name in topics})
    return partitions


def holders(ledgers: Iterable[Ledger]) -> dict[TopicPartition, tuple[str, str]]:
    """Maps each held partition to its consumer and ``owned`` or ``stopping``."""
    held: dict[TopicPartition, tuple[str, str]] = {}
    for ledger in ledgers:
        held |= dict.fromkeys(ledger.owned, (ledger.consumer, "owned"))
        held |= dict.fromkeys(ledger.stopping, (ledger.consumer, "stopping"))
    return held


def offset_rows(
    seen: Observation, committed: Committed, logs: Mapping[TopicPartition, LogRange]
) -> tuple[OffsetRow, ...]:
    """Returns one row per partition of a managed group."""
    partitions = partitions_of(seen, committed)
    return rows_of(partitions, holders(seen.ledgers.values()), committed, logs, subscribed_among(seen, partitions))


def subscribed_among(seen: Observation, partitions: PartitionSet) -> frozenset[str] | None:
    """Returns the topics of ``partitions`` that members subscribe to, or ``None`` if the group has no members or any
    registration cannot be read."""
    if not seen.members or any(one.incarnation for one in seen.unreadable):
        return None
    wanted = frozenset(subscribed(seen).topics)
    others = [topic for topic in partitions.topics if topic not in wanted]  # they may not exist
    return wanted | {topic for topic in others if any(one.subscription.wants(topic) for one in seen.members.values())}


def lags_of(
    partitions: Iterable[TopicPartition],
    offsets: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogRange],
) -> dict[TopicPartition, Lag | None]:
    """Returns the lag after each partition's offset, or ``None`` if that or the log is unknown. Every lag of a group
    comes from here."""
    return {tp: lag_of(offsets.get(tp), logs.get(tp)) for tp in partitions}


def rows_of(
    partitions: PartitionSet,
    held: Mapping[TopicPartition, tuple[str, str]],
    committed: Committed,
    logs: Mapping[TopicPartition, LogRange],
    subscribed_topics: frozenset[str] | None = None,
) -> tuple[OffsetRow, ...]:
    """Returns one row per partition, in order of topic and partition. ``held`` is as returned by :func:`holders`.
    ``subscribed_topics`` are the topics that members subscribe to, or ``None`` if that is unknown."""
    rows = []
    lags = lags_of(partitions, committed.offsets, logs)
    for tp in partitions:
        is_left = subscribed_topics is not None and tp.topic not in subscribed_topics
        owner, holding = held.get(tp, (None, NOT_SUBSCRIBED if is_left else None))
        offset, log = committed.offsets.get(tp), logs.get(tp)
        lag = lags[tp]
        rows.append(
            OffsetRow(
                topic=tp.topic,
                partition=tp.partition,
                owner=owner,
                holding=holding,
                committed_offset=offset,
                committed_ms=Time.of(committed.at_ms.get(tp)),
                start_offset=log.start if log is not None else None,
                end_offset=log.end if log is not None else None,
                lag=lag.lag if lag is not None else None,
                gone=lag.gone if lag is not None else None,
            )
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Scope:
    """The chosen partitions. ``topics`` maps each chosen topic to the chosen partitions, or to ``None`` for all of
    them. If ``topics`` is empty, every topic is chosen."""

    topics: Mapping[str, frozenset[int] | None]

    def choose(self, there: PartitionSet, group: str) -> PartitionSet:
        """Returns the chosen partitions of ``there``. Raises :class:`NotFound` if ``there`` lacks a chosen topic or
        partition."""
        if not self.topics:
            if not there:
                raise NotFound(f"group {group!r} has no offsets and does not subscribe to any existing topic")
            return there
        chosen = {}
        for topic, numbers in self.topics.items():
            known = there.of_topic(topic)
            if not known:
                raise NotFound(f"no topic {topic!r}; topics to choose from: {', '.join(there.topics) or 'none'}")
            missing = (numbers or frozenset()) - known
            if missing:
                raise NotFound(
                    f"topic {topic!r} has no partition {min(missing)}; it has {PartitionSet({topic: known})}"
                )
            chosen[topic] = numbers if numbers is not None else known
        return PartitionSet(chosen)

    def unused(self, used: Collection[tuple[str, int]]) -> list[str]:
        """Returns the chosen topics, and the chosen partitions of the others, that are not among ``used``."""
        found = []
        for topic, numbers in self.topics.items():
            there = {partition for name, partition in used if name == topic}
            if not there:
                found.append(topic)
            elif lacking := (numbers or frozenset()) - there:
                found.append(str(PartitionSet({topic: lacking})))
        return found


def parse_scope(topics: Sequence[str], *, all_topics: bool) -> Scope:
    """Parses ``--topic`` and ``--all-topics``. Raises :class:`SettingsError` if both or neither are given, or if a
    topic is malformed."""
    if all_topics is bool(topics):
        raise SettingsError(
            "choose topics with --topic NAME (repeatable; NAME:0,3-5 for some partitions) or --all-topics"
        )
    by_topic: dict[str, frozenset[int] | None] = {}
    for written in topics:
        name, colon, numbers = written.partition(":")
        legal("topic", name)
        try:
            chosen = parse_ranges(numbers, "--topic") if colon else None
        except MalformedValue as error:
            raise SettingsError(f"--topic {written[:80]!r}: {error.reason}") from None
        if colon and not chosen:
            raise SettingsError(
                f"--topic {written!r} lists no partitions; write {name}:0,3-5, or {name} for all of them"
            )
        before = by_topic.get(name, frozenset())
        by_topic[name] = None if chosen is None or before is None else before | chosen
    return Scope(by_topic)


def all_partitions(topics: Mapping[str, TopicInfo]) -> PartitionSet:
    """Returns every partition of every topic."""
    return PartitionSet({name: info.partitions for name, info in topics.items()})
