"""A cluster as one of its brokers sees it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_coord.settings import host_and_port


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One broker's metadata: the live brokers, the controller, and for each topic its partitions with their leaders.

    ``controller`` and a leader are broker ids, -1 while there is none.
    """

    brokers: Mapping[int, str]
    controller: int
    topics: Mapping[str, Mapping[int, int]]

    def led_partitions(self, topic: str) -> int:
        """How many partitions of ``topic`` have a live leader; 0 for an unknown topic."""
        return sum(leader in self.brokers for leader in self.topics.get(topic, {}).values())


def view_of(address: str, timeout_s: float = 5.0) -> ClusterView | None:
    """The metadata of the broker at ``address`` (``host:port``); None while it does not answer."""
    try:
        # librdkafka retries and logs a refused connection; asking the socket first is quiet and quick.
        socket.create_connection(host_and_port(address), timeout=1).close()
        # A fresh client: one that has learnt of other brokers would ask any of them.
        answer = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=timeout_s)
    except (OSError, KafkaException):
        return None
    return ClusterView(
        brokers={broker.id: f"{broker.host}:{broker.port}" for broker in answer.brokers.values()},
        controller=answer.controller_id,
        topics={
            name: {number: partition.leader for number, partition in topic.partitions.items()}
            for name, topic in answer.topics.items()
            if topic.error is None
        },
    )
