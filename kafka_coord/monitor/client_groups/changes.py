"""Changes client-assigned groups for operators: sets and deletes offsets, evicts members, deletes groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, NotFound, RequestRefused
from kafka_coord.kafka.errors import of_group
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.monitor.client_groups.asking import Ask, AskedInstances, unless_moving
from kafka_coord.wire.messages import message

T = TypeVar("T")

_COMMIT, _DELETE_OFFSETS, _DELETE, _DESCRIBE, _LEAVE = 7, 0, 2, 5, 4
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


def by_topic(
    name: str, group: str, values: Mapping[TopicPartition, T], fields_of: Callable[[T], dict[str, Any]]
) -> Any:
    """Builds a request of type ``name`` that lists partitions by topic. ``fields_of`` returns a partition's other
    fields."""
    form = message(name)
    of_topic, of_partition = form.struct(f"{name}Topic"), form.struct(f"{name}Partition")
    topics: dict[str, list[Any]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, []).append(of_partition(partition_index=partition, **fields_of(value)))
    named_topics = tuple(of_topic(name=topic, partitions=tuple(parts)) for topic, parts in topics.items())
    return form(group_id=group, topics=named_topics)
