"""Every kind of group keeps one contract: what it answers to each request, and which error comes first."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.bench.kafka_groups.client import RawClient
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.groups import Groups
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.kafka.connection import told_versions
from kafka_coord.wire.consumer_protocol import assignment, encoded_assignment, encoded_subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.consumer_group_side import Beating, ConsumerGroupSide
from tests.frontends.kafka.side_by_side import Side
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.usefixtures("service")]
TOPIC, OTHER = "contract", "contract-other"
STRANGER = SimpleNamespace(member_id="stranger", generation_id=1)
OFFSET, EARLIER, LARGE = 5, 3, "m" * 4097
COMMIT, FETCH = 9, 9
"""The versions of OffsetCommit and OffsetFetch that know the members of every kind."""
_numbers = itertools.count(1)


async def _classic(side: Side) -> Any:
    """The only member of the group, which owns both partitions. Any leader assigns them to itself; the coordinator
    overrules that in a managed group."""
    protocols = side.protocols("range", metadata=encoded_subscription(TOPIC))
    own = message("SyncGroupRequest").struct("SyncGroupRequestAssignment")
    while True:
        joined = await side.join("m1", protocols=protocols, member_id=next(iter(side.names), ""))
        mine = own(member_id=joined.member_id, assignment=encoded_assignment([(TOPIC, 0), (TOPIC, 1)]))
        synced = await side.sync(joined, assign=False, assignments=(mine,))
        found = assignment(synced.assignment) if not synced.error_code else None
        if found and sum(len(one.partitions) for one in found.assigned_partitions) == 2:
            return joined
        await asyncio.sleep(0.05)


async def _kip_848(side: Any) -> Any:
    return await side.member("m1")


async def _beat_classic(side: Side, member: Any) -> Error:
    return Error((await side.heartbeat(member)).error_code)


async def _beat_kip_848(side: Any, member: Any) -> Error:
    return Error((await side.beat(Beating(member.member_id, member.generation_id))).error_code)


async def _leave_classic(side: Side, member: Any) -> Error:
    answer = await side.leave(member, 3)
    return Error(answer.error_code or answer.members[0].error_code)


async def _leave_kip_848(side: Any, member: Any) -> Error:
    return Error((await side.beat(Beating(member.member_id), member_epoch=-1)).error_code)


@dataclass(frozen=True)
class Kind:
    """A kind of group with members of one protocol. ``newer`` and ``newer_commit`` are the errors for a generation that
    the group has not reached. ``loading`` is the answer to a heartbeat while the group is loaded, and ``unknown`` that
    to a join with an id that the group does not know: a managed group admits a member that comes back under its id."""

    name: str
    is_managed: bool
    side: type[Side]
    member: Callable[[Any], Awaitable[Any]]
    beat: Callable[[Any, Any], Awaitable[Error]]
    leave: Callable[[Any, Any], Awaitable[Error]]
    newer: Error = Error.ILLEGAL_GENERATION
    newer_commit: Error = Error.ILLEGAL_GENERATION
    loading: Error = Error.NONE
    unknown: Error = Error.UNKNOWN_MEMBER_ID


_OF_CLASSIC = _classic, _beat_classic, _leave_classic
CLIENT_ASSIGNED = Kind("client-assigned", False, Side, *_OF_CLASSIC)
CLASSIC = Kind("managed, classic", True, Side, *_OF_CLASSIC, unknown=Error.NONE)
KIP_848 = Kind(
    *("managed, KIP-848", True, ConsumerGroupSide, _kip_848, _beat_kip_848, _leave_kip_848),
    *(Error.FENCED_MEMBER_EPOCH, Error.STALE_MEMBER_EPOCH, Error.COORDINATOR_LOAD_IN_PROGRESS),
)
KINDS = CLIENT_ASSIGNED, CLASSIC, KIP_848
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
with_sync = pytest.mark.parametrize("kind", [CLIENT_ASSIGNED, CLASSIC], ids=lambda kind: kind.name)


@pytest.fixture(scope="module", autouse=True)
def _topics(front: Front) -> None:
    for name in (TOPIC, OTHER):
        TopicAdmin(front.cluster.bootstrap_servers).create(name, 2, replication=1)


def play(front: Front, kind: Kind, contract: Callable[[Any], Awaitable[None]]) -> None:
    """Plays with a new group of the kind. No answer is recorded, and no heartbeat is held."""
    group = f"contract-{next(_numbers)}"
    host, _, port = front.serving(group).address.rpartition(":")
    if kind.is_managed:
        ensure_group(front.store, group)
        eventually(lambda: group in front.serving(group).managed.groups)

    async def run() -> None:
        side = kind.side((host, int(port)), group, TOPIC)
        await side.find()
        try:
            async with asyncio.timeout(60):
                await contract(side)
        finally:
            for connection in side.open:
                connection.close()

    asyncio.run(run())


def newer(member: Any) -> Any:
    return SimpleNamespace(member_id=member.member_id, generation_id=member.generation_id + 7)


async def commit(side: Side, member: Any = None, **fields: Any) -> Error:
    answer = await side.commit(member, COMMIT, **{"offset": OFFSET} | fields)
    return Error(answer.topics[0].partitions[0].error_code)


async def fetched(side: Side, **fields: Any) -> tuple[Error, dict[tuple[str, int], int]]:
    """The group's error, and the offsets that it has."""
    (answer,) = (await side.offsets(FETCH, **fields)).groups
    found = {
        (one.name, part.partition_index): part.committed_offset for one in answer.topics for part in one.partitions
    }
    return Error(answer.error_code), {where: offset for where, offset in found.items() if offset >= 0}


async def deleted(side: Side) -> Error:
    answer = await side.ask("DeleteGroups", 2, groups_names=(side.group,))
    return Error(answer.results[0].error_code)


async def without_offsets(side: Side, *where: tuple[str, int]) -> list[Error]:
    """Deletes offsets. Returns the error of the request, or of each partition."""
    form = message("OffsetDeleteRequest")
    part, topic = form.struct("OffsetDeleteRequestPartition"), form.struct("OffsetDeleteRequestTopic")
    topics = tuple(topic(name=name, partitions=(part(partition_index=number),)) for name, number in where)
    answer = await Side.ask(side, "OffsetDelete", 0, group_id=side.group, topics=topics)  # without repeating it
    if answer.error_code:
        return [Error(answer.error_code)]
    return [Error(one.partitions[0].error_code) for one in answer.topics]


async def described(side: Side) -> Any:
    return (await side.describe()).groups[0]


@contextmanager
def being_converted(front: Front, group: str) -> Iterator[None]:
    """Requests that wait for the end of the conversion wait only shortly, so that no session ends meanwhile."""
    wait = Groups.wait_until_loaded
    is_short = mock.patch.object(Groups, "wait_until_loaded", lambda groups, names: wait(groups, names, 0.1))
    with is_short, front.serving(group).coordinator.groups.change(group):
        yield


@each_kind
def test_a_member_joins_beats_and_leaves(front: Front, kind: Kind) -> None:
    async def contract(side: Any) -> None:
        member = await kind.member(side)
        assert await kind.beat(side, member) is Error.NONE
        assert await kind.beat(side, newer(member)) is kind.newer
        assert await kind.beat(side, STRANGER) is Error.UNKNOWN_MEMBER_ID
        assert await kind.beat(side, newer(STRANGER)) is Error.UNKNOWN_MEMBER_ID, "the member comes first"
        assert await kind.leave(side, STRANGER) is Error.UNKNOWN_MEMBER_ID
        assert await kind.beat(side, member) is Error.NONE
        assert await kind.leave(side, member) is Error.NONE
        assert await kind.beat(side, member) is Error.UNKNOWN_MEMBER_ID
        assert await kind.leave(side, member) is Error.UNKNOWN_MEMBER_ID

    play(front, kind, contract)


@with_sync
def test_joins_and_syncs_are_refused_in_this_order(front: Front, kind: Kind) -> None:
    async def joined(side: Side, **fields: Any) -> Error:
        protocols = side.protocols("range", metadata=encoded_subscription(TOPIC))
        given: dict[str, Any] = {"group_id": side.group, "protocol_type": "consumer", "protocols": protocols}
        given |= {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 3_000, "member_id": "stranger"}
        return Error((await side.ask("JoinGroup", 5, **given | fields)).error_code)

    async def synced(side: Side, member: Any, **fields: Any) -> Error:
        given = {"protocol_type": "consumer", "protocol_name": "range"} | fields
        return Error((await side.sync(member, 5, assign=False, **given)).error_code)

    async def contract(side: Side) -> None:
        member = await kind.member(side)
        other_type = {"protocol_type": "connect"}
        assert await joined(side, group_id="", session_timeout_ms=1) is Error.INVALID_GROUP_ID
        assert await joined(side, session_timeout_ms=1, **other_type) is Error.INVALID_SESSION_TIMEOUT
        assert await joined(side, **other_type) is Error.INCONSISTENT_GROUP_PROTOCOL
        for refused in (other_type, {"protocol_type": ""}, {"protocols": ()}):
            assert await joined(side, member_id="", **refused) is Error.INCONSISTENT_GROUP_PROTOCOL
        assert await joined(side, member_id="") is Error.MEMBER_ID_REQUIRED
        at = _syncing(member)
        assert await synced(side, _syncing(STRANGER), group_id="") is Error.INVALID_GROUP_ID
        assert await synced(side, _syncing(STRANGER)) is Error.UNKNOWN_MEMBER_ID
        assert await synced(side, _syncing(STRANGER), **other_type) is Error.UNKNOWN_MEMBER_ID
        assert await synced(side, _syncing(newer(member)), **other_type) is Error.ILLEGAL_GENERATION
        assert await synced(side, at, protocol_name=None) is Error.INCONSISTENT_GROUP_PROTOCOL
        assert await synced(side, at, **other_type) is Error.INCONSISTENT_GROUP_PROTOCOL
        assert await synced(side, at, protocol_name="other") is Error.INCONSISTENT_GROUP_PROTOCOL
        assert await synced(side, at) is Error.NONE
        assert await joined(side) is kind.unknown

    play(front, kind, contract)


@with_sync
@pytest.mark.parametrize("which", ["dynamic", "static"])
def test_a_member_is_refused_under_an_instance_id_that_is_not_its_own(front: Front, kind: Kind, which: str) -> None:
    """As in Kafka: the id of another static member fences, one that no static member has is unknown."""

    async def answers_to(side: Side, member: Any, instance: str | None) -> list[Error]:
        named = {"group_instance_id": instance}
        beat = await side.heartbeat(member, **named)
        synced = await side.sync(_syncing(member), 5, assign=False, protocol_type="consumer", **named)
        committed = await commit(side, member, **named)
        return [Error(beat.error_code), Error(synced.error_code), committed]

    async def left(side: Side, member: Any, instance: Any) -> Error:
        return Error((await side.leave(member, 3, instance=instance)).members[0].error_code)

    async def contract(side: Side) -> None:
        mine = {"group_instance_id": "mine"} if which == "static" else {}
        protocols = side.protocols("range", metadata=encoded_subscription(TOPIC))
        member = await side.join("m1", protocols=protocols, **mine)
        await side.sync(member, assign=False, **mine)
        joining = asyncio.create_task(side.join("s1", protocols=protocols, group_instance_id="i1"))
        while not joining.done():
            if (await side.heartbeat(member, **mine)).error_code == Error.REBALANCE_IN_PROGRESS:
                member = await side.join("m1", protocols=protocols, member_id=member.member_id, **mine)
                await side.sync(member, assign=False, **mine)
            await asyncio.sleep(0.02)
        other = await joining
        unknown, fenced = Error.UNKNOWN_MEMBER_ID, Error.FENCED_INSTANCE_ID
        ids = {"i1": fenced, "nobody": unknown, "": unknown, member.member_id: unknown, other.member_id: unknown}
        for instance, error in ids.items():
            assert await answers_to(side, member, instance) == [error] * 3, instance
            assert await left(side, member, instance) is error, instance
        nameless, misnamed = (SimpleNamespace(member_id=of, generation_id=member.generation_id) for of in ("", "i1"))
        assert await answers_to(side, nameless, "i1") == [fenced] * 3
        assert await answers_to(side, misnamed, None) == [unknown] * 3, "an instance id is no member id"
        assert Error((await side.heartbeat(member, **mine)).error_code) in {Error.NONE, Error.REBALANCE_IN_PROGRESS}
        assert await left(side, member, mine.get("group_instance_id")) is Error.NONE
        assert await left(side, nameless, "i1") is Error.NONE, "a tool removes a static member by its instance id alone"

    play(front, kind, contract)


def _syncing(member: Any) -> Any:
    who = {"member_id": member.member_id, "generation_id": member.generation_id}
    return SimpleNamespace(**who, members=(), protocol_name="range")


@each_kind
def test_members_commit_and_nobody_else_does_while_there_are_any(front: Front, kind: Kind) -> None:
    async def contract(side: Side) -> None:
        assert await commit(side, STRANGER) in {Error.UNKNOWN_MEMBER_ID, kind.newer_commit}
        member = await kind.member(side)
        assert await commit(side, member) is Error.NONE
        assert await commit(side, newer(member)) is kind.newer_commit
        assert await commit(side, STRANGER) is Error.UNKNOWN_MEMBER_ID
        assert await commit(side, newer(STRANGER)) is Error.UNKNOWN_MEMBER_ID, "the member comes first"
        assert await commit(side) is Error.UNKNOWN_MEMBER_ID, "a tool must wait until the members have left"
        assert await commit(side, STRANGER, partition=99) is Error.UNKNOWN_TOPIC_OR_PARTITION, (
            "the partition comes first"
        )
        assert await commit(side, member, topic="no-such") is Error.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(side, member, metadata=LARGE) is Error.OFFSET_METADATA_TOO_LARGE
        assert await commit(side, STRANGER, metadata=LARGE) is Error.UNKNOWN_MEMBER_ID, "the member comes first"
        assert await fetched(side) == (Error.NONE, {(TOPIC, 0): OFFSET}), "nothing else was written"
        await kind.leave(side, member)
        assert await _of_tool(side, offset=EARLIER, topic=OTHER) is Error.NONE
        assert await commit(side, metadata=LARGE) is Error.OFFSET_METADATA_TOO_LARGE
        assert await fetched(side, partitions=None) == (Error.NONE, {(TOPIC, 0): OFFSET, (OTHER, 0): EARLIER})

    play(front, kind, contract)


async def _of_tool(side: Side, **fields: Any) -> Error:
    """A tool's commit, which succeeds once the elected coordinator has seen that the member has left."""
    while (error := await commit(side, **fields)) is Error.UNKNOWN_MEMBER_ID:
        await asyncio.sleep(0.05)
    return error


@each_kind
def test_offsets_are_deleted_only_where_nobody_needs_them(front: Front, kind: Kind) -> None:
    async def contract(side: Side) -> None:
        assert await without_offsets(side, (TOPIC, 0)) == [Error.NONE if kind.is_managed else Error.GROUP_ID_NOT_FOUND]
        for topic in (TOPIC, OTHER):
            assert await commit(side, topic=topic) is Error.NONE
        member = await kind.member(side)
        unknown, subscribed = Error.UNKNOWN_TOPIC_OR_PARTITION, Error.GROUP_SUBSCRIBED_TO_TOPIC
        where = (TOPIC, 0), (TOPIC, 99), ("no-such", 0), (OTHER, 0)
        assert await without_offsets(side, *where) == [subscribed, unknown, unknown, Error.NONE]
        assert await fetched(side, partitions=None) == (Error.NONE, {(TOPIC, 0): OFFSET})
        await kind.leave(side, member)
        while await without_offsets(side, (TOPIC, 0)) != [Error.NONE]:
            await asyncio.sleep(0.05)
        assert await fetched(side, partitions=None) == (Error.NONE, {})

    play(front, kind, contract)


@each_kind
def test_a_group_is_described_and_deleted_once_it_is_empty(front: Front, kind: Kind) -> None:
    async def listed(side: Side) -> list[tuple[str, str, str]]:
        rows = (await side.ask("ListGroups", 5)).groups
        return [(one.group_state, one.protocol_type, one.group_type) for one in rows if one.group_id == side.group]

    async def contract(side: Side) -> None:
        type_ = "consumer" if kind.is_managed else "classic"
        member = await kind.member(side)
        eventually_stable = await described(side)
        while eventually_stable.group_state != "Stable":
            eventually_stable = await described(side)
        (shown,) = eventually_stable.members
        assert (eventually_stable.error_code, eventually_stable.protocol_type) == (Error.NONE, "consumer")
        assert (shown.member_id, shown.client_host) == (member.member_id, "/127.0.0.1")
        held = assignment(shown.member_assignment)
        assert held is not None
        assert [(one.topic, sorted(one.partitions)) for one in held.assigned_partitions] == [(TOPIC, [0, 1])]
        assert await listed(side) == [("Stable", "consumer", type_)]
        (consumers,) = (await side.ask("ConsumerGroupDescribe", 1, group_ids=(side.group,))).groups
        assert consumers.error_code == (Error.NONE if kind.is_managed else Error.GROUP_ID_NOT_FOUND)
        assert await deleted(side) is Error.NON_EMPTY_GROUP
        assert await commit(side, member) is Error.NONE
        await kind.leave(side, member)
        while (error := await deleted(side)) is Error.NON_EMPTY_GROUP:
            await asyncio.sleep(0.05)
        assert error is Error.NONE
        assert await deleted(side) is Error.GROUP_ID_NOT_FOUND
        assert await without_offsets(side, (TOPIC, 0)) == [Error.GROUP_ID_NOT_FOUND]
        assert (await described(side)).group_state == "Dead"
        assert await listed(side) == []
        assert await fetched(side, partitions=None) == (Error.NONE, {}), "its offsets went with it"
        assert await commit(side, member) in {Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION}

    play(front, kind, contract)


async def every_answer(side: Any, kind: Kind, member: Any) -> dict[str, Error]:
    """The answers to all requests about the group."""
    asking = side.connect()
    joined = await asking.ask(
        "JoinGroup",
        5,
        message("JoinGroupRequest")(
            group_id=side.group,
            session_timeout_ms=1,
            member_id="stranger",
            protocol_type="consumer",
            protocols=side.protocols("range"),
        ),
    )
    synced = await asking.ask(
        "SyncGroup", 3, message("SyncGroupRequest")(group_id=side.group, member_id="stranger", generation_id=9)
    )
    leaving = message("LeaveGroupRequest")(group_id=side.group, member_id="stranger")
    left = await asking.ask("LeaveGroup", 1, leaving)
    sent = {"group_id": side.group, "member_id": member.member_id, "member_epoch": member.generation_id}
    if kind is KIP_848:
        beat = await asking.ask("ConsumerGroupHeartbeat", 1, message("ConsumerGroupHeartbeatRequest")(**sent))
    else:
        beat = await side.heartbeat(member)
    return {
        "join": Error(joined.error_code),
        "sync": Error(synced.error_code),
        "heartbeat": Error(beat.error_code),
        "leave": Error(left.error_code),
        "commit": await commit(side, STRANGER, metadata=LARGE),
        "fetch": (await fetched(side))[0],
        "describe": Error((await described(side)).error_code),
        "delete": await deleted(side),
        "delete offsets": (await without_offsets(side, (TOPIC, 0)))[0],
    }


@each_kind
def test_an_instance_that_does_not_serve_the_group_says_so_before_anything_else(front: Front, kind: Kind) -> None:
    async def contract(side: Any) -> None:
        member = await kind.member(side)
        serving = front.coordinator(partition_of(side.group))
        other = next(one for number, one in front.listeners.items() if number != serving)
        at, (host, _, port) = side.coordinator, other.address.rpartition(":")
        side.coordinator = host, int(port)
        answers = await every_answer(side, kind, member)
        assert answers == dict.fromkeys(answers, Error.NOT_COORDINATOR)
        side.coordinator = at
        assert await kind.beat(side, member) is Error.NONE, "nothing has changed"

    play(front, kind, contract)


@each_kind
def test_while_a_group_is_converted_its_clients_wait(front: Front, kind: Kind) -> None:
    async def contract(side: Any) -> None:
        member = await kind.member(side)
        assert await commit(side, member) is Error.NONE
        with being_converted(front, side.group):
            found = await every_answer(side, kind, member)
        loading = dict.fromkeys(found, Error.COORDINATOR_LOAD_IN_PROGRESS)
        assert found == loading | {"sync": Error.REBALANCE_IN_PROGRESS, "heartbeat": kind.loading}
        assert await fetched(side) == (Error.NONE, {(TOPIC, 0): OFFSET})
        assert await kind.beat(side, member) is Error.NONE

    play(front, kind, contract)


def test_no_answer_names_an_instance_that_is_gone_in_any_version_that_clients_are_offered(front: Front) -> None:
    gone, asked, *_ = front.others
    listener = front.listeners[asked]
    bodies: dict[str, dict[str, Any]] = {
        "Metadata": {"topics": (message("MetadataRequest").struct("MetadataRequestTopic")(name=TOPIC),)},
        "DescribeCluster": {},
        "Fetch": {"max_wait_ms": 0},
        "Produce": {"acks": -1, "timeout_ms": 100},
    }
    front.store.delete(layout.instance(gone))
    try:
        eventually(lambda: gone not in listener.instances.running())
        with RawClient(listener.address) as client:
            offered = told_versions(client.ask("ApiVersions", 0, message("ApiVersionsRequest")()))
            for name, body in bodies.items():
                form = message(f"{name}Request")
                first, last = offered[form.api_key or 0]
                if name == "Produce":  # Kafka 4 offers earlier ones for old clients (KAFKA-18659), and refuses them
                    first = max(first, 3)
                for version in range(first, last + 1):
                    told = client.ask(name, version, form(**body))
                    nodes = getattr(told, "brokers", None) or getattr(told, "node_endpoints", ())
                    named = {getattr(one, "node_id", None) or one.broker_id for one in nodes}
                    assert gone not in named, (name, version)
                    assert named or name in {"Fetch", "Produce"}
    finally:
        front.publish(gone)
    eventually(lambda: gone in listener.instances.running())
