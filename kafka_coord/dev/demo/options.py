"""The options of the demo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kafka_coord.dev.cluster.flights import FLIGHTS
from kafka_coord.dev.cluster.kafka import KafkaSettings
from kafka_coord.errors import SettingsError

_MINIMUM_RECORDS = 2_000


class ChannelChoice(StrEnum):
    """The channel that the consumers use. With ``mixed``, every other consumer uses a socket."""

    ZOOKEEPER = "zookeeper"
    SOCKET = "socket"
    MIXED = "mixed"


class Clients(StrEnum):
    """The consumers: this project's, stock Kafka clients in a client-assigned group, or every kind in one group."""

    OWN = "own"
    KAFKA = "kafka"
    MIXED = "mixed"


class Kind(StrEnum):
    """A kind of consumer: this project's, a stock client that uses one of Kafka's group protocols, or a Spark query."""

    OWN = "own"
    CONSUMER = "consumer"
    CLASSIC = "classic"
    SPARK = "spark"


_STOCK_KINDS = frozenset({Kind.CONSUMER, Kind.CLASSIC})
_MIX = (Kind.SPARK, Kind.CONSUMER, Kind.CLASSIC, Kind.OWN, Kind.CONSUMER, Kind.CLASSIC, Kind.OWN, Kind.CONSUMER)
"""The kinds of consumers with ``--clients mixed``. The last consumer joins later."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The demo writes ``records`` flights to ``partitions`` before the consumers start. After the topic has grown to
    ``grown_partitions``, it writes the first ``again`` flights again, only to the new partitions. The consumers' pace
    is limited so that they take about ``seconds``. ``seed`` determines which consumers are killed, which leave, and
    exactly when. Dead coordinators, and dead consumers with a ZooKeeper session, are noticed after
    ``session_timeout_ms``. With ``spark``, a second group of Spark queries and a plain consumer reads the first
    ``shared_records`` flights from its own topic at the same time. With ``kraft``, Kafka 4.3
    runs in KRaft mode, and ZooKeeper belongs to the coordinators alone.
    """

    records: int = FLIGHTS
    seconds: float = 42.0
    brokers: int = 3
    consumers: int = 3
    group: str = "delays"
    topic: str = "flights"
    partitions: int = 12
    grown_partitions: int = 16
    session_timeout_ms: int = 6_000
    seed: int = 1
    spark: bool = True
    shared_records: int = 36_000
    shared_partitions: int = 6
    channel: ChannelChoice = ChannelChoice.ZOOKEEPER
    clients: Clients = Clients.OWN
    kraft: bool = False

    def __post_init__(self) -> None:
        if not _MINIMUM_RECORDS <= self.records <= FLIGHTS:
            raise SettingsError(
                f"--records {self.records} must be between {_MINIMUM_RECORDS:,} (fewer would be consumed too quickly) "
                f"and {FLIGHTS:,} (all flights)"
            )
        if self.brokers < 2:
            raise SettingsError(f"--brokers {self.brokers} must be at least 2, because one coordinator is killed")
        if self.clients is not Clients.OWN and (self.spark or self.channel is not ChannelChoice.ZOOKEEPER):
            raise SettingsError(f"--clients {self.clients} determines the consumers, so omit --spark and --channel")

    def kind(self, number: int) -> Kind:
        """Returns the kind of the consumer with this number (from 1)."""
        if self.clients is Clients.MIXED:
            return _MIX[(number - 1) % len(_MIX)]
        return Kind.CLASSIC if self.clients is Clients.KAFKA else Kind.OWN

    def by_bootstrap(self, number: int) -> bool:
        """Returns whether the consumer with this number (from 1) uses the coordinators' addresses instead of
        ZooKeeper's."""
        return (
            self.kind(number) in _STOCK_KINDS
            or self.channel is ChannelChoice.SOCKET
            or (self.channel is ChannelChoice.MIXED and number % 2 == 0)
        )

    @property
    def servers(self) -> str:
        """The servers that run, in words."""
        version = KafkaSettings(kraft=self.kraft).kafka_version
        return f"ZooKeeper, {self.brokers} brokers of Kafka {version}{' in KRaft mode' if self.kraft else ''}"

    @property
    def stock_session_ms(self) -> int:
        """The stock clients' session timeout in ms. They must stay members until their coordinator's instance has
        restarted and they have reconnected: librdkafka waits up to 10 seconds between attempts."""
        return self.session_timeout_ms * 4

    @property
    def own_session_ms(self) -> int:
        """The session timeout of this project's consumers in ms. A socket consumer must remain a member until the next
        coordinator has taken over from a dead one."""
        with_zookeeper = self.clients is Clients.OWN and self.channel is ChannelChoice.ZOOKEEPER
        return self.session_timeout_ms if with_zookeeper else self.session_timeout_ms * 9 // 4

    def session_ms(self, kind: Kind) -> int:
        """Returns the session timeout of a consumer of this kind in ms."""
        return self.stock_session_ms if kind in _STOCK_KINDS else self.own_session_ms

    @property
    def spark_group(self) -> str:
        """The group that Spark queries and a plain consumer share."""
        return f"{self.group}-spark"

    @property
    def spark_topic(self) -> str:
        """The topic that the group :attr:`spark_group` reads."""
        return f"{self.topic}-spark"

    @property
    def again(self) -> int:
        return self.records // 12

    @property
    def total(self) -> int:
        return self.records + self.again

    @property
    def records_per_s(self) -> float:
        """The pace of one consumer in records per second, so that all records take about ``seconds``, given that the
        group does not always have all its consumers."""
        return self.total / self.seconds / (self.consumers - 0.2)


_QUICK = DemoOptions(records=36_000, seconds=14.0, spark=False, shared_records=24_000)
_STOCK = DemoOptions(records=80_000, seconds=22.0, spark=False, session_timeout_ms=4_000, clients=Clients.KAFKA)
_QUICK_STOCK = replace(_STOCK, records=24_000, seconds=8.0, partitions=6, grown_partitions=8)
_MIXED = replace(_STOCK, records=200_000, seconds=60.0, clients=Clients.MIXED, consumers=len(_MIX) - 1)
_QUICK_MIXED = replace(_MIXED, records=80_000, seconds=40.0)
_BASES = {
    Clients.OWN: (DemoOptions(), _QUICK),
    Clients.KAFKA: (_STOCK, _QUICK_STOCK),
    Clients.MIXED: (_MIXED, _QUICK_MIXED),
}


def chosen(
    *,
    quick: bool = False,
    records: int | None = None,
    seconds: float | None = None,
    brokers: int = 3,
    seed: int = 1,
    spark: bool | None = None,
    channel: str = ChannelChoice.ZOOKEEPER,
    clients: str = Clients.OWN,
    kraft: bool = False,
) -> DemoOptions:
    """Returns the user's options. ``quick`` selects a smaller run, by default without Spark.

    Raises :class:`~kafka_coord.errors.SettingsError`.
    """
    base = _BASES[Clients(clients)][quick]
    return replace(
        base,
        records=records or base.records,
        seconds=seconds or base.seconds,
        brokers=brokers,
        seed=seed,
        spark=base.spark if spark is None else spark,
        channel=ChannelChoice(channel),
        kraft=kraft,
    )
