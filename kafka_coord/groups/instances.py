"""Looks up in ZooKeeper which instance coordinates a client-assigned group, and asks instances, several at once, with
short timeouts: over Kafka's protocol, and over HTTP when they last heard from a consumer.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, MalformedValue, NotFound, RequestRefused, SettingsError
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.groups.cluster import Reading, decode_instances
from kafka_coord.kafka.authentication import broker_security
from kafka_coord.kafka.client import run_with
from kafka_coord.kafka.cluster import Address, ClusterClient
from kafka_coord.kafka.connection import of_group
from kafka_coord.kafka.coordinators import Ask, Coordinators, Find, Moving, by_topic, told_by, unless_moving
from kafka_coord.model import PartitionSet, TopicPartition, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.operations import COORDINATED
from kafka_coord.settings import host_and_port
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import numbers
from kafka_coord.zk.kinds import read_kinds
from kafka_coord.zk.store import GetChildren, GetData, Node, Store

T = TypeVar("T")

ENDPOINT = "kafka"
"""The name of the endpoint at which an instance serves Kafka clients."""
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class InstanceDirectory:
    """The running instances that serve Kafka clients. ``addresses`` maps each instance's broker id to the address where
    clients reach it. ``leaders`` maps each partition of the ``topic`` to its leading broker, or to -1 if it has no
    leader."""

    addresses: Mapping[int, str]
    leaders: Mapping[int, int]
    unreadable: tuple[Unreadable, ...] = ()
    topic: str = TOPIC
    brokers: tuple[int, ...] = ()
    """The running brokers."""

    @property
    def is_used(self) -> bool:
        """Whether any instance has ever served Kafka clients."""
        return bool(self.addresses or self.leaders)

    def coordinator_of(self, group: str) -> tuple[int, str]:
        """Returns the broker id and address of the group's coordinator. Raises :class:`BrokerError`."""
        partition = partition_of(group)
        problem = self.problem(partition)
        if problem:
            raise BrokerError(f"group {group!r} has no coordinator: {problem}")
        leader = self.leaders[partition]
        return leader, self.addresses[leader]

    def problem(self, partition: int) -> str:
        """Returns why no instance coordinates the groups of a partition, or "" if an instance does."""
        leader = self.leaders.get(partition)
        if leader is None:
            return f"partition {partition} of {self.topic} does not exist"
        if leader < 0:
            return f"partition {partition} of {self.topic} has no live leader"
        if leader not in self.addresses:
            return f"no instance beside broker {leader} serves Kafka clients"
        return ""


def read_instances(store: Store, topic: str = TOPIC) -> InstanceDirectory:
    """Reads the directory from ZooKeeper in two round trips."""
    reading = Reading(store)
    log = f"{layout.broker_topic(topic)}/partitions"
    listings = [GetChildren(path) for path in (layout.COORDINATORS, log, layout.BROKER_IDS)]
    instance_ids, partition_ids, brokers = map(numbers, reading.many(listings))
    found = reading.all(
        [GetData(layout.instance(number)) for number in instance_ids]
        + [GetData(layout.partition_state(topic, number)) for number in partition_ids]
    )
    addresses = {
        number: info.endpoints[ENDPOINT]
        for number, info in decode_instances(reading, instance_ids, found).items()
        if ENDPOINT in info.endpoints
    }
    leaders = {
        number: _leader(reading, where, found[GetData(where)])
        for number in partition_ids
        for where in [layout.partition_state(topic, number)]
    }
    return InstanceDirectory(addresses, leaders, tuple(reading.unreadable), topic, tuple(brokers))


def _leader(reading: Reading, where: str, node: object) -> int:
    if not isinstance(node, Node):
        return -1
    try:
        return fields.number(fields.load_object(node.data, where), "leader", where)
    except MalformedValue as error:
        reading.refuse(error.where, error.reason)
        return -1


@dataclass(frozen=True, slots=True)
class Silent:
    """An instance that did not answer, and the reason."""

    broker_id: int
    address: str
    reason: str


class AskedInstances:
    """Sends operators' requests to the running instances. ``properties`` are librdkafka settings; only those for
    security are used. ``timeout_s`` is the time limit for each response."""

    def __init__(self, store: Store, properties: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        self.store, self.properties, self._timeout_s = store, properties, timeout_s

    def directory(self, topic: str = TOPIC) -> InstanceDirectory:
        """Reads the instances' addresses and the leaders of the partitions of a ``topic`` that stores groups. Raises
        :class:`StoreUnavailable`."""
        return read_instances(self.store, topic)

    def ask_each(
        self, addresses: Mapping[int, str], conversation: Callable[[Ask], Awaitable[T]]
    ) -> tuple[dict[int, T], tuple[Silent, ...]]:
        """Runs ``conversation`` with all instances at once. Returns the results by broker id, and the instances that
        did not answer."""

        async def hold(coordinators: Coordinators, address: str) -> T | str:
            try:
                return await conversation(coordinators.at(_parsed(address)))
            except BrokerError as error:
                return str(error)

        async def hold_all(coordinators: Coordinators) -> list[T | str]:
            return await asyncio.gather(*(hold(coordinators, address) for address in addresses.values()))

        try:
            results = self._run(hold_all)
        except SettingsError as error:
            results = [str(error)] * len(addresses)
        answered, silent = {}, []
        for (broker_id, address), result in zip(addresses.items(), results, strict=True):
            if isinstance(result, str):
                silent.append(Silent(broker_id, address, result))
            else:
                answered[broker_id] = result
        return answered, tuple(silent)

    def ask_coordinator(
        self, group: str, conversation: Callable[[Ask], Awaitable[T]], timeout_s: float = 10.0
    ) -> tuple[int, T]:
        """Runs ``conversation`` with the group's coordinator. Returns the coordinator's broker id and the result.

        If ``conversation`` raises :class:`Moving`, looks up the coordinator again and retries. Raises
        :class:`BrokerError` if the coordinator does not answer, or is still moving after ``timeout_s``.
        """
        asked: tuple[int, str] = 0, ""

        async def find(group: str) -> tuple[int, Address]:
            nonlocal asked
            directory = self.directory()
            record = read_kinds(self.store, [group]).get(group)
            is_native = record is not None and record.kind not in COORDINATED
            asked = await self._beside_its_broker(directory, group) if is_native else directory.coordinator_of(group)
            return asked[0], _parsed(asked[1])

        try:
            return self._run(lambda coordinators: coordinators.ask(group, conversation, timeout_s), find)
        except Moving as moving:
            who = f"instance {asked[0]} at {asked[1]} still does not serve"
            who = who if asked[1] else "the brokers name no running instance that serves"
            raise BrokerError(f"{who} group {group!r} after {timeout_s:g} s: {moving}") from None

    async def _beside_its_broker(self, directory: InstanceDirectory, group: str) -> tuple[int, str]:
        """Returns the instance beside the broker that coordinates a native group. Any instance knows it."""
        addresses = [_parsed(one) for one in directory.addresses.values()]
        with closing(ClusterClient(addresses, broker_security(self.properties))) as cluster:
            broker_id, address = await told_by(cluster)(group)
        return broker_id, ":".join(map(str, address))

    def _run(self, work: Callable[[Coordinators], Awaitable[T]], find: Find | None = None) -> T:
        return run_with(
            ClusterClient([], broker_security(self.properties)),
            lambda cluster: work(Coordinators(cluster, find or told_by(cluster), self._timeout_s)),
        )


def _parsed(address: str) -> Address:
    try:
        return host_and_port(address)
    except ValueError:
        raise BrokerError(f"{address!r} is not host:port") from None


PRESENCES = "/socket-consumers"
"""The path on an instance's HTTP server."""

_TIMEOUT_S = 2.0
_MAX_BYTES = 16 << 20


class Presence(NamedTuple):
    """What an instance knows about one member. ``heard_ms_ago`` is the time since the instance last heard from the
    member. ``epoch`` (the member epoch) and ``held_ms`` (how long the instance has held the heartbeat) are known only
    for Kafka clients."""

    heard_ms_ago: int
    epoch: int | None = None
    held_ms: int | None = None


def read_page(url: str, path: str, tls: ssl.SSLContext | None = None) -> bytes:
    """Returns a page of an instance's HTTP server, whose URL is ``url``. Without ``tls``, this host must trust the CA
    of an HTTPS server. Raises ``OSError`` and :class:`MalformedValue`."""
    scheme, _, address = url.partition("://")
    if scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(address, timeout=_TIMEOUT_S, context=tls)
    else:
        connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        raw = response.read(_MAX_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise MalformedValue(f"{url}{path}", f"the HTTP status is {response.status}")
    return raw


def read_presences(url: str) -> Mapping[tuple[str, str], Presence]:
    """Returns the presence of each (group, consumer) that the instance serves. ``url`` is the URL of its HTTP server.
    For HTTPS, this host must trust the server's CA. Raises ``OSError`` and :class:`MalformedValue`.
    """
    raw, where = read_page(url, PRESENCES), f"{url}{PRESENCES}"
    try:
        rows = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedValue(where, f"not JSON ({error})") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedValue(where, "not an array of objects")
    return {
        (fields.text(row, "group", where), fields.text(row, "consumer", where)): Presence(
            fields.number(row, "heard_ms_ago", where, at_least=0),
            fields.optional_number(row, "epoch", where),
            fields.optional_number(row, "held_ms", where),
        )
        for row in rows
    }


Presences = Callable[[str], Mapping[tuple[str, str], Presence]]
"""Queries the instance at an HTTP URL about each (group, consumer) that it serves. Raises ``OSError`` and
:class:`MalformedValue`."""


_COMMIT, _DELETE_OFFSETS, _DELETE, _DESCRIBE, _LEAVE = 7, 0, 2, 5, 4
_DESCRIBE_CONSUMERS = 0, 1
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


def not_evicted(group: str) -> RequestRefused:
    why = "its members use KIP-848, and the brokers let nobody remove them"
    return RequestRefused(f"group {group!r}: {why}; no one was evicted")


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
            request = message("ConsumerGroupDescribeRequest")(group_ids=(group,))
            told = of_group((await ask("ConsumerGroupDescribe", _DESCRIBE_CONSUMERS, request)).groups, group)
            if not told.error_code:
                raise not_evicted(group)
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
