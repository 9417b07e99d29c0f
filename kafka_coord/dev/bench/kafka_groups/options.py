"""The options of the bench of Kafka clients' groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


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
class KafkaGroupsOptions:
    """``compare``: also measure the broker's own coordinator, in turn. Each figure about requests comes from ``rounds``
    rounds of ``seconds``; latencies are measured at ``per_s`` requests a second. The bench fetches ``backlog_mb``
    repeatedly, loads ``records``, moves and lists ``groups``, and keeps ``connections`` idle connections or as many
    KIP-848 members. One member joins and leaves a group of ``members`` with ``partitions``, ``joins`` times. Managed
    groups have an instance beside each of ``brokers``. ``judged``: whether the report compares the figures with the
    bars.
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
    judged: bool = True

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self) | {"parts": [str(part) for part in self.parts]}


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
