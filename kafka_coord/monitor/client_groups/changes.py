"""Operators' changes to client-assigned groups: sets and deletes offsets, evicts members, deletes groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import BrokerError, NotFound, RequestRefused
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.monitor.client_groups.asking import Ask, Instances, named, unless_moving
from kafka_coord.wire.messages import message

_COMMIT, _DELETE_OFFSETS, _DELETE, _DESCRIBE, _LEAVE = 7, 0, 2, 5, 4

_REFUSED = {
    Error.UNKNOWN_MEMBER_ID: "it has members; stop them first",
    Error.ILLEGAL_GENERATION: "it has members; stop them first",
    Error.REBALANCE_IN_PROGRESS: "it has members; stop them first",
    Error.NON_EMPTY_GROUP: "it has members; stop them first",
    Error.GROUP_SUBSCRIBED_TO_TOPIC: "its members subscribe to the topic; stop them first",
    Error.UNKNOWN_TOPIC_OR_PARTITION: "the brokers do not know the partition",
}


def write_offsets(instances: Instances, group: str, offsets: Mapping[TopicPartition, int], timeout_s: float) -> str:
    """Sets committed offsets of a group without members. Returns a sentence for the operator. Raises
    :class:`RequestRefused`, :class:`BrokerError`."""
    request = _by_topic(
        "OffsetCommitRequest",
        group,
        offsets,
        lambda offset: {"committed_offset": offset, "committed_metadata": ""},
    )
    _ask_about_partitions(instances, group, "OffsetCommit", _COMMIT, request, timeout_s)
    return f"{len(offsets)} partitions of group {group} reset"


def delete_offsets(instances: Instances, group: str, partitions: PartitionSet, timeout_s: float) -> str:
    """Deletes committed offsets. Returns a sentence for the operator. Raises like :func:`write_offsets`."""
    request = _by_topic("OffsetDeleteRequest", group, dict.fromkeys(partitions, 0), lambda _: {})
    _ask_about_partitions(instances, group, "OffsetDelete", _DELETE_OFFSETS, request, timeout_s)
    return f"offsets of {len(partitions)} partitions of group {group} deleted"


def delete_group(instances: Instances, group: str, timeout_s: float) -> str:
    """Deletes a group without members, and returns a sentence. Raises like :func:`write_offsets`, or
    :class:`NotFound`."""

    async def delete(ask: Ask) -> int:
        answer = await ask("DeleteGroups", _DELETE, message("DeleteGroupsRequest")(groups_names=(group,)))
        return unless_moving(answer.results[0].error_code)

    _, code = instances.ask_coordinator(group, delete, timeout_s)
    _raise(group, code, "")
    return f"group {group} deleted"


def evict_member(instances: Instances, group: str, consumer: str, timeout_s: float) -> str:
    """Removes a member, by its instance id or member id. It joins again once it learns of that. Returns a sentence.

    Raises as :func:`delete_group`."""

    async def evict(ask: Ask) -> int:
        found = await ask("DescribeGroups", _DESCRIBE, message("DescribeGroupsRequest")(groups=(group,)))
        unless_moving(found.groups[0].error_code)
        members = {one.group_instance_id or one.member_id: one for one in found.groups[0].members}
        if consumer not in members:
            raise NotFound(f"no member {consumer!r} in group {group!r}; it has {', '.join(sorted(members)) or 'none'}")
        form, member = message("LeaveGroupRequest"), members[consumer]
        who = form.struct("MemberIdentity")(member_id=member.member_id, group_instance_id=member.group_instance_id)
        answer = await ask("LeaveGroup", _LEAVE, form(group_id=group, members=(who,)))
        return unless_moving(answer.error_code) or int(answer.members[0].error_code)

    _, code = instances.ask_coordinator(group, evict, timeout_s)
    _raise(group, code, f"member {consumer}: ")
    return f"member {consumer} of group {group} evicted"


def _ask_about_partitions(
    instances: Instances, group: str, name: str, version: int, request: Any, timeout_s: float
) -> None:
    async def change(ask: Ask) -> list[tuple[int, str]]:
        answer = await ask(name, version, request)
        codes = [(getattr(answer, "error_code", 0), "")]
        codes += [
            (part.error_code, f"{topic.name}-{part.partition_index}: ")
            for topic in answer.topics
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
    raise BrokerError(f"{where}group {group!r} was not changed: its coordinator answers {named(code)}")


def _by_topic(
    name: str, group: str, values: Mapping[TopicPartition, int], fields_of: Callable[[int], dict[str, Any]]
) -> Any:
    """A request that names partitions by topic."""
    form = message(name)
    of_topic, of_partition = form.struct(f"{name}Topic"), form.struct(f"{name}Partition")
    topics: dict[str, list[Any]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, []).append(of_partition(partition_index=partition, **fields_of(value)))
    named_topics = tuple(of_topic(name=topic, partitions=tuple(parts)) for topic, parts in topics.items())
    return form(group_id=group, topics=named_topics)
