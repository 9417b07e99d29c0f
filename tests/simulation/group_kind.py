"""Draws the common properties of the simulated group's members from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kafka_coord.model import Member, Mode, Subscription

GROUP = "delays"
BYSTANDER = "calm"
"""A group without members, whose offset must not change. It exists in histories with unreadable znodes."""
TOPIC, OTHER_TOPIC = "flights", "fares"
PATTERN = "f.*"
SOCKET_SESSIONS_MS = (3_000, 6_000, 12_000)
KAFKA_SESSIONS_MS = (10_000, 24_000)
"""This exceeds the longest hold of a heartbeat."""
SOFTWARE = ("librdkafka", "apache-kafka-java", "kgo", "")


@dataclass(frozen=True, slots=True)
class GroupKind:
    """The common properties of the group's members: their transport, their settings, and which of them subscribe by
    pattern."""

    mode: Mode
    assignor: str | None
    grace_ms: int
    patterns: str
    """``none``, ``all``, or ``some``, which means members with an odd number."""
    from_the_end: bool
    """Whether a partition without a stored offset is read from its end. This is false with Kafka clients, because they
    do not store the end at which they begin. The next owner would begin at a later end and skip records."""
    sockets: str
    """The members that use a socket: ``none``, ``all``, or ``some``, which means members with an even number."""
    socket_session_ms: int
    pipelines: bool
    """Whether members with a socket answer a stop without waiting for the reply to their commit."""
    kafka: str = "none"
    """The members that are Kafka clients with ``group.protocol=consumer``: ``none``, ``all``, or ``some``, which means
    the first of every three."""
    kafka_session_ms: int = 0
    classic: str = "none"
    """The Kafka clients that are classic: ``none``, ``all``, or ``some``, which means those with an even number."""
    static: bool = False
    """Whether the Kafka clients have instance ids."""

    @classmethod
    def drawn(
        cls,
        rng: random.Random,
        more: random.Random,
        kafka: random.Random | None = None,
        classic: random.Random | None = None,
    ) -> GroupKind:
        """``more`` draws the properties that were added later, so that earlier seeds give the same histories.
        ``kafka`` draws those of Kafka clients, if some of the members may be such, and ``classic`` whether some of
        these are classic ones."""
        return cls(
            classic=classic.choice(("none", "some", "all")) if classic is not None else "none",
            kafka=kafka.choice(("some", "some", "all")) if kafka is not None else "none",
            kafka_session_ms=kafka.choice(KAFKA_SESSIONS_MS) if kafka is not None else 0,
            static=kafka is not None and kafka.random() < 0.4,
            sockets=more.choice(("none", "some", "all")),
            socket_session_ms=more.choice(SOCKET_SESSIONS_MS),
            from_the_end=more.random() < 0.3 and kafka is None,
            pipelines=more.random() < 0.5,
            mode=Mode.EAGER if rng.random() < 0.15 else Mode.INCREMENTAL,
            assignor=rng.choice((None, None, None, "range", "roundrobin", "weighted")),
            grace_ms=rng.choice((0, 0, 0, 1_000, 6_000)),
            patterns=rng.choice(("none", "all", "some")),
        )

    def by_pattern(self, consumer: str) -> bool:
        return self.patterns == "all" or (self.patterns == "some" and int(consumer[1:]) % 2 == 1)

    def by_kafka(self, consumer: str) -> bool:
        return self.kafka == "all" or (self.kafka == "some" and int(consumer[1:]) % 3 == 1)

    def by_classic(self, consumer: str) -> bool:
        is_one = self.classic == "all" or (self.classic == "some" and int(consumer[1:]) % 2 == 0)
        return is_one and self.by_kafka(consumer)

    def by_socket(self, consumer: str) -> bool:
        if self.by_kafka(consumer):
            return False
        return self.sockets == "all" or (self.sockets == "some" and int(consumer[1:]) % 2 == 0)

    def member(self, consumer: str, timestamp: str, *, by_pattern: bool) -> Member:
        return Member(
            consumer,
            0,
            Subscription.matching(PATTERN) if by_pattern else Subscription.to([TOPIC]),
            assignor=self.assignor,
            mode=self.mode,
            rejoin_grace_ms=self.grace_ms,
            timestamp=timestamp,
            session_timeout_ms=self.socket_session_ms if self.by_socket(consumer) else 0,
        )
