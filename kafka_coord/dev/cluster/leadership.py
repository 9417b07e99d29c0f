"""Moves the leadership of a partition to another replica, the way an operator of a ZooKeeper-mode cluster would."""

from __future__ import annotations

import json
import time

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_coord.errors import NodeExists, RequestRefused, Timeout
from kafka_coord.zk.store import Store

_REASSIGNING = "/admin/reassign_partitions"
_POLL_S = 0.05


def leader_of(bootstrap_servers: str, topic: str, partition: int, timeout_s: float = 10.0) -> tuple[int, list[int]]:
    """Returns the leader of a partition (or -1) and its replicas. Raises :class:`RequestRefused`."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        found = admin.list_topics(topic, timeout=timeout_s).topics[topic].partitions[partition]
    except (KafkaException, KeyError) as error:
        raise RequestRefused(f"cannot find the leader of {topic}-{partition}: {error}") from error
    return found.leader, list(found.replicas)


def move_leadership(
    store: Store, bootstrap_servers: str, topic: str, partition: int, timeout_s: float = 30.0
) -> tuple[int, int]:
    """Makes another live replica the preferred one and lets Kafka elect it. Returns the old and the new leader. Raises
    :class:`Timeout`, and :class:`RequestRefused` if the partition has only one replica.
    """
    deadline = time.monotonic() + timeout_s
    leader, replicas = leader_of(bootstrap_servers, topic, partition)
    others = [one for one in replicas if one != leader]
    if not others:
        raise RequestRefused(f"cannot move {topic}-{partition}, because its only replica is on broker {leader}")
    order = [*others, leader]
    wanted = [{"topic": topic, "partition": partition, "replicas": order}]
    data = json.dumps({"version": 1, "partitions": wanted}).encode()
    while True:
        try:
            store.create(_REASSIGNING, data)
            break
        except NodeExists:
            _wait(deadline, "the previous reassignment to finish")
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    while leader_of(bootstrap_servers, topic, partition)[0] != order[0]:
        if not store.exists(_REASSIGNING):
            _elect(admin, topic, partition)
        _wait(deadline, f"broker {order[0]} to lead {topic}-{partition}")
    return leader, order[0]


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
