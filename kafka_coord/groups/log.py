"""Reads the records of the groups log, and builds the history of a client-assigned group from them."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata, MemberMetadata
from kafka_coord.coordinator.plan.reasons import CAUSES, plural
from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.records import (
    CLAIM_KEY,
    GONE_KEY,
    GROUP_KEY,
    HEARD_KEY,
    KEEP_ALIVE_KEY,
    OFFSET_KEY,
    Claim,
    Entry,
    GroupEntry,
    OffsetEntry,
    read_record,
)
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.requests import OnProgress
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.client import run_with
from kafka_coord.kafka.cluster import ClusterClient, PartitionReader
from kafka_coord.model import NO_PARTITIONS, Departure, PartitionSet, Unreadable
from kafka_coord.model.operations import Cause, Decision
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.model.sequences import grouped
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.consumer_protocol import assignment, subscribed_topics
from kafka_coord.wire.messages import BadMessage

SILENCE_S = 15.0
"""Reading fails after this many seconds without a response."""
_REPORT_S = 2.0
_VERSION = struct.Struct(">h")


class EntryKind(StrEnum):
    OFFSET = "offset"
    GROUP = "group"
    CLAIM = "claim"
    KEEP_ALIVE = "keep-alive"
    HEARD = "heard"
    GONE = "gone"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


_KINDS = {
    0: EntryKind.OFFSET,
    OFFSET_KEY: EntryKind.OFFSET,
    GROUP_KEY: EntryKind.GROUP,
    CLAIM_KEY: EntryKind.CLAIM,
    KEEP_ALIVE_KEY: EntryKind.KEEP_ALIVE,
    HEARD_KEY: EntryKind.HEARD,
    GONE_KEY: EntryKind.GONE,
}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One record. ``entry`` is ``None`` for an empty or undecodable record. ``problem`` says why it is undecodable."""

    offset: int
    timestamp_ms: int
    kind: EntryKind
    entry: Entry
    problem: str = ""

    @property
    def group(self) -> str | None:
        return self.entry.group if isinstance(self.entry, OffsetEntry | GroupEntry) else None


def entry_of(record: LogRecord) -> LogEntry:
    key = record.key or b""
    kind = _KINDS.get(_VERSION.unpack_from(key)[0], EntryKind.UNKNOWN) if len(key) >= _VERSION.size else None
    try:
        entry = read_record(record)
    except BadMessage as error:
        return LogEntry(record.offset, record.timestamp_ms, EntryKind.UNREADABLE, None, str(error))
    return LogEntry(record.offset, record.timestamp_ms, kind or EntryKind.UNREADABLE, entry)


def about_group(group: str, *, offsets: bool = True) -> Callable[[LogRecord], bool]:
    """Returns a filter on record keys that selects the claims and the group's records. Without ``offsets``, it selects
    only the claims and the group's generations."""
    name = group.encode("utf-8", "surrogatepass")
    versions = (0, OFFSET_KEY, GROUP_KEY) if offsets else (GROUP_KEY,)
    starts = tuple(struct.pack(">hh", version, len(name)) + name for version in versions)
    claim = _VERSION.pack(CLAIM_KEY)
    return lambda record: record.key is not None and record.key.startswith((*starts, claim))


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The bounds of a partition's log: the first offset, and the offset of the next record."""

    first: int
    end: int


def read_log(
    bootstrap: str,
    properties: Mapping[str, str],
    partition: int,
    wanted: Callable[[LogRecord], bool] | None,
    on_progress: Callable[[int, int], None],
    *,
    first: int | None = None,
    last: int | None = None,
) -> tuple[LogBounds, Sequence[LogRecord]]:
    """Reads one partition of the groups log from its leader, up to its current end. Returns the log's bounds, and its
    records, oldest first. ``wanted`` selects records (``None``: every record), and ``last`` limits the result to the
    newest ``last`` of them.

    Starts at the offset ``first``. Without it, starts at the beginning of the log, or ``last`` records before the end
    if every record is wanted. Calls ``on_progress`` from time to time with the current offset and the end.

    ``properties`` are librdkafka settings; only those for security are used. Raises :class:`NotFound` if there is no
    such log, and :class:`BrokerError`.
    """

    async def read(cluster: ClusterClient) -> tuple[LogBounds, Sequence[LogRecord]]:
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(SILENCE_S) as silence:
            leaders = await cluster.leaders(TOPIC)
            reader = PartitionReader(cluster.to(leaders[partition]), partition, TOPIC)
            bounds = LogBounds(await reader.first_offset(), await reader.end_offset())
            newest = bounds.end - last if last is not None and wanted is None else bounds.first
            begin = max(bounds.first, newest if first is None else first)
            found: deque[LogRecord] = deque(maxlen=last)
            reported = clock()
            async for batch in reader.batches(begin, bounds.end):
                silence.reschedule(clock() + SILENCE_S)
                records = () if batch.is_control else batch.records
                found.extend(
                    one for one in records if begin <= one.offset < bounds.end and (wanted is None or wanted(one))
                )
                if clock() - reported > _REPORT_S:
                    reported = clock()
                    on_progress(batch.end, bounds.end)
            return bounds, found

    try:
        return run_with(ClusterClient.of(bootstrap, properties), read)
    except TimeoutError:
        reason = f"no response within {SILENCE_S:g} s"
        raise BrokerError(f"partition {partition} of {TOPIC} cannot be read: {reason}") from None
    except BadMessage as error:
        raise BrokerError(f"partition {partition} of {TOPIC} cannot be read: {error}") from error


_Owned = Mapping[str, PartitionSet]


def decisions(entries: Iterable[LogEntry], group: str) -> tuple[Decision, ...]:
    """Returns one decision for each generation in the log, oldest first. Generations without an assignment are not in
    the log. ``epoch`` is the term that wrote the generation, or 0 if the log no longer contains that term's claim."""
    found: list[Decision] = []
    before: GroupMetadata | None = None
    term = 0
    for one in entries:
        if isinstance(one.entry, Claim):
            term = one.entry.term
        if not isinstance(one.entry, GroupEntry) or one.entry.group != group:
            continue
        now = one.entry.value
        if now is not None and not (before is not None and before.generation_id == now.generation_id):
            found.append(_decision(before, now, term, one.timestamp_ms))
        before = now
    return tuple(found)


def _decision(before: GroupMetadata | None, now: GroupMetadata, term: int, written_ms: int) -> Decision:
    had, has = owned_in(before), owned_in(now)
    moves = {}
    for name in sorted(had.keys() | has.keys()):
        old, new = had.get(name, NO_PARTITIONS), has.get(name, NO_PARTITIONS)
        moves[name] = new - old, old - new
    gained, lost = PartitionSet.union(g for g, _ in moves.values()), PartitionSet.union(p for _, p in moves.values())
    why = _why(before, now, had, has)
    return Decision(
        generation=now.generation_id,
        epoch=term,
        reason="; ".join(words for _, words in why),
        assignor=now.protocol_name or "",
        decided_at_ms=now.state_since_ms if now.state_since_ms > 0 else written_ms,
        members=len(now.members),
        partitions=sum(map(len, has.values())),
        moved=len(gained & lost),
        started=len(gained),
        stopped=len(lost),
        moves={
            name: {kind: str(what) for kind, what in (("gained", more), ("lost", less)) if what}
            for name, (more, less) in moves.items()
            if more or less
        },
        causes=tuple(dict.fromkeys(cause for cause, _ in why if cause is not None)),
    )


def _why(before: GroupMetadata | None, now: GroupMetadata, had: _Owned, has: _Owned) -> list[tuple[Cause | None, str]]:
    """Describes the differences from the previous generation."""
    if before is None and now.generation_id > 1:
        return [(None, "earlier generations are no longer in the log")]
    old, new = _subscribed(before), _subscribed(now)
    why: list[tuple[Cause | None, str]] = []
    if joined := sorted(new.keys() - old.keys()):
        why.append((Cause.MEMBER_JOINED, f"{_named(joined)} joined"))
    if left := sorted(old.keys() - new.keys()):
        why += _gone(left, now.departed)
    if replaced := sorted(name for name in old.keys() & new.keys() if name in now.departed):
        why += _gone(replaced, now.departed)
    if changed := sorted(name for name in old.keys() & new.keys() if old[name] != new[name]):
        why.append((Cause.MEMBER_CHANGED, f"{_named(changed)} changed subscriptions"))
    if before is not None and before.members and now.members and before.protocol_name != now.protocol_name:
        why.append((Cause.ASSIGNOR_CHANGED, f"assignor {now.protocol_name} instead of {before.protocol_name}"))
    if not why and PartitionSet.union(had.values()) != PartitionSet.union(has.values()):
        why.append((Cause.TOPIC_CHANGED, "a topic changed, so different partitions are assigned"))
    return why or [(Cause.MEMBER_CHANGED, "a member rejoined")]


def _gone(names: Sequence[str], departed: Mapping[str, Departure]) -> list[tuple[Cause | None, str]]:
    """Says how members went. A record that another program wrote does not say it."""

    def said(name: str) -> tuple[Cause, str]:
        how = departed.get(name)
        return (CAUSES[how.kind], str(how)) if how is not None else (Cause.MEMBER_LEFT, "left or timed out")

    return [(cause, f"{_named(who)} {words}") for (cause, words), who in grouped(names, said).items()]


def _named(members: Sequence[str]) -> str:
    return f"{plural('member', len(members))} {', '.join(members)}"


def _members(group: GroupMetadata | None) -> dict[str, MemberMetadata]:
    """Returns the members by instance id, or by member id if they have none."""
    return {one.instance_id or one.member_id: one for one in (group.members.values() if group is not None else ())}


def _subscribed(group: GroupMetadata | None) -> dict[str, frozenset[str]]:
    """Returns each member's subscribed topics. They are unknown for members that are not consumers."""
    protocol = group.protocol_name if group is not None and group.protocol_type == CONSUMER else None
    return {name: subscribed_topics([one.metadata(protocol)]) for name, one in _members(group).items()}


def owned_in(group: GroupMetadata | None) -> dict[str, PartitionSet]:
    """Returns each member's partitions by its instance id, or by its member id if it has none. Returns an empty mapping
    if the members are not consumers."""
    if group is None or group.protocol_type != CONSUMER:
        return {}
    return {name: owned_by(one.assignment) for name, one in _members(group).items()}


def owned_by(data: bytes) -> PartitionSet:
    """Returns the partitions of a ConsumerProtocol assignment, or no partitions if it cannot be decoded."""
    found = assignment(data)
    return PartitionSet.of(
        (topic.topic, partition)
        for topic in (found.assigned_partitions if found else ())
        for partition in topic.partitions
        if 0 <= partition <= MAX_PARTITION
    )


def read_groups_log(
    instances: AskedInstances,
    partition: int,
    wanted: Callable[[LogRecord], bool] | None,
    on_progress: OnProgress,
    *,
    first: int | None = None,
    last: int | None = None,
) -> tuple[LogBounds, Sequence[LogRecord]]:
    """Reads one partition of the groups log with :func:`read_log`, from the brokers registered in ZooKeeper."""

    def left_out(broker: Unreadable) -> None:
        on_progress(f"skipped a broker: {broker.path} cannot be read: {broker.reason}")

    return read_log(
        bootstrap_servers(instances.store, instances.properties, left_out),
        instances.properties,
        partition,
        wanted,
        lambda offset, end: on_progress(f"read up to offset {offset} of {end}"),
        first=first,
        last=last,
    )
