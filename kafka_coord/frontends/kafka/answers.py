"""Builds the responses to requests about groups, in the request's version. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka_coord.classic_groups.errors import MOVING, Error, named
from kafka_coord.classic_groups.events import Joined, Left, Synced
from kafka_coord.classic_groups.heartbeat_hold import LIBRDKAFKA
from kafka_coord.frontends.kafka.group import NOTHING_FETCHED, Described, Fetched, Listed
from kafka_coord.frontends.kafka.instances import Node
from kafka_coord.frontends.kafka.managed.heartbeats import HeartbeatAnswer
from kafka_coord.frontends.kafka.managed.topics import grouped
from kafka_coord.model import CommittedOffset
from kafka_coord.wire.messages import message

NO_OFFSET = -1
_NOTHING = CommittedOffset(NO_OFFSET)
_OFFSET_STORED = -1000
"""``RD_KAFKA_OFFSET_STORED``, which makes librdkafka request the committed offset again. If it got -1 instead, it would
apply ``auto.offset.reset``."""
NOWHERE: Node = (-1, "", -1)
_NO_ERRORS: Mapping[tuple[str, int], Error] = {}


def coordinators(results: Iterable[tuple[str, int, Node]], version: int) -> Any:
    """Builds the response to FindCoordinator. The request contains one key before version 4, and any number of keys
    since (KIP-699)."""
    form = message("FindCoordinatorResponse")
    if version >= 4:
        of_key = form.struct("Coordinator")
        return form(
            coordinators=tuple(
                of_key(
                    key=key, node_id=node[0], host=node[1], port=node[2], error_code=error, error_message=_words(error)
                )
                for key, error, node in results
            )
        )
    ((_, error, node),) = results
    words = _words(error) if version >= 1 else None
    return form(error_code=error, error_message=words, node_id=node[0], host=node[1], port=node[2])


def joined(outcome: Joined, version: int) -> Any:
    form = message("JoinGroupResponse")
    of_member = form.struct("JoinGroupResponseMember")
    no_protocol = None if version >= 7 else ""
    return form(
        error_code=outcome.error,
        generation_id=outcome.generation_id,
        protocol_type=outcome.protocol_type,
        protocol_name=no_protocol if outcome.protocol_name is None else outcome.protocol_name,
        leader=outcome.leader_id,
        skip_assignment=outcome.skip_assignment,
        member_id=outcome.member_id,
        members=tuple(
            of_member(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in outcome.members
        ),
    )


def synced(outcome: Synced) -> Any:
    return message("SyncGroupResponse")(
        error_code=outcome.error,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol_name,
        assignment=outcome.assignment,
    )


def left(outcome: Left, version: int) -> Any:
    """Builds the response to LeaveGroup. Before version 3, the request names only one member, whose error becomes the
    response's error."""
    form = message("LeaveGroupResponse")
    if version < 3:
        return form(error_code=outcome.error or next((error for _, _, error in outcome.members), Error.NONE))
    of_member = form.struct("MemberResponse")
    members = tuple(of_member(member_id=m, group_instance_id=i, error_code=e) for m, i, e in outcome.members)
    return form(error_code=outcome.error, members=members)


def per_partition(name: str, topics: Any, error: Error, errors: Mapping[tuple[str, int], Error] = _NO_ERRORS) -> Any:
    """Builds the response to OffsetCommit, OffsetDelete or TxnOffsetCommit, with an error for each requested partition.
    Partitions that are not in ``errors`` get ``error``."""
    form = message(f"{name}Response")
    of_topic, of_part = form.struct(f"{name}ResponseTopic"), form.struct(f"{name}ResponsePartition")
    return form(
        topics=[
            of_topic(
                name=topic.name,
                partitions=[
                    of_part(
                        partition_index=part.partition_index,
                        error_code=errors.get((topic.name, part.partition_index), error) if errors else error,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


class FetchedGroup(NamedTuple):
    """One group in an OffsetFetch. ``topics`` lists the requested topics, or is ``None`` for all topics. ``known``
    are the stored offsets, and ``denied`` the topics whose offsets the client is not allowed to see. If
    ``is_repeated`` is set, the response must make the client retry the request."""

    group_id: str
    topics: Any
    error: Error
    known: Fetched
    denied: frozenset[str]
    is_repeated: bool = False

    def topics_in(self, version: int, of_topic: Any, of_part: Any) -> Sequence[Any]:
        """Returns the topics of the response. Since version 2, an error response normally lists no topics. If
        ``is_repeated`` is set, it lists them all, because librdkafka retries the request only if each partition has a
        retriable error and the offset ``OFFSET_STORED`` (ADR 11)."""
        if self.is_repeated:
            stale = Error.STALE_MEMBER_EPOCH
            error = stale if self.error is stale else Error.UNSTABLE_OFFSET_COMMIT
            return _offsets(
                self.topics, NOTHING_FETCHED, of_topic, of_part, error, self.denied, CommittedOffset(_OFFSET_STORED)
            )
        if self.error and version >= 2:
            return ()
        return _offsets(self.topics, self.known, of_topic, of_part, self.error, self.denied)


def repeats_offset_fetch(software: str, error: Error) -> bool:
    """Returns whether clients with this software need an error on every partition before they retry an OffsetFetch that
    failed with ``error``."""
    return (error in MOVING or error is Error.STALE_MEMBER_EPOCH) and software.startswith(LIBRDKAFKA)


def fetched(asked: Sequence[FetchedGroup], version: int) -> Any:
    """Builds the response to OffsetFetch, which can name several groups from version 8 on (KIP-709)."""
    form = message("OffsetFetchResponse")
    if version >= 8:
        of_group = form.struct("OffsetFetchResponseGroup")
        of_topic, of_part = form.struct("OffsetFetchResponseTopics"), form.struct("OffsetFetchResponsePartitions")
        return form(
            groups=tuple(
                of_group(
                    group_id=group.group_id, error_code=group.error, topics=group.topics_in(version, of_topic, of_part)
                )
                for group in asked
            )
        )
    (group,) = asked
    of_topic, of_part = form.struct("OffsetFetchResponseTopic"), form.struct("OffsetFetchResponsePartition")
    topics = group.topics_in(version, of_topic, of_part)
    return form(topics=topics, error_code=group.error) if version >= 2 else form(topics=topics)


def _offsets(
    asked: Any,
    found: Fetched,
    of_topic: Any,
    of_part: Any,
    error: Error,
    denied: frozenset[str],
    nothing: CommittedOffset = _NOTHING,
) -> Sequence[Any]:
    """Builds the topics of a response. If the client requested all topics, omits those that it is not allowed to
    see. An offset that cannot be read costs only its own partition."""
    requested: dict[str, list[int]] = {}
    known = found.offsets
    if denied:
        known = {where: value for where, value in known.items() if where[0] not in denied}
    for topic, partitions in (
        ((topic, (partition,)) for topic, partition in (*known, *found.damaged) if topic not in denied)
        if asked is None
        else ((one.name, one.partition_indexes) for one in asked)
    ):
        requested.setdefault(topic, []).extend(partitions)
    topics = []
    for topic, partitions in requested.items():
        code = Error.TOPIC_AUTHORIZATION_FAILED if topic in denied else error
        parts = []
        for partition in partitions:
            one = known.get((topic, partition), nothing)
            is_damaged = (topic, partition) in found.damaged and not code
            parts.append(
                of_part(
                    partition_index=partition,
                    committed_offset=one.offset,
                    committed_leader_epoch=one.leader_epoch,
                    metadata=one.metadata,
                    error_code=Error.UNKNOWN_SERVER_ERROR if is_damaged else code,
                )
            )
        topics.append(of_topic(name=topic, partitions=parts))
    return topics


OPERATIONS_NOT_ASKED = -(1 << 31)
"""The authorized operations in the description of a group if the client did not ask for them (KIP-430)."""


def described(
    group_id: str, error: Error, found: Described | None = None, operations: int = OPERATIONS_NOT_ASKED
) -> Any:
    """Describes a group for DescribeGroups. ``operations`` are those that the client may perform on it, as bits."""
    form = message("DescribeGroupsResponse")
    of_group, of_member = form.struct("DescribedGroup"), form.struct("DescribedGroupMember")
    if found is None:
        return of_group(error_code=error, group_id=group_id)
    return of_group(
        authorized_operations=operations,
        group_id=group_id,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=tuple(
            of_member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ),
        once_subscribed=found.once_subscribed,
    )


def listed(groups: Iterable[Listed], request: Any, error: int) -> Any:
    """Builds the response to ListGroups, filtered by the requested states and types."""
    form = message("ListGroupsResponse")
    of_group = form.struct("ListedGroup")
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return form(
        error_code=error,
        groups=tuple(
            of_group(group_id=row.group_id, protocol_type=row.protocol_type, group_state=row.state, group_type=row.type)
            for row in sorted(groups)
            if (not states or row.state.lower() in states) and (not types or row.type in types)
        ),
    )


def _words(error: int) -> str:
    return named(error) if error else ""


def refused_heartbeat(error: Error, words: str | None) -> Any:
    return message("ConsumerGroupHeartbeatResponse")(error_code=error, error_message=words)


def consumer_heartbeat(answer: HeartbeatAnswer, member_id: str) -> Any:
    form = message("ConsumerGroupHeartbeatResponse")
    assignment = None
    if answer.assignment is not None:
        of_topic = form.struct("TopicPartitions")
        parts = tuple(of_topic(topic_id=topic_id, partitions=numbers) for topic_id, numbers in grouped(answer.ids))
        assignment = form.struct("Assignment")(topic_partitions=parts)
    return form(
        member_id=member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=max(1, round(answer.interval_s * 1000)),
        assignment=assignment,
    )
