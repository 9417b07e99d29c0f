"""The options of the benchmark for Kafka clients."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.dev.bench.report import BenchOptions


class Part(StrEnum):
    """The parts that can be measured separately."""

    REQUESTS = "requests"
    PASSING = "passing"
    JOIN = "join"
    LOADING = "loading"
    MOVING = "moving"
    IDLE = "idle"
    LISTING = "listing"
    MANAGED = "managed"


@dataclass(frozen=True, slots=True)
class KafkaGroupsOptions(BenchOptions):
    """With ``compare``, the benchmark also measures the broker's own coordinator, in alternation.

    Throughput and CPU time are measured in ``rounds`` rounds of ``seconds``, after ``warm_up_s``, and latency at
    ``per_s`` requests a second. ``backlog_mb`` is the size of the records that are fetched over and over. ``records``
    is the number of records that an instance loads, and ``groups`` that of the groups that are moved and listed.
    ``connections`` is the number of idle members, and of KIP-848 members. Another member joins and leaves a group of
    ``members`` members with ``partitions`` partitions ``joins`` times. Managed groups run on ``brokers`` brokers, each
    with an instance.
    """

    parts: tuple[Part, ...] = tuple(Part)
    compare: bool = False
    warm_up_s: float = 5.0
    rounds: int = 2
    seconds: float = 4.0
    per_s: float = 1_000.0
    backlog_mb: int = 256
    joins: int = 5
    members: int = 10
    partitions: int = 900
    records: int = 1_000_000
    groups: int = 10_000
    connections: int = 5_000
    brokers: int = 3


SMOKE = KafkaGroupsOptions(
    parts=(Part.REQUESTS, Part.PASSING, Part.LOADING, Part.IDLE, Part.LISTING, Part.MANAGED),
    warm_up_s=0.1,
    rounds=1,
    seconds=0.3,
    per_s=200.0,
    backlog_mb=4,
    records=2_000,
    groups=50,
    connections=20,
    brokers=1,
    joins=1,
    judged=False,
)
