"""The contenders: this project's consumer, and Kafka's own group protocols with default and fastest settings."""

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
    """The same requests with ``cooperative-sticky``: only moving partitions stop (KIP-429)."""
    KIP848 = "kip848"
    """ConsumerGroupHeartbeat: the broker decides (KIP-848)."""
    MANAGED = "managed"
    """The same clients in a group that an instance of this project manages."""


PEERS = (Protocol.CLASSIC, Protocol.COOPERATIVE, Protocol.KIP848, Protocol.MANAGED)


class Server(StrEnum):
    """What members connect to."""

    ZOOKEEPER = "a broker in ZooKeeper mode"
    KRAFT = "a broker of Kafka 4"
    INSTANCE = "an instance beside a broker in ZooKeeper mode"


@dataclass(frozen=True, slots=True)
class Contender:
    """``client`` holds settings of librdkafka, ``broker`` lines of the broker's configuration; ``settings`` describes
    both.
    """

    protocol: Protocol
    variant: str
    client: Mapping[str, Any] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.protocol}, {self.variant}"

    @property
    def needs(self) -> tuple[Server, tuple[tuple[str, str], ...]]:
        """The server and the broker's lines of configuration. Contenders with the same needs can share a broker."""
        return self.server, tuple(sorted(self.broker.items()))

    @property
    def server(self) -> Server:
        """Where its members find their coordinator."""
        return {Protocol.KIP848: Server.KRAFT, Protocol.MANAGED: Server.INSTANCE}.get(self.protocol, Server.ZOOKEEPER)


DEFAULTS, FASTEST = "defaults", "fastest"
EACH_SECOND = "1 s heartbeats"

_NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
# The default of Java and librdkafka is 45 s; 6 s is the least that a broker accepts by default.
_FAST_CLIENT = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6_000}
_COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}

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
            {
                "group.consumer.heartbeat.interval.ms": "1000",
                "group.consumer.min.heartbeat.interval.ms": "1000",
            },
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
    Protocol.MANAGED: (Contender(Protocol.MANAGED, DEFAULTS, {"group.protocol": "consumer"}),),
}
"""The fastest variants come first, because they can share a broker with this project's consumer."""


def contenders(against: Sequence[Protocol], variants: Sequence[str]) -> list[Contender]:
    """This project's consumer and these variants of the others, grouped by broker configuration."""
    found = [OURS, *(one for protocol in against for one in CONTENDERS[protocol] if one.variant in variants)]
    order = list(dict.fromkeys(one.needs for one in found))
    return sorted(found, key=lambda one: order.index(one.needs))
