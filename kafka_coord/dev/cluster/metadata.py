"""Reads a cluster's metadata from one of its brokers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_coord.settings import host_and_port


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One broker's metadata: the live brokers, the controller, and the leader of each partition.

    ``controller`` and leaders are broker ids, or -1 if there is none.
    """

    brokers: Mapping[int, str]
    controller: int
    topics: Mapping[str, Mapping[int, int]]

    def led_partitions(self, topic: str) -> int:
        """Returns how many partitions of ``topic`` have a live leader. An unknown topic has 0."""
        return sum(leader in self.brokers for leader in self.topics.get(topic, {}).values())


def view_of(address: str, timeout_s: float = 5.0) -> ClusterView | None:
    """Returns the metadata of the broker at ``address`` (``host:port``), or None if the broker does not answer."""
    try:
        # If the connection is refused, librdkafka retries and logs it, so try a plain socket first: it fails fast and
        # logs nothing.
        socket.create_connection(host_and_port(address), timeout=1).close()
        # A new client each time, because one that knows other brokers might ask any of them.
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
