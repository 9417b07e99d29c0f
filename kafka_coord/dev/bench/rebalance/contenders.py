"""Lists the contenders: this project's consumer, and Kafka's own group protocols with default and fastest settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Protocol(StrEnum):
    """The protocol by which members get their partitions."""

    OURS = "kafka_coord"
    CLASSIC = "classic"
    """JoinGroup and SyncGroup. All partitions stop before any starts (librdkafka's default, ``range``)."""
    COOPERATIVE = "cooperative"
    """Like ``classic``, with ``cooperative-sticky``: only moving partitions stop (KIP-429)."""
    KIP848 = "kip848"
    """ConsumerGroupHeartbeat: the broker decides (KIP-848)."""
    MANAGED = "managed"
    """The clients of ``kip848`` in a managed group, which an instance of this project coordinates."""
    KIP848_JAVA = "kip848-java"
    """Like ``kip848``, with Kafka's own client instead of librdkafka."""
    MANAGED_JAVA = "managed-java"
    MANAGED_CLASSIC = "managed-classic"
    """The clients of ``classic`` in a managed group."""
    MANAGED_COOPERATIVE = "managed-cooperative"
    """The clients of ``cooperative`` in a managed group."""
    MANAGED_JAVA_CLASSIC = "managed-java-classic"
    """Kafka's own client in a managed group, with its default assignors. All its partitions stop before any starts."""
    MANAGED_JAVA_COOPERATIVE = "managed-java-cooperative"
    AIOKAFKA = "aiokafka"
    """Other libraries with their default settings, in classic groups on a broker in ZooKeeper mode."""
    KAFKA_PYTHON = "kafka-python"
    ASSIGNED_AIOKAFKA = "client-assigned-aiokafka"
    """aiokafka or kafka-python in a client-assigned group of an instance."""
    ASSIGNED_KAFKA_PYTHON = "client-assigned-kafka-python"
    MANAGED_AIOKAFKA = "managed-aiokafka"
    MANAGED_KAFKA_PYTHON = "managed-kafka-python"


_AIOKAFKA = (Protocol.AIOKAFKA, Protocol.ASSIGNED_AIOKAFKA, Protocol.MANAGED_AIOKAFKA)
_KAFKA_PYTHON = (Protocol.KAFKA_PYTHON, Protocol.ASSIGNED_KAFKA_PYTHON, Protocol.MANAGED_KAFKA_PYTHON)
LIBRARIES = dict.fromkeys(_AIOKAFKA, "aiokafka==0.14.0") | dict.fromkeys(_KAFKA_PYTHON, "kafka-python==3.0.12")
"""Python clients other than confluent-kafka, as pip requirements."""
CLIENT_ASSIGNED = (Protocol.ASSIGNED_AIOKAFKA, Protocol.ASSIGNED_KAFKA_PYTHON)
MANAGED_JAVA = (Protocol.MANAGED_JAVA, Protocol.MANAGED_JAVA_CLASSIC, Protocol.MANAGED_JAVA_COOPERATIVE)
JAVA = (Protocol.KIP848_JAVA, *MANAGED_JAVA)
MANAGED = (
    *(Protocol.MANAGED, Protocol.MANAGED_CLASSIC, Protocol.MANAGED_COOPERATIVE, *MANAGED_JAVA),
    *(Protocol.MANAGED_AIOKAFKA, Protocol.MANAGED_KAFKA_PYTHON),
)
PEERS = (
    Protocol.CLASSIC,
    Protocol.COOPERATIVE,
    Protocol.KIP848,
    Protocol.MANAGED,
    Protocol.MANAGED_CLASSIC,
    Protocol.MANAGED_COOPERATIVE,
)


class Server(StrEnum):
    """What members connect to."""

    ZOOKEEPER = "a broker in ZooKeeper mode"
    KRAFT = "a broker of Kafka 4"
    INSTANCE = "an instance beside a broker in ZooKeeper mode"


@dataclass(frozen=True, slots=True)
class Contender:
    """A protocol in one variant. ``client`` and ``broker`` contain settings for the client and for the broker."""

    protocol: Protocol
    variant: str
    client: Mapping[str, Any] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.protocol}, {self.variant}"

    @property
    def needs(self) -> tuple[Server, tuple[tuple[str, str], ...]]:
        """The server, and the broker settings to add. Contenders with the same needs can share a broker."""
        return self.server, tuple(sorted(self.broker.items()))

    @property
    def server(self) -> Server:
        """The server to which members connect."""
        if self.protocol in {*MANAGED, *CLIENT_ASSIGNED}:
            return Server.INSTANCE
        return Server.KRAFT if self.protocol in {Protocol.KIP848, Protocol.KIP848_JAVA} else Server.ZOOKEEPER


DEFAULTS, FASTEST = "defaults", "fastest"
EACH_SECOND = "1 s heartbeats"

_NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
# The default session timeout of Java and librdkafka is 45 s. By default, a broker accepts no less than 6 s.
_FAST_CLIENT = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6_000}
_COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
_JAVA_COOPERATIVE = {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}

OURS = Contender(Protocol.OURS, DEFAULTS, broker=_NO_DELAY)

CONTENDERS: Mapping[Protocol, Sequence[Contender]] = {
    Protocol.CLASSIC: (
        Contender(Protocol.CLASSIC, FASTEST, _FAST_CLIENT, _NO_DELAY),
        Contender(Protocol.CLASSIC, DEFAULTS, broker={"group.initial.rebalance.delay.ms": "3000"}),
    ),
    Protocol.COOPERATIVE: (
        Contender(Protocol.COOPERATIVE, FASTEST, _COOPERATIVE | _FAST_CLIENT, _NO_DELAY),
        Contender(Protocol.COOPERATIVE, DEFAULTS, _COOPERATIVE, {"group.initial.rebalance.delay.ms": "3000"}),
    ),
    Protocol.KIP848: (
        Contender(Protocol.KIP848, DEFAULTS, {"group.protocol": "consumer"}),
        Contender(
            Protocol.KIP848,
            EACH_SECOND,
            {"group.protocol": "consumer"},
            {"group.consumer.heartbeat.interval.ms": "1000", "group.consumer.min.heartbeat.interval.ms": "1000"},
        ),
        Contender(
            Protocol.KIP848,
            FASTEST,
            {"group.protocol": "consumer"},
            {
                "group.consumer.heartbeat.interval.ms": "100",
                "group.consumer.min.heartbeat.interval.ms": "100",
                "group.consumer.session.timeout.ms": "6000",
                "group.consumer.min.session.timeout.ms": "6000",
                "group.consumer.assignment.interval.ms": "0",
                "group.consumer.min.assignment.interval.ms": "0",
            },
        ),
    ),
    **{
        one: (Contender(one, DEFAULTS, {"group.protocol": "consumer"}),)
        for one in (Protocol.MANAGED, Protocol.KIP848_JAVA, Protocol.MANAGED_JAVA)
    },
    Protocol.MANAGED_CLASSIC: (Contender(Protocol.MANAGED_CLASSIC, DEFAULTS),),
    Protocol.MANAGED_COOPERATIVE: (Contender(Protocol.MANAGED_COOPERATIVE, DEFAULTS, _COOPERATIVE),),
    Protocol.MANAGED_JAVA_CLASSIC: (Contender(Protocol.MANAGED_JAVA_CLASSIC, DEFAULTS),),
    Protocol.MANAGED_JAVA_COOPERATIVE: (Contender(Protocol.MANAGED_JAVA_COOPERATIVE, DEFAULTS, _JAVA_COOPERATIVE),),
    **{one: (Contender(one, DEFAULTS, broker=_NO_DELAY),) for one in (Protocol.AIOKAFKA, Protocol.KAFKA_PYTHON)},
    **{
        one: (Contender(one, DEFAULTS),)
        for one in (*CLIENT_ASSIGNED, Protocol.MANAGED_AIOKAFKA, Protocol.MANAGED_KAFKA_PYTHON)
    },
}
"""The fastest variants come first, because they can share a broker with this project's consumer."""


def contenders(against: Sequence[Protocol], variants: Sequence[str]) -> list[Contender]:
    """Returns this project's consumer, the given variants of the others, and the contenders that have only one
    variant, grouped by broker configuration."""
    every = [one for protocol in against for one in CONTENDERS[protocol]]
    found = [OURS, *(one for one in every if one.variant in variants or len(CONTENDERS[one.protocol]) == 1)]
    order = list(dict.fromkeys(one.needs for one in found))
    return sorted(found, key=lambda one: order.index(one.needs))
