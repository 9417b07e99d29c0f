"""Reads and changes client-assigned and native groups, by asking the instances over Kafka's protocol."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from msgspec import structs

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.metadata import CONSUMER
from kafka_coord.coordinator.plan.reasons import plural
from kafka_coord.coordinator.steps import AT_REST, GroupState
from kafka_coord.errors import BrokerError, KafkaCoordError, MalformedValue, NoNode, NotFound, Timeout
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.groups.cluster import Cluster, read_cluster, read_cluster_history
from kafka_coord.groups.group import (
    AnswerDocument,
    GroupDescription,
    GroupRow,
    LogRanges,
    MemberRow,
    Unowned,
)
from kafka_coord.groups.instances import (
    AskedInstances,
    InstanceDirectory,
    Presences,
    Silent,
    delete_group,
    delete_offsets,
    evict_members,
    not_evicted,
    write_offsets,
)
from kafka_coord.groups.log import about_group, decisions, entry_of, owned_by, read_groups_log
from kafka_coord.groups.offsets import Committed, all_partitions, rows_of
from kafka_coord.groups.requests import Acting, OnProgress, record
from kafka_coord.groups.reset import Resettable
from kafka_coord.groups.verbs import Contact, Convertible, DryRun, GroupOffsets, GroupVerbs, ListedGroups, OnOffsets
from kafka_coord.kafka.connection import of_group
from kafka_coord.kafka.coordinators import (
    LISTS_A_PART,
    Ask,
    committed_offsets,
    fetch_offsets,
    lists_all_groups,
    refused_offsets,
    unless_moving,
)
from kafka_coord.model import GroupKind, Mode, PartitionSet, TopicInfo, TopicPartition, Unreadable
from kafka_coord.model.histories import Trail, change_to_group, offsets_change
from kafka_coord.model.offsets import LogRange
from kafka_coord.model.operations import COORDINATED
from kafka_coord.model.sequences import grouped, parts, some
from kafka_coord.wire.consumer_protocol import assignment, subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import GroupRecord, read_kinds
from kafka_coord.zk.store import Store

_LIST, _DESCRIBE, _DESCRIBE_CONSUMERS = 5, 5, (0, 1)
_IN_ONE_REQUEST = 200
_LISTED_FOR_S = 1.0
_AT_ONCE = 8
"""The number of groups that a reset reads at the same time."""
_LOOK_AGAIN_S = 0.25
_DEAD = "Dead"
MOST_NAMED = 20
"""A message names at most this many groups."""
_STATES = {
    "Stable": GroupState.STABLE,
    "PreparingRebalance": GroupState.REBALANCING,
    "CompletingRebalance": GroupState.REBALANCING,
    "Empty": GroupState.EMPTY,
    "Assigning": GroupState.REBALANCING,
    "Reconciling": GroupState.REBALANCING,
}
_STATUS = {
    "Stable": "every member knows its assignment",
    "PreparingRebalance": "PreparingRebalance: waiting for its members to join",
    "CompletingRebalance": "CompletingRebalance: waiting for the group leader's assignment",
    "Empty": "no members; offsets are kept until their retention ends",
    "Assigning": "Assigning: the broker computes the assignment",
    "Reconciling": "Reconciling: members give up or take partitions",
}
_CONSUMERS = frozenset({"", "classic", "consumer"})
"""The types of groups that are shown. Brokers before 3.8 name none."""
ONLY_IN_KAFKA = "see Kafka's own tools"
OFFSETS_TOPIC = "__consumer_offsets"
"""The topic in which the brokers store native groups."""


ASKED = (GroupKind.CLIENT_ASSIGNED, GroupKind.NATIVE)
"""The kinds of groups that instances are asked about."""


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """A client-assigned or native group, as described by its coordinator. ``kafka_state`` is Kafka's name for its
    state. ``subscriptions`` are the topics of each member, in any order, or ``None`` if they are unknown. ``problem``
    says why the committed offsets are unknown, or is ``""``. ``once_subscribed`` are the topics that the last members
    of an empty group read, as far as its coordinator says: a broker does not."""

    group: str
    coordinator: int
    kafka_state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberRow, ...]
    subscriptions: tuple[frozenset[str] | None, ...]
    committed: Mapping[TopicPartition, int]
    unreadable: tuple[Unreadable, ...] = ()
    problem: str = ""
    kind: GroupKind = GroupKind.CLIENT_ASSIGNED
    once_subscribed: frozenset[str] = frozenset()
    is_kip_848: bool = False

    @property
    def log_partition(self) -> int | None:
        """The partition of the groups log that stores the group."""
        return partition_of(self.group) if self.kind in COORDINATED else None

    @property
    def state(self) -> GroupState:
        return _STATES.get(self.kafka_state, GroupState.DEAD)

    @property
    def held(self) -> dict[TopicPartition, str]:
        """Maps each assigned partition to its owner."""
        return {tp: member.consumer for member in self.members for tp in member.owned}

    def partitions(self, topics: Mapping[str, TopicInfo]) -> PartitionSet:
        """Returns all partitions that members subscribe to or own, or that the group has committed offsets for. A group
        that has had members and has none also has all partitions of these topics: its members may have stopped before
        they read from all."""
        return PartitionSet.of(self.committed) | PartitionSet.of(self.held) | self._subscribed(topics)

    def unowned(self, topics: Mapping[str, TopicInfo]) -> PartitionSet:
        """Returns the partitions that members subscribe to, but no member owns. If there are no members, returns those
        of existing topics among :meth:`partitions`."""
        if self.members:
            return self._subscribed(topics) - PartitionSet.of(self.held)
        return self.partitions(topics).filter(topics.__contains__)

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that members subscribe to, or ``None`` if there are no members or any subscription is unknown."""
        if not self.members or not all(self.subscriptions):
            return None
        return self._topics

    @property
    def _topics(self) -> frozenset[str]:
        if not self.members and self.protocol_type == CONSUMER:  # what former members subscribed to, as far as is known
            return self.once_subscribed | {tp.topic for tp in self.committed}
        return frozenset().union(*filter(None, self.subscriptions))

    def _subscribed(self, topics: Mapping[str, TopicInfo]) -> PartitionSet:
        return PartitionSet({topic: topics[topic].partitions for topic in self._topics & topics.keys()})


@dataclass(frozen=True, slots=True)
class ClientGroups:
    """All client-assigned and native groups. The messages in ``missing`` say which groups cannot be shown, and why."""

    groups: tuple[ClientGroup, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[GroupRow, ...]:
        return tuple(map(_row, self.groups))

    def of(self, kind: GroupKind) -> ClientGroups:
        return replace(self, groups=tuple(one for one in self.groups if one.kind is kind))


def list_client_groups(instances: AskedInstances, wanted: Sequence[str] | None = None) -> ClientGroups:
    """Lists all client-assigned and native groups, or those ``wanted`` that exist, sorted by name, without offsets.
    Queries all instances at once. If no instance has ever served Kafka clients, there are no groups. A group without a
    record is managed if it is in ZooKeeper, and otherwise native, because no instance serves it."""
    directory = instances.directory()
    damaged: list[MalformedValue] = []
    kinds = _kinds(instances.store, None, damaged) if directory.is_used else {}

    def kept_as(name: str) -> GroupKind:
        return kinds.get(name, GroupKind.NATIVE)

    def is_asked(name: str) -> bool:
        return kept_as(name) in ASKED

    names = None if wanted is None else list(filter(is_asked, wanted))
    listing = partial(_list, wanted=names, chosen=is_asked)
    responses, silent = instances.ask_each(directory.addresses, listing)
    found: dict[str, ClientGroup] = {}
    missing = [LISTS_A_PART] if any(one.is_part for one in responses.values()) else []
    failed: dict[str, str] = {}
    for broker_id, listed in responses.items():
        if listed.error_code:
            is_loading = listed.error_code == Error.COORDINATOR_LOAD_IN_PROGRESS
            said = "is still loading" if is_loading else f"answered {named(listed.error_code)}"
            missing.append(f"instance {broker_id} {said}, so some groups may be missing; try again soon")
        failed |= {group: f"instance {broker_id} answered {reason}" for group, reason in listed.failed.items()}
        for group in listed.groups:
            # While a log partition moves, two instances may list its groups. The leader's response takes precedence.
            if group.group_id not in found or directory.leaders.get(partition_of(group.group_id)) == broker_id:
                found[group.group_id] = replace(_group(group, broker_id, {}), kind=kept_as(group.group_id))
    if created := found.keys() - kinds.keys():  # perhaps since the kinds were read
        kinds |= _kinds(instances.store, created, damaged)
        found = {name: replace(one, kind=kept_as(name)) for name, one in found.items() if is_asked(name)}
    others = {group: kind for listed in responses.values() for group, kind in listed.others.items()}
    for kind, groups in grouped(sorted(others), others.__getitem__).items():
        missing.append(f"NOT SHOWN: {_groups(groups)} of type {kind}: {ONLY_IN_KAFKA}")
    for reason, groups in grouped(sorted(failed.keys() - found.keys()), failed.__getitem__).items():
        missing.append(f"NOT SHOWN: {_groups(groups)}, because {reason}")
    missing += _unserved(directory, silent, GroupKind.CLIENT_ASSIGNED)
    if directory.is_used:
        of_brokers = replace(instances.directory(OFFSETS_TOPIC), unreadable=())
        missing += _unserved(of_brokers, silent, GroupKind.NATIVE)
        if not of_brokers.leaders:  # unknown where the metadata comes from the brokers
            missing += _unasked(of_brokers, silent)
    missing += [f"some groups may not be native, because {one}" for one in damaged]
    return ClientGroups(tuple(found[name] for name in sorted(found)), tuple(missing))


def _kinds(store: Store, groups: Collection[str] | None, unreadable: list[MalformedValue]) -> dict[str, GroupKind]:
    """Returns the kinds of the groups, or of all by default, that have a record or are in ZooKeeper."""
    records = read_kinds(store, groups, unreadable)
    try:
        managed = store.children(layout.GROUPS)
    except NoNode:
        managed = ()
    return dict.fromkeys(managed, GroupKind.MANAGED) | {name: one.kind for name, one in records.items()}


class SharedListing:
    """Lists all groups for the verbs of several kinds, which ask one after the other, with one request to each
    instance."""

    def __init__(self, instances: AskedInstances) -> None:
        self._instances, self._listed_at = instances, -math.inf
        self._left: dict[GroupKind, ClientGroups] = {}

    def of(self, kind: GroupKind) -> ClientGroups:
        """Returns the groups of the kind, as they are now."""
        left = self._left.pop(kind, None)
        if left is None or time.monotonic() > self._listed_at + _LISTED_FOR_S:
            found = list_client_groups(self._instances)
            self._listed_at, self._left = time.monotonic(), {one: found.of(one) for one in ASKED}
            left = self._left.pop(kind)
        return left


def with_offsets(instances: AskedInstances, groups: Sequence[ClientGroup]) -> tuple[ClientGroup, ...]:
    """Returns the groups with their committed offsets, or with the problem if their coordinator does not return
    them."""
    names = [one.group for one in groups]

    async def fetched(ask: Ask) -> Sequence[Any]:
        return [one for part in parts(names, _IN_ONE_REQUEST) for one in await fetch_offsets(ask, part)]

    answered, silent = instances.ask_each(instances.directory().addresses if names else {}, fetched)
    answers = {(broker_id, one.group_id): one for broker_id, them in answered.items() for one in them}
    unreached = {one.broker_id: f"instance {one.broker_id} does not answer: {one.reason}" for one in silent}
    found = []
    for one in groups:
        answer = answers.get((one.coordinator, one.group))
        said = "nothing" if answer is None else _refusal(answer)
        if answer is not None and not said:
            found.append(replace(one, committed=_committed(answer)))
            continue
        problem = unreached.get(one.coordinator, f"instance {one.coordinator} answered {said}")
        found.append(replace(one, committed={}, problem=problem))
    return tuple(found)


def offsets_unknown(groups: Iterable[ClientGroup]) -> Iterator[str]:
    """Yields messages that name the groups whose committed offsets are unknown."""
    failed = grouped((one for one in groups if one.problem), lambda one: one.problem)
    for problem, them in failed.items():
        yield f"LAG UNKNOWN: no committed offsets of {_groups([one.group for one in them])}, because {problem}"


def _groups(names: Sequence[str]) -> str:
    return f"{plural('group', len(names))} {some(names, MOST_NAMED)}"


class _Listed(NamedTuple):
    """An instance's groups. If ``error_code`` is not 0, or ``is_part`` is set, it may have more. ``failed`` maps the
    groups that it lists, but does not describe, to the reason, and ``others`` those that have no committed offsets of
    consumers, such as share groups, to their types."""

    error_code: int
    groups: Sequence[Any]
    failed: Mapping[str, str]
    is_part: bool
    others: Mapping[str, str]


async def _list(ask: Ask, wanted: Sequence[str] | None, chosen: Callable[[str], bool]) -> _Listed:
    names, error_code, is_part = wanted, 0, False
    others: dict[str, str] = {}
    if names is None:
        is_part = not await lists_all_groups(ask)
        listed = await ask("ListGroups", _LIST, message("ListGroupsRequest")())
        others = {one.group_id: one.group_type for one in listed.groups if one.group_type not in _CONSUMERS}
        names = [one.group_id for one in listed.groups if chosen(one.group_id) and one.group_id not in others]
        error_code = listed.error_code
    groups: list[Any] = []
    for part in parts(names, _IN_ONE_REQUEST):
        request = message("DescribeGroupsRequest")(groups=tuple(part))
        groups += await _with_consumers(ask, (await ask("DescribeGroups", _DESCRIBE, request)).groups)
    failed = dict.fromkeys(names, "nothing")
    for one in groups:
        failed.pop(one.group_id, None)
        if one.error_code:
            failed[one.group_id] = named(one.error_code)
    # a group that is dead by now was deleted after it was listed
    described = [one for one in groups if not one.error_code and one.group_state in _STATES]
    return _Listed(error_code, described, failed, is_part, others)


async def _other_type(ask: Ask, group: str) -> str:
    """Returns the type of a group that has no committed offsets of consumers, such as a share group, or ``""``."""
    listed = await ask("ListGroups", _LIST, message("ListGroupsRequest")())
    types = {one.group_id: one.group_type for one in listed.groups}
    found = types.get(group, "")
    return "" if found in _CONSUMERS else found


async def _with_consumers(ask: Ask, groups: Sequence[Any]) -> list[Any]:
    """Replaces the groups that DescribeGroups calls dead, but that the brokers coordinate with KIP-848, by what
    ConsumerGroupDescribe says of them. Its groups have no ``protocol_type``."""
    dead = [one.group_id for one in groups if one.group_state == _DEAD]
    if not dead:
        return list(groups)
    request = message("ConsumerGroupDescribeRequest")(group_ids=tuple(dead))
    told = (await ask("ConsumerGroupDescribe", _DESCRIBE_CONSUMERS, request)).groups
    alive = {one.group_id: one for one in told if not one.error_code}
    return [alive.get(one.group_id, one) for one in groups]


def _unserved(directory: InstanceDirectory, silent: tuple[Silent, ...], kind: GroupKind) -> Iterator[str]:
    """Yields messages that say why the groups in some partitions are not shown."""
    reasons: dict[str, list[int]] = {}
    unreached = {one.broker_id: f"instance {one.broker_id} does not answer: {one.reason}" for one in silent}
    for partition, leader in directory.leaders.items():
        reason = directory.problem(partition).replace(f"partition {partition} of {directory.topic}", "the partition")
        if reason or leader in unreached:
            reasons.setdefault(reason or unreached[leader], []).append(partition)
    for reason, partitions in reasons.items():
        yield f"NOT SHOWN: the {kind} groups in {PartitionSet({directory.topic: partitions})}, because {reason}"
    for one in directory.unreadable:
        yield f"unreadable: {one.path}: {one.reason}"


def _unasked(directory: InstanceDirectory, silent: tuple[Silent, ...]) -> Iterator[str]:
    """Yields messages that say why the native groups of some brokers are not shown."""
    reasons = {one: f"no instance beside broker {one} serves Kafka clients" for one in directory.brokers}
    for one in directory.addresses.keys() & reasons.keys():
        del reasons[one]
    reasons |= {one.broker_id: f"instance {one.broker_id} does not answer: {one.reason}" for one in silent}
    for broker, reason in sorted(reasons.items()):
        yield f"NOT SHOWN: the native groups of broker {broker}, because {reason}"


def _row(found: ClientGroup) -> GroupRow:
    return GroupRow(
        group=found.group,
        kind=found.kind,
        state=found.state,
        members=len(found.members),
        partitions=sum(len(member.owned) for member in found.members),
        assignor=found.assignor,
        coordinator=found.coordinator,
        log_partition=found.log_partition,
        unreadable=len(found.unreadable),
    )


def read_client_group(instances: AskedInstances, group: str) -> ClientGroup:
    """Reads the group and its offsets. Raises :class:`NotFound` and :class:`BrokerError`."""

    async def read(ask: Ask) -> tuple[Any, Any]:
        response = await ask("DescribeGroups", _DESCRIBE, message("DescribeGroupsRequest")(groups=(group,)))
        described = of_group(await _with_consumers(ask, response.groups), group)
        if described.group_state == _DEAD and (other := await _other_type(ask, group)):
            raise NotFound(f"no group {group!r} of consumers, but one of type {other}: {ONLY_IN_KAFKA}")
        offsets = of_group(await fetch_offsets(ask, [group]), group)
        for code in (described.error_code, offsets.error_code):
            unless_moving(code)
        if refusal := (named(described.error_code) if described.error_code else _refusal(offsets)):
            raise BrokerError(f"cannot read group {group!r} from its coordinator: {refusal}")
        return described, offsets

    broker_id, (described, offsets) = instances.ask_coordinator(group, read)
    if described.group_state not in _STATES:
        raise NotFound(f"no group {group!r}")
    record = read_kinds(instances.store, [group]).get(group, GroupRecord(GroupKind.NATIVE))
    return replace(_group(described, broker_id, _committed(offsets)), kind=record.kind)


def _refusal(answer: Any) -> str:
    """Returns the error with which an OffsetFetch of a group was answered as a whole or for a partition, or ``""``."""
    code, where = refused_offsets(answer)
    return (code and (f"{named(code)} for {where}" if where else named(code))) or ""


def _committed(answer: Any) -> dict[TopicPartition, int]:
    return {tp: part.committed_offset for tp, part in committed_offsets(answer).items()}


def described(
    groups: Sequence[ClientGroup], topics: Mapping[str, TopicInfo], log_ranges: LogRanges | None
) -> tuple[GroupDescription, ...]:
    """Describes groups that have already been read. Calls ``log_ranges`` once, for all their partitions."""
    logs: Mapping[TopicPartition, LogRange] = {}
    note = ""
    partitions = [one.partitions(topics) for one in groups]
    if log_ranges is not None:
        logs, note = log_ranges(PartitionSet.union(partitions))
    descriptions = []
    for found, theirs in zip(groups, partitions, strict=True):
        held = {tp: (owner, "owned") for tp, owner in found.held.items()}
        of_type = f"; protocol type {found.protocol_type}" if found.protocol_type not in {"", CONSUMER} else ""
        descriptions.append(
            GroupDescription(
                group=found.group,
                kind=found.kind,
                state=found.state,
                status=_STATUS[found.kafka_state] + of_type,
                assignor=found.assignor,
                coordinator=found.coordinator,
                log_partition=found.log_partition,
                members=found.members,
                offsets=rows_of(theirs, held, Committed(found.committed), logs, found.subscribed_topics),
                unowned=Unowned(found.unowned(topics)),
                lag_note="; ".join(filter(None, (note, *offsets_unknown([found])))),
                unreadable=found.unreadable,
            )
        )
    return tuple(descriptions)


def _sampled(found: GroupDescription) -> GroupOffsets:
    members = {one.consumer: Contact(one.host or "", one.client or "") for one in found.members}
    return GroupOffsets(found.group, found.kind, found.offsets, 0, members)


def _group(described: Any, broker_id: int, committed: Mapping[TopicPartition, int]) -> ClientGroup:
    if not hasattr(described, "protocol_type"):
        return _consumer_group(described, broker_id, committed)
    is_consumer = described.protocol_type == CONSUMER  # only consumers' metadata can be decoded
    subscribed = [subscription(one.member_metadata) if is_consumer else None for one in described.members]
    mode = Mode.INCREMENTAL if described.protocol_data.startswith("cooperative") else Mode.EAGER
    members = []
    for one, wanted in zip(described.members, subscribed, strict=True):
        owned = owned_by(one.member_assignment) if is_consumer else PartitionSet()
        members.append(
            MemberRow(
                consumer=one.group_instance_id or one.member_id,
                registered=True,
                host=one.client_host.removeprefix("/") or None,
                client=one.client_id or None,
                channel="kafka",
                subscription=", ".join(sorted(wanted.topics)) if wanted else "",
                mode=str(mode),
                rack=wanted.rack_id if wanted else None,
                owned=owned,
                target=owned,
            )
        )
    return ClientGroup(
        described.group_id,
        broker_id,
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        tuple(sorted(members, key=lambda member: member.consumer)),
        tuple(frozenset(one.topics) if one else None for one in subscribed),
        committed,
        tuple(
            Unreadable(f"member {one.member_id} of group {described.group_id}", f"its {what} cannot be decoded")
            for one in described.members
            for what, value, decode in (
                ("subscription", one.member_metadata, subscription),
                ("assignment", one.member_assignment, assignment),
            )
            if is_consumer and value and decode(value) is None
        ),
        once_subscribed=frozenset(described.once_subscribed),
    )


def _consumer_group(described: Any, broker_id: int, committed: Mapping[TopicPartition, int]) -> ClientGroup:
    """Reads a group from a response to ConsumerGroupDescribe."""
    members = [
        MemberRow(
            consumer=one.instance_id or one.member_id,
            registered=True,
            host=one.client_host.removeprefix("/") or None,
            client=one.client_id or None,
            channel="kafka",
            subscription=one.subscribed_topic_regex or ", ".join(sorted(one.subscribed_topic_names)),
            mode=str(Mode.INCREMENTAL),
            rack=one.rack_id,
            owned=_partitions(one.assignment),
            target=_partitions(one.target_assignment),
        )
        for one in described.members
    ]
    subscribed = [
        None if one.subscribed_topic_regex else frozenset(one.subscribed_topic_names) for one in described.members
    ]
    return ClientGroup(
        *(described.group_id, broker_id, described.group_state, CONSUMER, described.assignor_name),
        tuple(sorted(members, key=lambda member: member.consumer)),
        tuple(subscribed),
        committed,
        is_kip_848=True,
    )


def _partitions(assignment: Any) -> PartitionSet:
    return PartitionSet({one.topic_name: one.partitions for one in assignment.topic_partitions})


class ClientAssignedVerbs(GroupVerbs):
    """The groups whose members assign the partitions. The instances coordinate them, and store them in the groups
    log."""

    kind = GroupKind.CLIENT_ASSIGNED

    def __init__(self, instances: AskedInstances, listing: SharedListing | None = None) -> None:
        super().__init__(instances)
        self._listing = listing or SharedListing(instances)

    def require_name(self, group: str) -> None:
        """A group of this kind can have any name."""

    def exists(self, groups: Iterable[str]) -> dict[str, bool]:
        found = {}
        is_used = self.instances.directory().is_used
        for group in groups:
            try:
                found[group] = is_used and bool(self._read(group))
            except NotFound:
                found[group] = False
        return found

    def _read(self, group: str) -> ClientGroup:
        found = read_client_group(self.instances, group)
        if found.kind != self.kind:
            raise NotFound(f"no {self.kind} group {group!r}")
        return found

    def _listed(self, wanted: Sequence[str] | None = None) -> ClientGroups:
        if wanted is None:
            return self._listing.of(self.kind)
        return list_client_groups(self.instances, wanted).of(self.kind)

    def names(self) -> tuple[Sequence[str], Sequence[str]]:
        listed = self._listed()
        return [one.group for one in listed.groups], listed.missing

    def list(self, cluster: Cluster, log_ranges: LogRanges | None, on_offsets: OnOffsets | None) -> ListedGroups:
        listed = self._listed()
        if log_ranges is None:
            return ListedGroups(listed.rows, "", listed.missing)
        groups = with_offsets(self.instances, listed.groups)
        descriptions = described(groups, cluster.topics, log_ranges)
        rows = tuple(row.with_lag(one.lag) for row, one in zip(listed.rows, descriptions, strict=True))
        readable = (one.lag_note for one, group in zip(descriptions, groups, strict=True) if not group.problem)
        if on_offsets is not None:
            for one in descriptions:
                on_offsets(_sampled(one))
        return ListedGroups(rows, next(readable, ""), (*listed.missing, *offsets_unknown(groups)))

    def offsets(
        self, groups: Sequence[str], cluster: Cluster, log_ranges: LogRanges, resting: Collection[str] = ()
    ) -> tuple[Sequence[GroupOffsets], Sequence[str]]:
        del resting
        listed = self._listed(groups) if groups else ClientGroups()
        found = with_offsets(self.instances, listed.groups)
        return [_sampled(one) for one in described(found, cluster.topics, log_ranges)], (
            *listed.missing,
            *offsets_unknown(found),
        )

    def describe(
        self,
        group: str,
        log_ranges: LogRanges | None,
        presences: Presences | None = None,
        earlier: Cluster | None = None,
    ) -> GroupDescription:
        del presences
        found = self._read(group)
        (description,) = described([found], (earlier or read_cluster(self.store)).topics, log_ranges)
        return description

    def describe_several(
        self, groups: Sequence[str] | None, log_ranges: LogRanges | None, presences: Presences | None
    ) -> tuple[Sequence[GroupDescription], Sequence[KafkaCoordError]]:
        del presences
        found: Sequence[ClientGroup]
        absent: Sequence[KafkaCoordError]
        if groups is None:
            listed = self._listed()
            found, absent = with_offsets(self.instances, listed.groups), [BrokerError(one) for one in listed.missing]
        else:
            found, absent = [], []
            for group in groups:
                try:
                    found.append(self._read(group))
                except (NotFound, BrokerError) as error:
                    absent.append(error)
        topics = read_cluster(self.store).topics if found else {}
        return described(found, topics, log_ranges if found else None), absent

    def actions(self, group: str) -> Trail:
        """They are in the cluster's history."""
        found = read_cluster_history(self.store)
        actions = tuple(
            structs.replace(one, change=change)
            for one in found.actions
            if (change := change_to_group(group, one.change)) is not None
        )
        return Trail(actions=actions, unreadable=found.unreadable)

    def history(self, group: str, on_progress: OnProgress) -> Trail:
        """Reads the decisions from the group's records in the groups log."""
        wanted = about_group(group, offsets=False)
        _, records = read_groups_log(self.instances, partition_of(group), wanted, on_progress)
        found = decisions(map(entry_of, records), group)
        if not found:
            self._read(group)  # a group may consist of offsets only, or not exist
        return replace(self.actions(group), decisions=found)

    def committed(self, group: str) -> tuple[Mapping[TopicPartition, int], PartitionSet]:
        offsets = self._read(group).committed
        return offsets, PartitionSet.of(offsets)

    def evict(self, group: str, consumers: Sequence[str], acting: Acting) -> Sequence[AnswerDocument]:
        messages = evict_members(self.instances, group, consumers, acting.timeout_s)
        self._record(f"evict {', '.join(consumers)}", group, acting)
        return [AnswerDocument.done("evict", group, message) for message in messages]

    def delete(self, group: str, acting: Acting) -> AnswerDocument:
        message = delete_group(self.instances, group, acting.timeout_s)
        self._record("delete-group", group, acting)
        return AnswerDocument.done("delete-group", group, message)

    def delete_offsets(
        self, group: str, partitions: PartitionSet, before: Mapping[TopicPartition, int], acting: Acting
    ) -> AnswerDocument:
        message = delete_offsets(self.instances, group, partitions, acting.timeout_s)
        self._record("delete-offsets", group, acting, offsets_change(before, dict.fromkeys(partitions)))
        return AnswerDocument.done("delete-offsets", group, message)

    def resettable(self, groups: Sequence[str], rule: str, acting: Acting) -> dict[str, Resettable]:
        if not groups:
            return {}
        topics = read_cluster(self.store).topics
        with ThreadPoolExecutor(min(_AT_ONCE, len(groups)), thread_name_prefix="reset") as pool:
            found = pool.map(self._read, groups)
            return {one.group: self._resettable(one, topics, rule, acting) for one in found}

    def _resettable(self, one: ClientGroup, topics: Mapping[str, TopicInfo], rule: str, acting: Acting) -> Resettable:
        def write(offsets: Mapping[TopicPartition, int]) -> str:
            message = write_offsets(self.instances, one.group, offsets, acting.timeout_s)
            change = f"{rule}: {offsets_change(one.committed, offsets)}"
            self._record("reset-offsets", one.group, acting, change)
            return f"done: {message}"

        def again() -> Resettable:
            return self.resettable([one.group], rule, acting)[one.group]

        there, known = all_partitions(topics), one.partitions(topics)
        return Resettable(one.group, there, known, one.committed, one.held, " first", again, write)

    def convertible(self, group: str, to: GroupKind) -> Convertible:
        del to
        found, cluster = self._read(group), read_cluster(self.store)
        gone = PartitionSet.of(tp for tp in found.committed if cluster.lacks(tp.topic))
        return Convertible(self.kind, [one.consumer for one in found.members], (), found.committed, gone)

    def converted(self, group: str, acting: Acting) -> None:
        """The conversion has deleted the managed group's history."""
        self._record(f"convert to {self.kind}", group, acting)

    def wait_settled(self, group: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (found := self._read(group)).state not in AT_REST:
            if time.monotonic() >= deadline:
                raise Timeout(
                    f"timed out after {timeout_s:g} s waiting for group {group!r} to become stable;"
                    f" its state is {found.kafka_state}"
                )
            time.sleep(_LOOK_AGAIN_S)

    def _record(self, action: str, group: str, acting: Acting, change: str = "") -> None:
        record(self.store, action, group, by=acting.by, reason=acting.reason, change=change)


class NativeVerbs(ClientAssignedVerbs):
    """The groups that the brokers coordinate. The instances pass requests through to them."""

    kind = GroupKind.NATIVE
    why_not = "the brokers coordinate it"
    to_managed = "kafka-coord groups take-over {} --managed"

    def dry_evict(self, group: str, consumers: Sequence[str], log_ranges: LogRanges) -> DryRun:
        """Refuses what the brokers would."""
        if self._read(group).is_kip_848:
            raise not_evicted(group)
        return super().dry_evict(group, consumers, log_ranges)

    def history(self, group: str, on_progress: OnProgress) -> Trail:
        """The brokers keep no decisions."""
        del on_progress
        found = self.actions(group)
        if not found.actions:
            self._read(group)  # it may not exist
        return found
