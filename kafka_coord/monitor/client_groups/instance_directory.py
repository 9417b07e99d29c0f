"""Looks up in ZooKeeper which instance coordinates a client-assigned group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_coord.errors import BrokerError, MalformedValue
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.model import Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.cluster import decode_instances
from kafka_coord.monitor.reading import Reading
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import numbers
from kafka_coord.zk.store import GetChildren, GetData, Node, Store

ENDPOINT = "kafka"
"""The name of the endpoint at which an instance serves Kafka clients."""


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
