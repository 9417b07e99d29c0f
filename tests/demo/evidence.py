"""The evidence of a small, faultless run; each test changes it in one respect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kafka_coord.dev.demo.expected import AirlineTotal
from kafka_coord.dev.demo.journal import Change, Handed, Journal, Killing, Run
from kafka_coord.dev.demo.timeline import Event, EventKind, Reign, Sample, Timeline, assemble
from kafka_coord.dev.demo.verification import Evidence
from kafka_coord.model import Decision, PartitionSet, TopicPartition

AIRLINES = ("UA", "B6", "AA")
START_MS = 1_800_000_000_000


def tp(partition: int) -> TopicPartition:
    return TopicPartition("flights", partition)


def airline(offset: int) -> str:
    return AIRLINES[offset % 3]


def delay(offset: int) -> int | None:
    return None if offset % 10 == 0 else offset % 7 - 2


def run(partition: int, offsets: range, at_ms: int = START_MS + 5_000) -> Run:
    """Records of one partition, as in the input."""
    return Run(
        at_ms, tp(partition), offsets.start, tuple(airline(o) for o in offsets), tuple(delay(o) for o in offsets)
    )


def totals(offsets_of_all: Iterable[int]) -> dict[str, AirlineTotal]:
    found: dict[str, AirlineTotal] = {}
    for offset in offsets_of_all:
        found.setdefault(airline(offset), AirlineTotal()).add(delay(offset))
    return found


@dataclass
class SmallRun:
    """Partitions 0 and 1 with 100 records each. c1 consumed all of 0. c2 consumed 1 up to 60, had committed 50 of it
    and was killed; c1 continued from 50."""

    ends: dict[TopicPartition, int] = field(default_factory=lambda: {tp(0): 100, tp(1): 100})
    committed: dict[TopicPartition, int] = field(default_factory=lambda: {tp(0): 100, tp(1): 100})
    written: int = 200
    c1: list[Run] = field(default_factory=lambda: [run(0, range(100)), run(1, range(50, 100), START_MS + 9_000)])
    c2: list[Run] = field(default_factory=lambda: [run(1, range(60))])
    killings: list[Killing] = field(default_factory=lambda: [Killing("c2", START_MS + 6_000, {tp(1): 50})])
    expected: dict[str, AirlineTotal] = field(default_factory=lambda: totals([*range(100), *range(100)]))

    holds: dict[str, list[Handed]] = field(
        default_factory=lambda: {
            "c1": [
                Handed(START_MS + 500, Change.STARTED, PartitionSet({"flights": [0]})),
                Handed(START_MS + 8_000, Change.STARTED, PartitionSet({"flights": [1]})),
                Handed(START_MS + 9_900, Change.STOPPED, PartitionSet({"flights": [0, 1]})),
            ],
            "c2": [Handed(START_MS + 600, Change.STARTED, PartitionSet({"flights": [1]}))],
        }
    )

    def journals(self) -> list[Journal]:
        return [
            Journal("c1", tuple(self.c1), tuple(self.holds["c1"])),
            Journal("c2", tuple(self.c2), tuple(self.holds["c2"])),
        ]

    def evidence(self) -> Evidence:
        return Evidence(self.ends, self.committed, self.written, self.journals(), self.killings, self.expected)


def decision(generation: int, reason: str = "member c2 left") -> Decision:
    return Decision(
        generation, 1, reason, "sticky", START_MS + 8_000, 1, 2, 1, 1, 0, None, 40, {"c1": {"gained": "flights[1]"}}
    )


def timeline(world: SmallRun) -> Timeline:
    return assemble(
        world.journals(),
        world.killings,
        [
            Event(START_MS, EventKind.STARTED, "two consumers"),
            Event(START_MS + 6_000, EventKind.KILLED, "c2 is killed"),
            Event(START_MS + 6_010, EventKind.COORDINATOR_KILLED, "the coordinator is killed"),
            Event(START_MS + 10_000, EventKind.FINISHED, "done"),
        ],
        [Sample(START_MS + at * 1_000, {tp(0): at * 10}, {tp(0): 100, tp(1): 100}, {tp(0): "c1"}) for at in range(11)],
        [decision(1), decision(2)],
        [Reign(1, 1, START_MS - 5_000, START_MS + 6_010), Reign(2, 2, START_MS + 7_000, START_MS + 10_000)],
    )
