"""Copies committed offsets from one store to another: the brokers, the instances' groups log, or ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.errors import BrokerError, RequestRefused, Timeout
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.offsets import read_all_committed
from kafka_coord.groups.requests import ask, record
from kafka_coord.groups.reset import IN_ONE_REQUEST
from kafka_coord.groups.state import read_groups
from kafka_coord.kafka.client import run_with
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.kafka.connection import of_group
from kafka_coord.kafka.coordinators import (
    LISTS_A_PART,
    Ask,
    Coordinators,
    by_topic,
    committed_offsets,
    fetch_offsets,
    lists_all_groups,
    refused_offsets,
    require_no_error,
    told_by,
)
from kafka_coord.model import GroupKind, Request, RequestType, TopicPartition
from kafka_coord.model.histories import offsets_change
from kafka_coord.model.operations import COORDINATED
from kafka_coord.model.sequences import parts, some
from kafka_coord.wire.messages import message
from kafka_coord.zk.kinds import AT_REST, GroupRecord, read_kinds
from kafka_coord.zk.store import Store

T = TypeVar("T")

_ANSWER_S = 10.0
_LIST, _DESCRIBE, _COMMIT = 1, 1, 3
"""Versions that every broker from 0.11 to 3.9 supports."""
_FETCH, _FETCH_STABLE = 3, 7
"""Version 7 can require stable offsets, so that the broker reports an open transaction instead of stale offsets.
Brokers support it from 2.5 on."""


@dataclass(frozen=True, slots=True)
class CopyPosition:
    """A committed offset with its metadata."""

    offset: int
    metadata: str = ""


Positions = Mapping[TopicPartition, CopyPosition]


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """A group's members and offsets in one store. ``problem`` says why they could not be read; otherwise it is
    empty."""

    members: tuple[str, ...] = ()
    positions: Positions = field(default_factory=dict)
    problem: str = ""


class Existing(NamedTuple):
    """The partitions that exist, and the topics of which nothing is known, each with the reason."""

    partitions: AbstractSet[TopicPartition]
    hidden: Mapping[str, str]


class OffsetStore(Protocol):
    """The source or the target of a copy."""

    name: str

    def groups(self) -> list[str]:
        """Lists all groups. Raises :class:`BrokerError` if it cannot list them all."""

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        """Reads each of the groups. A group that does not exist has no members and no positions."""

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        """Commits the ``wanted`` offsets. Returns the problems by group."""


class KafkaOffsetStore:
    """A store that is accessed over Kafka's protocol. ``bootstrap`` lists addresses of brokers or instances.

    Does not use confluent-kafka, which reads beyond the end of an offset's metadata and writes one byte too many.
    """

    def __init__(self, name: str, bootstrap: str, properties: Mapping[str, str], timeout_s: float) -> None:
        self.name, self._timeout_s = name, timeout_s
        self._bootstrap, self._properties = bootstrap, properties

    def groups(self) -> list[str]:
        async def list_all(cluster: ClusterClient) -> list[str]:
            async def list_at(broker: Any) -> list[str]:
                ask = cluster.to((broker.host, broker.port)).ask
                if not await lists_all_groups(ask):
                    raise BrokerError(f"cannot list all groups: {LISTS_A_PART}; name the groups")
                response = await ask("ListGroups", _LIST, message("ListGroupsRequest")(), _ANSWER_S)
                if response.error_code:
                    raise BrokerError(f"cannot list all groups: broker {broker.node_id}: {named(response.error_code)}")
                return [group.group_id for group in response.groups]

            listed = await asyncio.gather(*map(list_at, (await cluster.metadata([])).brokers))
            return sorted({group for groups in listed for group in groups})

        return self._run(list_all)

    def existing(self, topics: AbstractSet[str]) -> Existing:
        """Returns what exists of the topics. A topic that is hidden from this client is not gone."""
        told = self._run(lambda cluster: cluster.metadata(sorted(topics))).topics if topics else ()
        hidden = dict.fromkeys(topics, "the brokers do not mention it")
        hidden |= {topic.name: named(topic.error_code) for topic in told}
        for topic in told:
            if topic.error_code in {Error.NONE, Error.UNKNOWN_TOPIC_OR_PARTITION}:
                del hidden[topic.name]
        found = {TopicPartition(topic.name, one.partition_index) for topic in told for one in topic.partitions}
        return Existing(found, hidden)

    def addresses(self) -> list[str]:
        """Returns the addresses that the brokers or instances advertise to their clients."""
        return [f"{broker.host}:{broker.port}" for broker in self._run(ClusterClient.metadata).brokers]

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        async def read_each(cluster: ClusterClient) -> dict[str, GroupPositions]:
            newest = await cluster.with_any(
                lambda one: one.newest_version("OffsetFetch", (_FETCH, _FETCH_STABLE), _ANSWER_S)
            )
            version = _FETCH_STABLE if newest == _FETCH_STABLE else _FETCH
            coordinators = Coordinators(cluster, told_by(cluster), _ANSWER_S, is_patient=True)
            found, problems = await coordinators.each(groups, partial(_read, version), self._timeout_s)
            return found | {group: GroupPositions(problem=problem) for group, problem in problems.items()}

        return self._run(read_each)

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        async def commit(group: str, ask: Ask) -> None:
            request = by_topic(
                "OffsetCommitRequest",
                group,
                wanted[group],
                lambda one: {"committed_offset": one.offset, "committed_metadata": one.metadata},
            )
            for topic in (await ask("OffsetCommit", _COMMIT, request)).topics:
                for part in topic.partitions:
                    require_no_error(part.error_code, f"{topic.name}-{part.partition_index}")

        async def write_each(cluster: ClusterClient) -> dict[str, str]:
            coordinators = Coordinators(cluster, told_by(cluster), _ANSWER_S, is_patient=True)
            return (await coordinators.each(list(wanted), commit, self._timeout_s))[1]

        return self._run(write_each)

    def _run(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """Runs ``work`` and returns its result. Raises :class:`BrokerError` with the name of this store."""
        try:
            return run_with(ClusterClient.of(self._bootstrap, self._properties), work)
        except BrokerError as error:
            raise BrokerError(f"{self.name}: {error}") from error


async def _read(version: int, group: str, ask: Ask) -> GroupPositions:
    """Reads a group. A group that does not exist has no members and no positions."""
    described = of_group(
        (await ask("DescribeGroups", _DESCRIBE, message("DescribeGroupsRequest")(groups=(group,)))).groups, group
    )
    require_no_error(described.error_code)
    (fetched,) = await fetch_offsets(ask, [group], version, require_stable=version == _FETCH_STABLE)
    code, where = refused_offsets(fetched)
    require_no_error(code, where)
    positions = {
        tp: CopyPosition(one.committed_offset, one.metadata or "") for tp, one in committed_offsets(fetched).items()
    }
    return GroupPositions(tuple(sorted(member.client_id for member in described.members)), positions)


class ZooKeeperOffsetStore:
    """The offsets of managed groups. Writes go through the elected coordinator, as with ``groups reset-offsets``."""

    name = "ZooKeeper"

    def __init__(self, store: Store, timeout_s: float, by: str) -> None:
        self._store, self._timeout_s, self._by = store, timeout_s, by

    def groups(self) -> list[str]:
        return sorted(read_cluster(self._store).groups)

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        cluster = read_cluster(self._store)
        snapshots = read_groups(self._store, list(groups), cluster)
        committed = read_all_committed(self._store, snapshots, cluster.topics)
        return {
            group: GroupPositions(
                tuple(sorted(snapshots[group].observation.members)),
                {tp: CopyPosition(offset) for tp, offset in committed[group].offsets.items()},
                "some of its offsets are unreadable" if committed[group].unreadable else "",
            )
            if group in snapshots
            else GroupPositions()
            for group in groups
        }

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        problems, before = {}, self.read(list(wanted))
        for group, positions in wanted.items():
            try:
                for part in parts([(tp, one.offset) for tp, one in positions.items()], IN_ONE_REQUEST):
                    request = Request(
                        RequestType.RESET_OFFSETS,
                        group=group,
                        offsets=dict(part),
                        reason=_IMPORT,
                        by=self._by,
                        change=offsets_change(_offsets(before[group].positions), dict(part)),
                    )
                    ask(self._store, request, self._timeout_s, lambda _: None)
            except (RequestRefused, Timeout) as error:
                problems[group] = str(error)
        return problems

    def record(self, group: str, before: Positions, after: Positions) -> None:
        """Has the cluster's history record an import into a client-assigned group."""
        change = offsets_change(_offsets(before), _offsets(after))
        record(self._store, "reset-offsets", group, by=self._by, reason=_IMPORT, change=change)


_IMPORT = "import of the brokers' offsets"


def _offsets(positions: Positions) -> dict[TopicPartition, int]:
    return {tp: one.offset for tp, one in positions.items()}


class OwnOffsetStore:
    """The offsets of all groups that instances coordinate. If a managed and a client-assigned group share a name, uses
    the managed group."""

    name = "the instances"

    def __init__(self, log: KafkaOffsetStore, managed: ZooKeeperOffsetStore) -> None:
        self._log, self._managed = log, managed

    def groups(self) -> list[str]:
        return sorted({*self._log.groups(), *self._managed.groups()})

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        here, others = self._parted(groups)
        return self._managed.read(here) | self._log.read(others)

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        here, others = self._parted(wanted)
        problems = self._managed.write({group: wanted[group] for group in here})
        before = self._log.read(others)
        of_log = self._log.write({group: wanted[group] for group in others})
        for group in others:
            if group not in of_log:
                self._managed.record(group, before[group].positions, wanted[group])
        return problems | of_log

    def _parted(self, groups: Iterable[str]) -> tuple[list[str], list[str]]:
        known = set(self._managed.groups())
        named = list(groups)
        return [one for one in named if one in known], [one for one in named if one not in known]


_AT_ONCE = 500
"""The number of groups that are read or written between two progress reports."""

OnProgress = Callable[[str], None]


def with_namesakes(store: Store, groups: Sequence[str]) -> list[str]:
    """Returns those of the groups whose namesakes at the brokers are other groups: not the native ones, and not those
    that were taken over, whose namesakes hold nothing but the fence (ADR 60)."""
    managed = {name: GroupRecord(GroupKind.MANAGED) for name in read_cluster(store).groups}
    records = managed | read_kinds(store, groups)
    found = {one: records.get(one, AT_REST) for one in groups}
    return [one for one, record in found.items() if record.kind in COORDINATED and not record.fenced]


class CopyVerdict(StrEnum):
    """The decision about one partition's offset."""

    COPY = "copy"
    SAME = "same"
    AHEAD = "target is ahead"
    """The target's offset is later, so a copy would make the group read records again."""
    GONE = "no such partition"


@dataclass(frozen=True, slots=True)
class Row:
    """One partition, with its offsets at the source and at the target."""

    partition: TopicPartition
    source: CopyPosition
    target: CopyPosition | None
    verdict: CopyVerdict


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """The planned copy of one group. ``problem`` says why its offsets will not be written. ``warning`` is for the
    operator."""

    group: str
    rows: tuple[Row, ...] = ()
    problem: str = ""
    warning: str = ""

    def wanted(self) -> Positions:
        return {row.partition: row.source for row in self.rows if row.verdict is CopyVerdict.COPY and not self.problem}


def compare(
    source: OffsetStore,
    target: OffsetStore,
    groups: Sequence[str],
    look_up: Callable[[AbstractSet[str]], Existing],
    on_progress: OnProgress,
    *,
    overwrite: bool = False,
) -> tuple[GroupCopy, ...]:
    """Returns the planned copy of each group. ``look_up`` says what exists of topics. With ``overwrite``, the plan also
    replaces later offsets at the target."""
    found: list[GroupCopy] = []
    for part in parts(groups, _AT_ONCE):
        here, there = source.read(part), target.read(part)
        existing = look_up({tp.topic for one in here.values() for tp in one.positions})
        found += [
            _compare_group(group, source, target, here[group], there[group], existing, overwrite) for group in part
        ]
        if len(groups) > _AT_ONCE:
            on_progress(f"compared {len(found):,} of {len(groups):,} groups")
    return tuple(found)


def _compare_group(
    group: str,
    source: OffsetStore,
    target: OffsetStore,
    here: GroupPositions,
    there: GroupPositions,
    existing: Existing,
    overwrite: bool,
) -> GroupCopy:
    for place, seen in ((source, here), (target, there)):
        if seen.problem:
            return GroupCopy(group, problem=f"{place.name}: {seen.problem}")
    if hidden := sorted(existing.hidden.keys() & {tp.topic for tp in here.positions}):
        why = f"nobody can tell whether topic {some(hidden, 3)} exists ({existing.hidden[hidden[0]]})"
        return GroupCopy(group, problem=f"the brokers: {why}")
    rows = tuple(
        Row(
            tp,
            position,
            there.positions.get(tp),
            _verdict(tp, position, there.positions.get(tp), existing.partitions, overwrite),
        )
        for tp, position in sorted(here.positions.items())
    )
    if there.members:
        problem = f"{target.name}: it has members ({some(there.members, 3)}); stop them first"
        return GroupCopy(group, rows, problem)
    warning = ""
    if here.members:
        warning = f"{source.name}: its members ({some(here.members, 3)}) may commit more; stop them and copy again"
    return GroupCopy(group, rows, warning=warning)


def _verdict(
    tp: TopicPartition,
    source: CopyPosition,
    target: CopyPosition | None,
    existing: AbstractSet[TopicPartition],
    overwrite: bool,
) -> CopyVerdict:
    if tp not in existing:
        return CopyVerdict.GONE
    if target is not None and target.offset == source.offset:
        return CopyVerdict.SAME
    if target is not None and target.offset > source.offset and not overwrite:
        return CopyVerdict.AHEAD
    return CopyVerdict.COPY


def copy(target: OffsetStore, found: Sequence[GroupCopy], on_progress: OnProgress) -> dict[str, str]:
    """Writes the planned offsets and reads them back from the target. Returns problems by group. Safe to repeat."""
    due = [one for one in found if one.wanted()]
    problems: dict[str, str] = {}
    done = 0
    for part in parts(due, _AT_ONCE):
        problems |= target.write({one.group: one.wanted() for one in part})
        there = target.read([one.group for one in part])
        done += len(part)
        for one in part:
            if one.group not in problems and (wrong := _unequal(one, there[one.group])):
                problems[one.group] = f"{target.name}: after the write, {wrong}"
        on_progress(f"copied and read back {done:,} of {len(due):,} groups")
    return problems


def _unequal(one: GroupCopy, seen: GroupPositions) -> str:
    if seen.problem:
        return f"it cannot be read back: {seen.problem}"
    for tp, position in one.wanted().items():
        there = seen.positions.get(tp)
        if there is None or there.offset != position.offset:
            return f"{tp} has offset {there.offset if there else 'none'} instead of {position.offset}"
    return ""
