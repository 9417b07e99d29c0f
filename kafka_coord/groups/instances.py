"""Looks up in ZooKeeper which instance coordinates a client-assigned group, and queries instances over Kafka's
protocol, several at once, with short timeouts.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kafka_coord.errors import BrokerError, MalformedValue, SettingsError
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.groups.cluster import decode_instances
from kafka_coord.groups.reading import Reading
from kafka_coord.kafka.authentication import broker_security
from kafka_coord.kafka.cluster import Address, ClusterClient
from kafka_coord.kafka.coordinators import Ask, Coordinators, Find, Moving, told_by
from kafka_coord.model import Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.settings import host_and_port
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import numbers
from kafka_coord.zk.store import GetChildren, GetData, Node, Store

T = TypeVar("T")

ENDPOINT = "kafka"
"""The name of the endpoint at which an instance serves Kafka clients."""
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class InstanceDirectory:
    """The running instances that serve Kafka clients. ``addresses`` maps each instance's broker id to the address where
    clients reach it. ``leaders`` maps each partition of the groups log to its leading broker, or to -1 if it has no
    leader."""

    addresses: Mapping[int, str]
    leaders: Mapping[int, int]
    unreadable: tuple[Unreadable, ...] = ()

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
            return f"partition {partition} of {TOPIC} does not exist"
        if leader < 0:
            return f"partition {partition} of {TOPIC} has no live leader"
        if leader not in self.addresses:
            return f"no instance beside broker {leader} serves Kafka clients"
        return ""


def read_instances(store: Store) -> InstanceDirectory:
    """Reads the directory from ZooKeeper in two round trips."""
    reading = Reading(store)
    log = f"{layout.broker_topic(TOPIC)}/partitions"
    instances, partitions = reading.many([GetChildren(layout.COORDINATORS), GetChildren(log)])
    instance_ids, partition_ids = numbers(instances), numbers(partitions)
    found = reading.all(
        [GetData(layout.instance(number)) for number in instance_ids]
        + [GetData(layout.partition_state(TOPIC, number)) for number in partition_ids]
    )
    addresses = {
        number: info.endpoints[ENDPOINT]
        for number, info in decode_instances(reading, instance_ids, found).items()
        if ENDPOINT in info.endpoints
    }
    leaders = {
        number: _leader(reading, number, found[GetData(layout.partition_state(TOPIC, number))])
        for number in partition_ids
    }
    return InstanceDirectory(addresses, leaders, tuple(reading.unreadable))


def _leader(reading: Reading, partition: int, node: object) -> int:
    if not isinstance(node, Node):
        return -1
    where = layout.partition_state(TOPIC, partition)
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

    def directory(self) -> InstanceDirectory:
        """Reads the instances' addresses and the leaders of the groups log's partitions. Raises
        :class:`StoreUnavailable`."""
        return read_instances(self.store)

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
            asked = self.directory().coordinator_of(group)
            return asked[0], _parsed(asked[1])

        try:
            return self._run(lambda coordinators: coordinators.ask(group, conversation, timeout_s), find)
        except Moving as moving:
            problem = f"instance {asked[0]} at {asked[1]} still does not serve group {group!r}"
            raise BrokerError(f"{problem} after {timeout_s:g} s: {moving}") from None

    def _run(self, work: Callable[[Coordinators], Awaitable[T]], find: Find | None = None) -> T:
        async def run() -> T:
            with closing(ClusterClient([], broker_security(self.properties))) as cluster:
                return await work(Coordinators(cluster, find or told_by(cluster), self._timeout_s))

        return asyncio.run(run())


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
