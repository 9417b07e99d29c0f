"""What can be chosen about the demo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kafka_coord.dev.cluster.flights import FLIGHTS
from kafka_coord.errors import SettingsError

_MINIMUM_RECORDS = 2_000


class Channel(StrEnum):
    """How consumers take part; ``mixed``: every other one over a socket."""

    ZOOKEEPER = "zookeeper"
    SOCKET = "socket"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """``records`` flights are written before the consumers begin, spread over ``partitions``; when the topic has grown
    to ``grown_partitions``, the first ``again`` of them are written once more, to the new partitions only.

    The consumers are held to a pace at which they take about ``seconds``. ``seed`` decides who is killed, who leaves,
    and when exactly. ``session_timeout_ms`` is how soon a killed coordinator is noticed, and a killed consumer that has
    a ZooKeeper session. With ``spark`` a second group follows, of Spark applications and a plain consumer.
    """

    records: int = FLIGHTS
    seconds: float = 48.0
    brokers: int = 3
    consumers: int = 3
    group: str = "delays"
    topic: str = "flights"
    partitions: int = 12
    grown_partitions: int = 16
    session_timeout_ms: int = 6_000
    seed: int = 1
    spark: bool = True
    channel: Channel = Channel.ZOOKEEPER

    def __post_init__(self) -> None:
        if not _MINIMUM_RECORDS <= self.records <= FLIGHTS:
            raise SettingsError(
                f"--records {self.records}: between {_MINIMUM_RECORDS:,} (fewer would be gone before anything happens) "
                f"and {FLIGHTS:,} (there are no more flights)"
            )
        if self.brokers < 2:
            raise SettingsError(f"--brokers {self.brokers}: at least 2, for one coordinator is killed and one goes on")

    def by_socket(self, number: int) -> bool:
        """Whether the consumer of this number, from 1, takes part over a socket."""
        return self.channel is Channel.SOCKET or (self.channel is Channel.MIXED and number % 2 == 0)

    @property
    def consumers_session_ms(self) -> int:
        """Without ZooKeeper it takes more than two of the coordinators' not to notice that one of those died."""
        return self.session_timeout_ms * 9 // 4 if self.channel is not Channel.ZOOKEEPER else self.session_timeout_ms

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
        """The pace of one consumer; a little less than three are at work on average."""
        return self.total / self.seconds / 2.8


_QUICK = DemoOptions(records=36_000, seconds=14.0, spark=False)


def chosen(
    *,
    quick: bool = False,
    records: int | None = None,
    seconds: float | None = None,
    brokers: int = 3,
    seed: int = 1,
    spark: bool | None = None,
    channel: str = Channel.ZOOKEEPER,
) -> DemoOptions:
    """The options for what was asked; ``quick`` is a smaller run for tests and the impatient, without Spark unless that
    is asked for.

    Raises :class:`~kafka_coord.errors.SettingsError`.
    """
    base = _QUICK if quick else DemoOptions()
    return replace(
        base,
        records=records or base.records,
        seconds=seconds or base.seconds,
        brokers=brokers,
        seed=seed,
        spark=base.spark if spark is None else spark,
        channel=Channel(channel),
    )
