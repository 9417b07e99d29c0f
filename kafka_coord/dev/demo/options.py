"""The options of the demo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kafka_coord.dev.cluster.flights import FLIGHTS
from kafka_coord.errors import SettingsError

_MINIMUM_RECORDS = 2_000


class ChannelChoice(StrEnum):
    """The channel that the consumers use; ``mixed``: every other consumer uses a socket."""

    ZOOKEEPER = "zookeeper"
    SOCKET = "socket"
    MIXED = "mixed"


class Clients(StrEnum):
    """The kind of consumers: this project's, or stock Kafka clients."""

    OWN = "own"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The demo writes ``records`` flights to ``partitions`` before the consumers begin. When the topic has grown to
    ``grown_partitions``, it writes the first ``again`` of them once more, to the new partitions only. The consumers'
    pace is limited so that they need about ``seconds``. ``seed`` decides which consumer is killed, which leaves, and
    when exactly. It takes ``session_timeout_ms`` until others notice a killed coordinator, or a killed consumer with a
    ZooKeeper session. With ``spark``, a second group of Spark queries and a plain consumer reads the first
    ``shared_records`` flights from its own topic at the same time.
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

    def __post_init__(self) -> None:
        if not _MINIMUM_RECORDS <= self.records <= FLIGHTS:
            raise SettingsError(
                f"--records {self.records}: between {_MINIMUM_RECORDS:,} (fewer would be gone before anything happens) "
                f"and {FLIGHTS:,} (there are no more flights)"
            )
        if self.brokers < 2:
            raise SettingsError(f"--brokers {self.brokers}: at least 2, for one coordinator is killed and one goes on")
        if self.clients is Clients.KAFKA and (self.spark or self.channel is not ChannelChoice.ZOOKEEPER):
            raise SettingsError("--clients kafka plays with stock Kafka clients alone: leave out --spark and --channel")

    def by_bootstrap(self, number: int) -> bool:
        """Whether the consumer of this number (from 1) gets the coordinators' addresses instead of ZooKeeper's."""
        return (
            self.clients is Clients.KAFKA
            or self.channel is ChannelChoice.SOCKET
            or (self.channel is ChannelChoice.MIXED and number % 2 == 0)
        )

    @property
    def consumers_session_ms(self) -> int:
        """The consumers' session timeout in ms. A consumer on a socket must stay a member while one coordinator dies
        and the next one starts.
        """
        with_zookeeper = self.clients is Clients.OWN and self.channel is ChannelChoice.ZOOKEEPER
        return self.session_timeout_ms if with_zookeeper else self.session_timeout_ms * 9 // 4

    @property
    def spark_group(self) -> str:
        """The group that Spark queries and a plain consumer share."""
        return f"{self.group}-spark"

    @property
    def spark_topic(self) -> str:
        """The topic that group reads."""
        return f"{self.topic}-spark"

    @property
    def again(self) -> int:
        """How many flights are written once more."""
        return self.records // 12

    @property
    def total(self) -> int:
        """All records."""
        return self.records + self.again

    @property
    def records_per_s(self) -> float:
        """The pace of one consumer in records per second; a little less than three work on average."""
        return self.total / self.seconds / 2.8


_QUICK = DemoOptions(records=36_000, seconds=14.0, spark=False, shared_records=24_000)
_STOCK = DemoOptions(records=80_000, seconds=22.0, spark=False, session_timeout_ms=4_000, clients=Clients.KAFKA)
_QUICK_STOCK = replace(_STOCK, records=24_000, seconds=8.0, partitions=6, grown_partitions=8)


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
) -> DemoOptions:
    """The options that the user chose. ``quick`` is a smaller run, without Spark unless the user asks for it.

    Raises :class:`~kafka_coord.errors.SettingsError`.
    """
    if Clients(clients) is Clients.KAFKA:
        base = _QUICK_STOCK if quick else _STOCK
    else:
        base = _QUICK if quick else DemoOptions()
    return replace(
        base,
        records=records or base.records,
        seconds=seconds or base.seconds,
        brokers=brokers,
        seed=seed,
        spark=base.spark if spark is None else spark,
        channel=ChannelChoice(channel),
    )
