"""Members of client-assigned groups, without a client library. Each has one connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.bench.kafka_groups.client import RawClient, request_bytes, without_errors
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.wire.consumer_protocol import encoded_subscription
from kafka_coord.wire.messages import message

TOPIC, WIDE_TOPIC = "flights", "wide"
_FIND, _JOIN, _SYNC, COMMIT, FETCH, HEARTBEAT = 3, 3, 2, 9, 9, 4
_SESSION_MS = 600_000
_WITHIN_S = 60.0
_AT_ONCE = 8
_MOVING = frozenset({Error.NOT_COORDINATOR, Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE})


@dataclass(slots=True, eq=False)
class Member:
    """One member. Joining sets ``generation`` and ``member_id``."""

    client: RawClient
    group: str
    member_id: str = ""
    generation: int = -1

    def join_request(self) -> bytes:
        form = message("JoinGroupRequest")
        protocol = form.struct("JoinGroupRequestProtocol")(name="range", metadata=encoded_subscription(TOPIC))
        value = form(
            group_id=self.group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=(protocol,),
        )
        return request_bytes("JoinGroup", _JOIN, value)

    def commit(self, partitions: int, offset: int, topic: str = TOPIC) -> Any:
        """Returns a request that commits ``offset`` for the topic's first ``partitions`` partitions."""
        form = message("OffsetCommitRequest")
        part = form.struct("OffsetCommitRequestPartition")
        parts = tuple(
            part(partition_index=n, committed_offset=offset, committed_metadata="") for n in range(partitions)
        )
        named = form.struct("OffsetCommitRequestTopic")(name=topic, partitions=parts)
        return form(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=(named,),
        )

    def heartbeat(self) -> Any:
        return message("HeartbeatRequest")(group_id=self.group, generation_id=self.generation, member_id=self.member_id)


def offset_fetch(groups: Iterable[str], partitions: int, topic: str = TOPIC) -> Any:
    """Returns a request for each group's offsets in the topic's first ``partitions`` partitions."""
    form = message("OffsetFetchRequest")
    named = form.struct("OffsetFetchRequestTopics")(name=topic, partition_indexes=tuple(range(partitions)))
    one = form.struct("OffsetFetchRequestGroup")
    return form(groups=tuple(one(group_id=group, topics=(named,)) for group in groups))


def commit_to_each(address: str, groups: Sequence[str], topic: str, partitions: int, offset: int) -> None:
    """Commits ``offset`` in each group for the topic's first ``partitions`` partitions. The groups need no members."""
    with ExitStack() as running:
        clients = [running.enter_context(RawClient(address)) for _ in range(_AT_ONCE)]
        for at in range(0, len(groups), _AT_ONCE):
            some = groups[at : at + _AT_ONCE]
            for client, group in zip(clients, some, strict=False):
                value = Member(client, group).commit(partitions, offset, topic)
                client.send(request_bytes("OffsetCommit", COMMIT, value))
            for client, _ in zip(clients, some, strict=False):
                without_errors(client.answer("OffsetCommit", COMMIT), "OffsetCommit")


def await_coordinator(address: str, groups: Sequence[str], within_s: float = _WITHIN_S) -> None:
    """Waits until the server at ``address`` coordinates all of ``groups``."""
    with RawClient(address) as client:

        def coordinates() -> bool:
            # Kafka creates its offsets topic on the first coordinator request.
            client.ask("FindCoordinator", _FIND, message("FindCoordinatorRequest")(key=groups[0]))
            answer = client.ask("OffsetFetch", FETCH, offset_fetch(groups, 1))
            codes = {one.error_code for one in answer.groups}
            if codes - _MOVING - {Error.NONE}:
                without_errors(answer, "OffsetFetch")
            return codes == {Error.NONE}

        awaited(coordinates, within_s, f"{address} to coordinate {len(groups)} groups")


def join_all(members: Sequence[Member]) -> None:
    """Makes all members join within the initial rebalance delay, so that all members of a group end up in one
    generation. Group leaders do not assign any partitions.
    """
    for member in members:
        member.client.send(member.join_request())
    for member in members:
        joined = without_errors(member.client.answer("JoinGroup", _JOIN), "JoinGroup")
        member.member_id, member.generation = joined.member_id, joined.generation_id
    for member in members:
        form = message("SyncGroupRequest")
        value = form(group_id=member.group, generation_id=member.generation, member_id=member.member_id)
        member.client.send(request_bytes("SyncGroup", _SYNC, value))
    for member in members:
        without_errors(member.client.answer("SyncGroup", _SYNC), "SyncGroup")
