"""Reads and changes client-assigned groups, by asking the instances over Kafka's protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.metadata import CONSUMER
from kafka_coord.coordinator.plan.reasons import counted, plural
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import BrokerError, NotFound, RequestRefused
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.groups.cluster import read_cluster_history
from kafka_coord.groups.group import GroupDescription, GroupRow, LogRanges, MemberRow, Unowned
from kafka_coord.groups.instances import AskedInstances, InstanceDirectory, Silent
from kafka_coord.groups.offsets import Committed, rows_of
from kafka_coord.kafka.coordinators import Ask, by_topic, committed_offsets, refused_offsets, unless_moving
from kafka_coord.kafka.errors import of_group
from kafka_coord.model import GroupKind, Mode, PartitionSet, TopicInfo, TopicPartition
from kafka_coord.model.action import change_to_group
from kafka_coord.model.histories import Trail
from kafka_coord.model.lag import LogRange
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.model.sequences import grouped, parts, some
from kafka_coord.wire.consumer_protocol import assignment, subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk.store import Store

CLASSIC = "classic"
"""The type of client-assigned groups in ListGroups."""
_LIST, _DESCRIBE, _FETCH_OFFSETS, _FETCH_OF_SEVERAL = 5, 5, 7, 8
_IN_ONE_REQUEST = 200
MOST_NAMED = 20
"""A message names at most this many groups."""
_STATES = {
    "Stable": GroupState.STABLE,
    "PreparingRebalance": GroupState.REBALANCING,
    "CompletingRebalance": GroupState.REBALANCING,
    "Empty": GroupState.EMPTY,
}
_STATUS = {
    "Stable": "every member knows its assignment",
    "PreparingRebalance": "PreparingRebalance: waiting for its members to join",
    "CompletingRebalance": "CompletingRebalance: waiting for the group leader's assignment",
    "Empty": "no members; offsets are kept until their retention ends",
}


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """A client-assigned group, as described by its coordinator. ``kafka_state`` is Kafka's name for its state.
    ``problem`` says why the committed offsets are unknown, or is ``""``."""

    group: str
    coordinator: int
    kafka_state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberRow, ...]
    committed: Mapping[TopicPartition, int]
    problem: str = ""

    @property
    def log_partition(self) -> int:
        return partition_of(self.group)

    @property
    def state(self) -> GroupState:
        return _STATES.get(self.kafka_state, GroupState.DEAD)

    @property
    def held(self) -> dict[TopicPartition, str]:
        """Maps each assigned partition to its owner."""
        return {tp: member.consumer for member in self.members for tp in member.owned}

    def partitions(self, topics: Mapping[str, TopicInfo]) -> PartitionSet:
        """Returns all partitions that members subscribe to or own, or that the group has committed offsets for."""
        return PartitionSet.of(self.committed) | PartitionSet.of(self.held) | self._subscribed(topics)

    def unowned(self, topics: Mapping[str, TopicInfo]) -> PartitionSet:
        """Returns the partitions that members subscribe to, but no member owns. If there are no members, returns the
        partitions of existing topics with a committed offset."""
        if self.members:
            return self._subscribed(topics) - PartitionSet.of(self.held)
        return PartitionSet.of(tp for tp in self.committed if tp.topic in topics)

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that members subscribe to, or ``None`` if there are no members or any subscription is unknown."""
        if not self.members or not all(member.subscription for member in self.members):
            return None
        return frozenset(topic for member in self.members for topic in member.subscription.split(", "))

    def _subscribed(self, topics: Mapping[str, TopicInfo]) -> PartitionSet:
        wanted = {topic for member in self.members for topic in member.subscription.split(", ")} & topics.keys()
        return PartitionSet({topic: topics[topic].partitions for topic in wanted})


@dataclass(frozen=True, slots=True)
class ClientGroups:
    """All client-assigned groups. The messages in ``missing`` say which groups cannot be shown, and why."""

    groups: tuple[ClientGroup, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[GroupRow, ...]:
        return tuple(map(_row, self.groups))


def list_client_groups(instances: AskedInstances) -> ClientGroups:
    """Lists all client-assigned groups, sorted by name, without offsets. Queries all instances at once. If no instance
    has ever served Kafka clients, there are no groups."""
    directory = instances.directory()
    responses, silent = instances.ask_each(directory.addresses, _list)
    found: dict[str, ClientGroup] = {}
    missing = []
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
                found[group.group_id] = _group(group, broker_id, {})
    for reason, groups in grouped(sorted(failed.keys() - found.keys()), failed.__getitem__).items():
        missing.append(f"NOT SHOWN: {_groups(groups)}, because {reason}")
    missing += _unserved(directory, silent)
    return ClientGroups(tuple(found[name] for name in sorted(found)), tuple(missing))


def with_offsets(instances: AskedInstances, groups: Sequence[ClientGroup]) -> tuple[ClientGroup, ...]:
    """Returns the groups with their committed offsets, or with the problem if their coordinator does not return
    them."""
    form = message("OffsetFetchRequest")
    names = tuple(form.struct("OffsetFetchRequestGroup")(group_id=one.group, topics=None) for one in groups)

    async def fetch(ask: Ask) -> list[Any]:
        return list((await ask("OffsetFetch", _FETCH_OF_SEVERAL, form(groups=names))).groups)

    fetched, silent = instances.ask_each(instances.directory().addresses if names else {}, fetch)
    answers = {(broker_id, one.group_id): one for broker_id, them in fetched.items() for one in them}
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
    """An instance's groups. If ``error_code`` is not 0, it may have more. ``failed`` maps the groups that it lists,
    but does not describe, to the reason."""

    error_code: int
    groups: Sequence[Any]
    failed: Mapping[str, str]


async def _list(ask: Ask) -> _Listed:
    listed = await ask("ListGroups", _LIST, message("ListGroupsRequest")(types_filter=(CLASSIC,)))
    names = [group.group_id for group in listed.groups]
    groups: list[Any] = []
    for part in parts(names, _IN_ONE_REQUEST):
        request = message("DescribeGroupsRequest")(groups=tuple(part))
        groups += (await ask("DescribeGroups", _DESCRIBE, request)).groups
    failed = dict.fromkeys(names, "nothing")
    for one in groups:
        failed.pop(one.group_id, None)
        if one.error_code:
            failed[one.group_id] = named(one.error_code)
    # a group that is dead by now was deleted after it was listed
    described = [one for one in groups if not one.error_code and one.group_state in _STATES]
    return _Listed(listed.error_code, described, failed)


def _unserved(directory: InstanceDirectory, silent: tuple[Silent, ...]) -> Iterator[str]:
    """Yields messages that say why the groups in some log partitions are not shown."""
    reasons: dict[str, list[int]] = {}
    unreached = {one.broker_id: f"instance {one.broker_id} does not answer: {one.reason}" for one in silent}
    for partition, leader in directory.leaders.items():
        reason = directory.problem(partition).replace(f"partition {partition} of {TOPIC}", "the partition")
        if reason or leader in unreached:
            reasons.setdefault(reason or unreached[leader], []).append(partition)
    for reason, partitions in reasons.items():
        yield f"NOT SHOWN: the client-assigned groups in {PartitionSet({TOPIC: partitions})}, because {reason}"
    for one in directory.unreadable:
        yield f"unreadable: {one.path}: {one.reason}"


def _row(found: ClientGroup) -> GroupRow:
    return GroupRow(
        group=found.group,
        kind=GroupKind.CLIENT_ASSIGNED,
        state=found.state,
        members=len(found.members),
        partitions=sum(len(member.owned) for member in found.members),
        assignor=found.assignor,
        coordinator=found.coordinator,
        log_partition=found.log_partition,
    )


def read_client_group(instances: AskedInstances, group: str) -> ClientGroup:
    """Reads the group and its offsets. Raises :class:`NotFound` and :class:`BrokerError`."""

    async def read(ask: Ask) -> tuple[Any, Any]:
        response = await ask("DescribeGroups", _DESCRIBE, message("DescribeGroupsRequest")(groups=(group,)))
        described = of_group(response.groups, group)
        request = message("OffsetFetchRequest")(group_id=group, topics=None)
        offsets = await ask("OffsetFetch", _FETCH_OFFSETS, request)
        for code in (described.error_code, offsets.error_code):
            unless_moving(code)
        if refusal := (named(described.error_code) if described.error_code else _refusal(offsets)):
            raise BrokerError(f"cannot read group {group!r} from its coordinator: {refusal}")
        return described, offsets

    broker_id, (described, offsets) = instances.ask_coordinator(group, read)
    if described.group_state not in _STATES:
        raise NotFound(f"no group {group!r}")
    return _group(described, broker_id, _committed(offsets))


def _refusal(answer: Any) -> str:
    """Returns the error with which an OffsetFetch of a group was answered as a whole or for a partition, or ``""``."""
    code, where = refused_offsets(answer)
    return (code and (f"{named(code)} for {where}" if where else named(code))) or ""


def _committed(answer: Any) -> dict[TopicPartition, int]:
    return {tp: part.committed_offset for tp, part in committed_offsets(answer).items()}


def is_client_group(instances: AskedInstances, group: str) -> bool:
    """Returns whether a client-assigned group has this name. Raises :class:`BrokerError` if its coordinator does not
    answer."""
    try:
        read_client_group(instances, group)
    except NotFound:
        return False
    return True


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
                kind=GroupKind.CLIENT_ASSIGNED,
                state=found.state,
                status=_STATUS[found.kafka_state] + of_type,
                assignor=found.assignor,
                coordinator=found.coordinator,
                log_partition=found.log_partition,
                members=found.members,
                offsets=rows_of(theirs, held, Committed(found.committed), logs, found.subscribed_topics),
                unowned=Unowned(found.unowned(topics)),
                lag_note="; ".join(filter(None, (note, *offsets_unknown([found])))),
            )
        )
    return tuple(descriptions)


def _group(described: Any, broker_id: int, committed: Mapping[TopicPartition, int]) -> ClientGroup:
    is_consumer = described.protocol_type == CONSUMER  # only consumers' metadata can be decoded
    members = tuple(_member(one, described.protocol_data, is_consumer=is_consumer) for one in described.members)
    return ClientGroup(
        described.group_id,
        broker_id,
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        tuple(sorted(members, key=lambda member: member.consumer)),
        committed,
    )


def _member(one: Any, assignor: str, *, is_consumer: bool) -> MemberRow:
    """Describes a member. The subscription and partitions are known only for consumers; the metadata of other members
    cannot be decoded."""
    subscribed = subscription(one.member_metadata) if is_consumer else None
    owned = owned_by(one.member_assignment) if is_consumer else PartitionSet()
    return MemberRow(
        consumer=one.group_instance_id or one.member_id,
        registered=True,
        host=one.client_host.removeprefix("/") or None,
        client=one.client_id or None,
        channel="kafka",
        subscription=", ".join(sorted(subscribed.topics)) if subscribed else "",
        mode=str(Mode.INCREMENTAL if assignor.startswith("cooperative") else Mode.EAGER),
        rack=subscribed.rack_id if subscribed else None,
        owned=owned,
        target=owned,
    )


def owned_by(data: bytes) -> PartitionSet:
    """Returns the partitions of a ConsumerProtocol assignment, or no partitions if it cannot be decoded."""
    found = assignment(data)
    return PartitionSet.of(
        (topic.topic, partition)
        for topic in (found.assigned_partitions if found else ())
        for partition in topic.partitions
        if 0 <= partition <= MAX_PARTITION
    )


T = TypeVar("T")

_COMMIT, _DELETE_OFFSETS, _DELETE, _LEAVE = 7, 0, 2, 4
_DEAD = "Dead"
"""The state that Kafka reports for a group that does not exist."""

_HAS_MEMBERS = "it has members; stop them first (static members remain until their session times out)"
_REFUSED = {
    Error.UNKNOWN_MEMBER_ID: _HAS_MEMBERS,
    Error.ILLEGAL_GENERATION: _HAS_MEMBERS,
    Error.REBALANCE_IN_PROGRESS: _HAS_MEMBERS,
    Error.NON_EMPTY_GROUP: _HAS_MEMBERS,
    Error.GROUP_SUBSCRIBED_TO_TOPIC: "its members subscribe to the topic; stop them first",
    Error.UNKNOWN_TOPIC_OR_PARTITION: "the brokers do not know the partition",
}


def write_offsets(
    instances: AskedInstances, group: str, offsets: Mapping[TopicPartition, int], timeout_s: float
) -> str:
    """Commits ``offsets`` for a group that has no members. While its coordinator is changing, retries for up to
    ``timeout_s`` seconds. Returns a message for the operator. Raises :class:`NotFound`, :class:`RequestRefused` and
    :class:`BrokerError`."""
    request = by_topic(
        "OffsetCommitRequest",
        group,
        offsets,
        lambda offset: {"committed_offset": offset, "committed_metadata": ""},
    )
    _ask_about_partitions(instances, group, "OffsetCommit", _COMMIT, request, timeout_s)
    return f"offsets of {counted(len(offsets), 'partition')} written"


def delete_offsets(instances: AskedInstances, group: str, partitions: PartitionSet, timeout_s: float) -> str:
    """Deletes committed offsets and returns a message for the operator. Raises the same errors as
    :func:`write_offsets`."""
    request = by_topic("OffsetDeleteRequest", group, dict.fromkeys(partitions, 0), lambda _: {})
    _ask_about_partitions(instances, group, "OffsetDelete", _DELETE_OFFSETS, request, timeout_s)
    return f"offsets of {counted(len(partitions), 'partition')} deleted"


def delete_group(instances: AskedInstances, group: str, timeout_s: float) -> str:
    """Deletes a group without members and returns a message. Raises the same errors as :func:`write_offsets`."""

    async def delete(ask: Ask) -> int:
        response = await ask("DeleteGroups", _DELETE, message("DeleteGroupsRequest")(groups_names=(group,)))
        return unless_moving(of_group(response.results, group).error_code)

    _, code = instances.ask_coordinator(group, delete, timeout_s)
    _raise(group, code, "")
    return f"group {group} deleted"


def evict_members(instances: AskedInstances, group: str, consumers: Sequence[str], timeout_s: float) -> list[str]:
    """Evicts ``consumers`` (instance ids, or member ids of members without one) in one request, and returns one message
    for each. The clients rejoin when they notice the eviction. If any of ``consumers`` is not a member, evicts no one
    and raises :class:`NotFound`. Also raises the same errors as :func:`delete_group`."""

    async def evict(ask: Ask) -> list[int]:
        response = await ask("DescribeGroups", _DESCRIBE, message("DescribeGroupsRequest")(groups=(group,)))
        described = of_group(response.groups, group)
        if code := unless_moving(described.error_code):
            return [code] * len(consumers)
        if described.group_state == _DEAD:
            raise NotFound(f"no group {group!r}; no one was evicted")
        members = {one.group_instance_id or one.member_id: one for one in described.members}
        require_members(group, consumers, members)
        form = message("LeaveGroupRequest")
        who = form.struct("MemberIdentity")
        leaving = tuple(
            who(member_id=member.member_id, group_instance_id=member.group_instance_id)
            for member in map(members.__getitem__, consumers)
        )
        response = await ask("LeaveGroup", _LEAVE, form(group_id=group, members=leaving))
        if code := unless_moving(response.error_code):
            return [code] * len(consumers)
        if len(response.members) != len(consumers):
            raise BrokerError(f"the response tells of {len(response.members)} evictions, not of {len(consumers)}")
        return [int(one.error_code) for one in response.members]

    _, codes = instances.ask_coordinator(group, evict, timeout_s)
    messages = []
    for consumer, code in zip(consumers, codes, strict=True):
        left = code == Error.UNKNOWN_MEMBER_ID
        _raise(group, 0 if left else code, f"member {consumer}: ")
        messages.append(f"member {consumer} of group {group} {'left before the eviction' if left else 'evicted'}")
    return messages


def require_members(group: str, consumers: Iterable[str], members: Iterable[str]) -> None:
    """Raises :class:`NotFound` unless all of ``consumers`` are among the group's members."""
    known = sorted(members)
    strangers = [consumer for consumer in consumers if consumer not in known]
    if strangers:
        raise NotFound(
            f"{', '.join(strangers)} {'is not a member' if len(strangers) == 1 else 'are not members'} of group"
            f" {group}, whose members are {', '.join(known) or 'none'}; no one was evicted"
        )


def _ask_about_partitions(
    instances: AskedInstances, group: str, name: str, version: int, request: Any, timeout_s: float
) -> None:
    async def change(ask: Ask) -> list[tuple[int, str]]:
        response = await ask(name, version, request)
        codes = [(getattr(response, "error_code", 0), "")]
        codes += [
            (part.error_code, f"{topic.name}-{part.partition_index}: ")
            for topic in response.topics
            for part in topic.partitions
        ]
        return [(code, where) for code, where in codes if unless_moving(code)]

    _, errors = instances.ask_coordinator(group, change, timeout_s)
    for code, where in errors:
        _raise(group, code, where)


def _raise(group: str, code: int, where: str) -> None:
    if not code:
        return
    if code == Error.GROUP_ID_NOT_FOUND:
        raise NotFound(f"no group {group!r}")
    if code in _REFUSED:
        raise RequestRefused(f"{where}group {group!r}: {_REFUSED[Error(code)]}")
    raise BrokerError(f"{where}group {group!r} was not changed, because its coordinator answered {named(code)}")


def read_client_actions(store: Store, group: str) -> Trail:
    """Returns the operator actions on a client-assigned group. They are in the cluster's history, where each begins
    with the group's name (:func:`kafka_coord.groups.requests.record`). Raises :class:`MalformedValue`."""
    found = read_cluster_history(store)
    actions = tuple(
        structs.replace(one, change=change)
        for one in found.actions
        if (change := change_to_group(group, one.change)) is not None
    )
    return Trail(actions=actions, unreadable=found.unreadable)
