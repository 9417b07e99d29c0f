"""Lists the groups of every kind, and reads a frame of the live view."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from msgspec import UNSET, UnsetType

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import KafkaCoordError, MalformedValue, NotFound, Timeout
from kafka_coord.groups.client_assigned import (
    ClientAssignedVerbs,
    NativeVerbs,
    SharedListing,
    described,
    list_client_groups,
    with_offsets,
)
from kafka_coord.groups.cluster import Cluster, read_cluster
from kafka_coord.groups.group import (
    AnswerDocument,
    Document,
    GroupDescription,
    GroupRow,
    LagTotal,
    LogRanges,
    OffsetRow,
    OfLag,
    Partitions,
    WaitingCommand,
)
from kafka_coord.groups.instances import AskedInstances, Presences
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.managed import ManagedVerbs, describe_snapshots, group_row, snapshot_of
from kafka_coord.groups.requests import Acting, ask
from kafka_coord.groups.reset import Resettable
from kafka_coord.groups.state import read_groups, read_waiting
from kafka_coord.groups.verbs import Contact, GroupOffsets, GroupVerbs, OnOffsets
from kafka_coord.model import GroupKind, PartitionSet, Request, RequestType, TopicPartition
from kafka_coord.model.names import is_legal
from kafka_coord.model.sequences import grouped
from kafka_coord.zk.kinds import read_kinds

DETAILED = 20
"""A frame reads the offsets of at most this many groups: those that rebalance first, then those furthest behind."""

_BUSIEST_FIRST = (GroupState.REBALANCING, GroupState.PAUSED, GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD)


class OwnerRow(OfLag, kw_only=True, frozen=True):
    """What one consumer owns"""

    group: str
    consumer: str | None
    """``null`` for partitions without an owner."""
    owned: Partitions
    stopping: Partitions
    pending: int
    """The number of the consumer's unacknowledged commands."""


@dataclass(frozen=True, slots=True)
class Overview:
    """One frame. ``lags`` and ``owners`` cover only the groups that were read in detail. ``note`` says what could not
    be read, and why."""

    cluster: Cluster
    groups: tuple[GroupRow, ...]
    lags: Mapping[str, LagTotal]
    owners: tuple[OwnerRow, ...]
    waiting: tuple[WaitingCommand, ...]
    note: str

    @property
    def left_out(self) -> int:
        """The number of groups that were not read in detail."""
        return len(self.groups) - len(self.lags)


def read_overview(
    instances: AskedInstances,
    names: Sequence[str],
    log_ranges: LogRanges | None,
    service: LagService,
    furthest_behind: Sequence[str] = (),
) -> Overview:
    """Reads the groups in ``names``, or all groups if ``names`` is empty. In detail, reads those that rebalance, then
    those that are ``furthest_behind``, then the busiest of the others. A named group need not exist yet."""
    store = instances.store
    cluster = read_cluster(store)
    snapshots = read_groups(store, [name for name in names if is_legal(name)] if names else cluster.groups, cluster)
    listed = list_client_groups(instances)
    # If two groups have the same name, show the managed group.
    clients = {
        one.group: one for one in listed.groups if one.group not in snapshots and one.group in (names or [one.group])
    }
    rows = [group_row(snapshot, cluster) for snapshot in snapshots.values()]
    rows += [row for row in listed.rows if row.group in clients]
    places = {name: place for place, name in enumerate(furthest_behind)}
    ranked = selected(rows, sort="state")
    ranked.sort(key=lambda row: (row.state is not GroupState.REBALANCING, places.get(row.group, len(places))))
    detailed = [row.group for row in ranked[:DETAILED]]
    managed = {group: snapshots[group] for group in detailed if group in snapshots}
    waiting = read_waiting(store, snapshots)
    theirs = with_offsets(instances, [clients[group] for group in detailed if group in clients])
    found = [
        *describe_snapshots(store, cluster, managed, log_ranges, waiting=waiting),
        *described(theirs, cluster.topics, log_ranges),
    ]
    found.sort(key=lambda one: one.group)
    if log_ranges is not None:
        found = service.described(found, round(store.clock.time() * 1000), sampled=True)
    return Overview(
        cluster,
        tuple(sorted(rows, key=lambda row: row.group)),
        {one.group: one.lag for one in found},
        tuple(row for one in found for row in _owners(one)),
        waiting.commands,
        "; ".join(dict.fromkeys(filter(None, [*(one.lag_note for one in found), *listed.missing]))),
    )


def _owners(found: GroupDescription) -> Iterator[OwnerRow]:
    of_owner = grouped(found.offsets, lambda row: row.owner)
    pending: dict[str | None, int] = {member.consumer: len(member.pending) for member in found.members}
    members = [member.consumer for member in found.members if member.registered]
    for consumer in dict.fromkeys([*members, *of_owner]):
        rows = of_owner.get(consumer, [])
        stopping = PartitionSet.of(row.tp for row in rows if row.holding == "stopping")
        owned = PartitionSet.of(row.tp for row in rows) - stopping
        yield OwnerRow(
            group=found.group,
            consumer=consumer,
            owned=owned,
            stopping=stopping,
            pending=pending.get(consumer, 0),
            **LagTotal.of_rows(rows).fields(),
        )


@dataclass(frozen=True, slots=True)
class AllGroups:
    """The groups of all kinds. ``rows`` are sorted by descending lag, then by name. ``lag_note`` says why some lags
    are unknown, and ``missing`` says which groups, or whose offsets, cannot be shown, and why."""

    cluster: Cluster
    rows: tuple[GroupRow, ...]
    lag_note: str
    missing: tuple[str, ...]


class GroupDirectory:
    """All groups."""

    def __init__(self, instances: AskedInstances) -> None:
        self.store, self._instances = instances.store, instances
        self._managed, listing = ManagedVerbs(instances), SharedListing(instances)
        self._native = NativeVerbs(instances, listing)
        kinds = self._managed, ClientAssignedVerbs(instances, listing), self._native
        self._of: dict[str, GroupVerbs] = {one.kind: one for one in kinds}
        self.new: GroupVerbs = self._managed
        """The groups of the kind that an operator can create."""

    def of(self, kind: str) -> GroupVerbs:
        return self._of[GroupKind(kind)]

    def kinds(self, wanted: str | None = None) -> Sequence[GroupVerbs]:
        """Returns the groups of the ``wanted`` kind, or those of each kind."""
        return [self.of(wanted)] if wanted is not None else list(self._of.values())

    def find(self, group: str, wanted: str | None = None) -> GroupVerbs:
        """Returns the groups of the ``wanted`` kind or, if that is ``None``, of the recorded kind. A group without a
        record, or with an unreadable one, is managed if it is in ZooKeeper. Otherwise it can only be native, if any
        instance has ever served Kafka clients. Raises :class:`NotFound`, which lists the existing groups,
        :class:`InvalidName`, and :class:`~kafka_coord.errors.MalformedValue`."""
        try:
            record = read_kinds(self.store, [group]).get(group)
        except MalformedValue:
            if not self._managed.exists([group])[group]:
                raise
            record = None
        kind = wanted or (record.kind if record is not None else None)
        if kind is not None:
            self.of(kind).require_name(group)
            return self.of(kind)
        if self._managed.exists([group])[group]:
            return self._managed
        if self._instances.directory().is_used:
            return self._native
        self._managed.require_name(group)
        snapshot_of(self.store, group)
        raise NotFound(f"no group {group!r}")

    def may_create(self, group: str, wanted: str | None) -> bool:
        """Returns whether the group does not exist, and could be created (see :attr:`new`), of the ``wanted`` kind."""
        kinds = self.kinds(wanted)
        return self.new in kinds and is_legal(group) and not any(one.exists([group])[group] for one in kinds)

    def require_coordinator(self, group: str) -> int:
        """Returns the broker id of the instance that coordinates the group, or would if it were client-assigned. Raises
        :class:`BrokerError`."""
        return self._instances.directory().coordinator_of(group)[0]

    def resettable(
        self, wanted: Sequence[tuple[str, GroupVerbs]], rule: str, acting: Acting, new: Collection[str] = ()
    ) -> list[Resettable]:
        """Reads what a reset of the ``wanted`` groups needs, several at a time. ``rule`` is recorded in the history.
        The groups in ``new`` do not exist yet."""
        named = grouped([one for one in wanted if one[0] not in new], lambda one: one[1])
        found = {groups: groups.resettable([name for name, _ in them], rule, acting) for groups, them in named.items()}
        created = self._managed.creatable(new, rule, acting)
        return [created.get(name) or found[groups][name] for name, groups in wanted]

    def names(self, wanted: str | None = None) -> tuple[list[tuple[str, GroupVerbs]], list[str]]:
        """Lists every group (of the ``wanted`` kind, unless that is ``None``), sorted by name. Also returns messages
        about groups that cannot be listed."""
        found: list[tuple[str, GroupVerbs]] = []
        missing: list[str] = []
        for groups in self.kinds(wanted):
            names, unlisted = groups.names()
            found += [(name, groups) for name in names]
            missing += unlisted
        return sorted(found, key=lambda one: (one[0], one[1].kind)), list(dict.fromkeys(missing))

    def list(self, log_ranges: LogRanges | None = None, on_offsets: OnOffsets | None = None) -> AllGroups:
        """Lists every group. If ``log_ranges`` is given, calls it once for each kind of group, adds the lags, and
        passes each group's partitions to ``on_offsets``."""
        cluster = read_cluster(self.store)
        listed = [groups.list(cluster, log_ranges, on_offsets) for groups in self.kinds()]
        rows = sorted((row for one in listed for row in one.rows), key=_largest_first)
        notes = (one.lag_note for one in listed if one.lag_note)
        missing = dict.fromkeys(text for one in listed for text in one.missing)  # kinds are listed by the same requests
        return AllGroups(cluster, tuple(rows), next(notes, ""), tuple(missing))

    def offsets(
        self, kinds: Mapping[str, GroupKind], cluster: Cluster, log_ranges: LogRanges, resting: Collection[str] = ()
    ) -> tuple[Sequence[GroupOffsets], Sequence[str]]:
        """Reads what is sampled of the groups in ``kinds``, like :meth:`GroupVerbs.offsets`."""
        found: list[GroupOffsets] = []
        notes: list[str] = []
        for kind, names in grouped(kinds, kinds.__getitem__).items():
            theirs, unknown = self.of(kind).offsets(names, cluster, log_ranges, resting)
            found += theirs
            notes += unknown
        return found, notes

    def describe(
        self,
        names: Sequence[str],
        wanted: str | None,
        log_ranges: LogRanges | None,
        presences: Presences | None,
    ) -> tuple[Sequence[GroupDescription], Sequence[KafkaCoordError]]:
        """Describes the named groups in order or, if ``names`` is empty, every group, sorted by name. Also returns an
        error for each group that does not exist or cannot be shown."""
        found: list[GroupDescription] = []
        absent: list[KafkaCoordError] = []
        named: dict[GroupVerbs, list[str]] = {}
        for name in dict.fromkeys(names):
            try:
                named.setdefault(self.find(name, wanted), []).append(name)
            except NotFound as error:
                absent.append(error)
        for groups in self.kinds(wanted):
            if not names or groups in named:
                described, without = groups.describe_several(named.get(groups), log_ranges, presences)
                found += described
                absent += without
        order = {name: at for at, name in enumerate(names)}
        return sorted(found, key=lambda one: (order.get(one.group, 0), one.group, one.kind)), absent

    def convert(self, group: str, to: str, acting: Acting) -> AnswerDocument:
        """Has the instance that coordinates the group convert it. Raises :class:`RequestRefused`, :class:`Timeout` and
        :class:`BrokerError`."""
        coordinator = self.require_coordinator(group)
        request = Request(RequestType.CONVERT_GROUP, group=group, to=GroupKind(to), reason=acting.reason, by=acting.by)
        try:
            answer = ask(self.store, request, acting.timeout_s, acting.on_progress)
        except Timeout as error:
            raise Timeout(f"{error}; instance {coordinator} coordinates the group and must convert it") from error
        self.of(to).converted(group, acting)
        return AnswerDocument.of(answer)

    def returning(self, groups: Collection[str] | None = None) -> Sequence[str]:
        """Returns those of the groups (by default, of all) that were given back, and whose members have not all
        rejoined yet."""
        return sorted(name for name, one in read_kinds(self.store, groups).items() if one.is_returning)


class FoundConsumerDocument(Document, frozen=True):
    group: str
    consumer: str
    host: str | None
    client: str | None


class SearchDocument(Document, frozen=True):
    """``kafka-coord search TEXT -o json``"""

    groups: list[str]
    consumers: list[FoundConsumerDocument]
    topics: list[str]
    left_out: int
    """The number of further groups, consumers and topics."""
    notes: list[str]
    """Which groups cannot be shown, and why."""

    @classmethod
    def of(
        cls,
        text: str,
        groups: Iterable[str],
        topics: Iterable[str],
        members: Mapping[str, Mapping[str, Contact | None]],
        *,
        notes: Sequence[str],
        most: int | None = None,
    ) -> Self:
        """Returns the first groups, topics and consumers whose names, hosts or client ids contain ``text``, in any
        case. ``members`` are those of each group."""
        text = text.lower()
        found_groups = sorted(name for name in groups if text in name.lower())
        found_topics = sorted(name for name in topics if text in name.lower())
        consumers = [
            FoundConsumerDocument(group=group, consumer=one, host=contact.host or None, client=contact.client or None)
            for group, theirs in sorted(members.items())
            for one, contact in sorted((name, known or Contact()) for name, known in theirs.items())
            if any(text in name.lower() for name in (one, *contact))
        ]
        every: tuple[Sequence[object], ...] = (found_groups, consumers, found_topics)
        left_out = sum(max(0, len(found) - most) for found in every) if most is not None else 0
        return cls(found_groups[:most], consumers[:most], found_topics[:most], left_out, list(notes))


def search(directory: GroupDirectory, text: str) -> SearchDocument:
    """Searches the groups of every kind."""
    described, absent = directory.describe((), None, None, None)
    members = {
        one.group: {member.consumer: Contact(member.host or "", member.client or "") for member in one.members}
        for one in described
    }
    notes = list(dict.fromkeys(map(str, absent)))
    return SearchDocument.of(text, members, read_cluster(directory.store).topics, members, notes=notes)


class TopicPartitionDocument(Document, frozen=True):
    partition: int
    start_offset: int | None
    end_offset: int | None


class TopicReaderDocument(OfLag, kw_only=True, frozen=True):
    """A group that reads a topic, or has offsets of it"""

    group: str
    kind: GroupKind
    offsets: list[OffsetRow]


class TopicReadersDocument(Document, frozen=True):
    """``kafka-coord topics describe TOPIC -o json``"""

    topic: str
    partitions: list[TopicPartitionDocument]
    groups: list[TopicReaderDocument]
    """Those furthest behind in time first."""
    notes: list[str]
    """What is unknown, and why."""
    unmeasured: int
    """The number of groups of which it is not known yet whether they read the topic."""


def read_topic(
    directory: GroupDirectory,
    topic: str,
    log_ranges: LogRanges,
    service: LagService,
    known: tuple[Mapping[str, GroupKind], Sequence[str]] | None = None,
    unmeasured: int = 0,
) -> TopicReadersDocument:
    """Reads who reads the topic, among the ``known`` groups, which come with messages about those that are missing, or,
    by default, among all. Raises :class:`NotFound`."""
    cluster = read_cluster(directory.store)
    if topic not in cluster.topics:
        raise NotFound(f"no topic {topic!r}")
    if known is None:
        listed, unlisted = directory.names()
        known = {name: groups.kind for name, groups in listed}, unlisted  # a managed group comes after its namesake
    kinds, missing = known
    logs, note = log_ranges(PartitionSet({topic: cluster.topics[topic].partitions}))
    found, unknown = directory.offsets(kinds, cluster, lambda _: (logs, ""))
    of_topic = (replace(one, rows=tuple(row for row in one.rows if row.topic == topic)) for one in found)
    readers = service.judged([one for one in of_topic if one.rows], round(directory.store.clock.time() * 1000))
    totals = [(one, LagTotal.of_rows(one.rows)) for one in readers]
    totals.sort(key=lambda one: (*age_order(one[1].lag_s), one[0].group))
    return TopicReadersDocument(
        topic=topic,
        partitions=[
            TopicPartitionDocument(
                partition=number,
                start_offset=log.start if log is not None else None,
                end_offset=log.end if log is not None else None,
            )
            for number in sorted(cluster.topics[topic].partitions)
            for log in [logs.get(TopicPartition(topic, number))]
        ],
        groups=[
            TopicReaderDocument(
                group=one.group,
                kind=one.kind,
                **total.fields(),
                offsets=list(one.rows),
            )
            for one, total in totals
        ],
        notes=list(dict.fromkeys(filter(None, [note, *missing, *unknown]))),
        unmeasured=unmeasured,
    )


def _largest_first(row: GroupRow) -> tuple[int, int, str, str]:
    return -(row.lag or 0), -(row.gone or 0), row.group, row.kind


def age_order(lag_s: float | UnsetType | None) -> tuple[bool, bool, float]:
    """Returns the key that sorts the largest age first. An unknown age comes before none."""
    age_s = None if lag_s is UNSET else lag_s
    return age_s == 0, age_s is None, -(age_s or 0)


SORTS: Mapping[str, Callable[[GroupRow], Any]] = {
    "lag": _largest_first,
    "lag-s": lambda row: (*age_order(row.lag_s), *_largest_first(row)),
    "state": lambda row: (_BUSIEST_FIRST.index(row.state), row.group),
    "members": lambda row: (-row.members, row.group),
    "name": lambda row: (row.group, row.kind),
}
"""The orders of a list of groups: the worst, the busiest and the largest first."""


def selected(
    rows: Iterable[GroupRow], name: str = "", states: Collection[str] = (), sort: str = "name"
) -> list[GroupRow]:
    """Returns the groups whose names contain ``name`` and that are in one of the ``states``, whatever the case."""
    text, wanted = name.lower(), {state.lower() for state in states}
    found = (row for row in rows if text in row.group.lower() and (not wanted or row.state.lower() in wanted))
    return sorted(found, key=SORTS.get(sort, SORTS["name"]))
