"""Moves the leadership of a partition to another replica, as an operator would."""

from __future__ import annotations

import asyncio
import time

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_coord.errors import BrokerError, RequestRefused, Timeout
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.wire.messages import message

_REASSIGN = "AlterPartitionReassignments"
_ANSWER_S = 10.0
_POLL_S = 0.05


def leader_of(bootstrap_servers: str, topic: str, partition: int, timeout_s: float = 10.0) -> tuple[int, list[int]]:
    """Returns the leader of a partition (or -1) and its replicas. Raises :class:`RequestRefused`."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        found = admin.list_topics(topic, timeout=timeout_s).topics[topic].partitions[partition]
    except (KafkaException, KeyError) as error:
        raise RequestRefused(f"cannot find the leader of {topic}-{partition}: {error}") from error
    return found.leader, list(found.replicas)


def move_leadership(bootstrap_servers: str, topic: str, partition: int, timeout_s: float = 30.0) -> tuple[int, int]:
    """Makes another live replica the preferred one and lets Kafka elect it. Returns the old and the new leader. Raises
    :class:`Timeout`, and :class:`RequestRefused` if the partition has only one replica.
    """
    deadline = time.monotonic() + timeout_s
    leader, replicas = leader_of(bootstrap_servers, topic, partition)
    others = [one for one in replicas if one != leader]
    if not others:
        raise RequestRefused(f"cannot move {topic}-{partition}, because its only replica is on broker {leader}")
    order = [*others, leader]
    while trouble := asyncio.run(_reassign(bootstrap_servers, topic, partition, tuple(order))):
        _wait(deadline, f"a reassignment of {topic}-{partition}: {trouble}")
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    while leader_of(bootstrap_servers, topic, partition)[0] != order[0]:
        _elect(admin, topic, partition)
        _wait(deadline, f"broker {order[0]} to lead {topic}-{partition}")
    return leader, order[0]


async def _reassign(bootstrap_servers: str, topic: str, partition: int, replicas: tuple[int, ...]) -> str:
    """Asks the controller once. Returns why it has refused, or ""."""
    form = message(f"{_REASSIGN}Request")
    part = form.struct("ReassignablePartition")(partition_index=partition, replicas=replicas)
    request = form(topics=(form.struct("ReassignableTopic")(name=topic, partitions=(part,)),))
    cluster = ClusterClient.of(bootstrap_servers, {})
    try:
        found = await cluster.metadata([])
        addresses = [(one.host, one.port) for one in found.brokers if one.node_id == found.controller_id]
        if not addresses:
            return "there is no controller"
        answer = await cluster.to(addresses[0]).ask(_REASSIGN, 0, request, _ANSWER_S)
    except BrokerError as error:
        return str(error)
    finally:
        cluster.close()
    codes = [answer.error_code, *(one.error_code for of in answer.responses for one in of.partitions)]
    return next((f"error {code}" for code in codes if code), "")


def _elect(admin: AdminClient, topic: str, partition: int) -> None:
    try:
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, partition)]).result(5.0)
    except TimeoutError:
        return  # the answer may be late, or lost with its connection; the caller looks who leads
    except KafkaException as error:
        if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            raise RequestRefused(f"cannot elect leaders: {error.args[0].str()}") from error


def _wait(deadline: float, what: str) -> None:
    if time.monotonic() >= deadline:
        raise Timeout(f"timed out waiting for {what}")
    time.sleep(_POLL_S)
