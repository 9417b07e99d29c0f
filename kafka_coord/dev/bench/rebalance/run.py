"""Runs the rebalance benchmark: causes one event after another in a group, and writes the report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.dev.bench.rebalance.figures import Cost, Event, Owners, summary
from kafka_coord.dev.bench.rebalance.testbed import STILL_S, MeasuredGroup, MembersChannel, RebalanceTestbed, testbed
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Drawing, Setup, Table
from kafka_coord.dev.bench.usage import Meter
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.spark.session import find_java

_SETTLES_S = 60.0
_DRAWINGS = [
    Drawing(("event",), "settle_p50_ms", "settle_p99_ms"),
    Drawing(("event",), "longest_gap_p50_ms", "longest_gap_p99_ms"),
]


@dataclass(frozen=True, slots=True)
class RebalanceOptions(BenchOptions):
    """``members`` members stay, in at most ten processes, and another joins and leaves. Each event happens ``repeat``
    times, except slow or irreversible ones, which happen only ``rarely`` times.
    """

    members: int = 10
    partitions: int = 900
    repeat: int = 30
    rarely: int = 3
    session_timeout_ms: int = 6_000
    channel: MembersChannel = MembersChannel.ZK


SMOKE = RebalanceOptions(members=3, partitions=30, repeat=2, rarely=1, judged=False)


def run_rebalance_bench(options: RebalanceOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    on_progress("starting ZooKeeper and a coordinator")
    with (
        testbed(directory, options.session_timeout_ms, options.partitions, options.channel) as found,
        contextlib.closing(_Group(found, options)) as group,
    ):
        pid = found.coordinator.pid or 0
        with Meter(pid) as meter:
            began = time.monotonic()
            for events, times in _program(options):
                for _ in range(times):
                    for event in events:
                        group.happen(event)
                for event in events if times else ():
                    on_progress(_told(event, group.costs[event]))
            cpu_s, wall_s = meter.cpu_s(), time.monotonic() - began
    summaries = {str(event): summary(costs) for event, costs in group.costs.items() if costs}
    rows = [{"event": event} | _flat(one) for event, one in summaries.items()]
    notes = [
        f"the coordinator used {cpu_s:.1f} s of CPU in {wall_s:.0f} s, and at most {meter.peak_bytes / 2**20:.0f} MiB"
    ]
    tables, further = [Table("rebalance", rows, _DRAWINGS)], {"events": summaries}
    return BenchReport.of("rebalance", setup, options, tables, bars(group.costs, options), notes, further)


def _program(options: RebalanceOptions) -> Iterator[tuple[Sequence[Event], int]]:
    """Yields events, and how often to repeat them. Events that are compared with each other alternate."""
    yield (Event.COLD,), max(1, options.rarely)  # the group begins with a cold start
    yield (Event.JOIN, Event.LEAVE, Event.STUCK), options.repeat
    yield (Event.REBALANCE,), options.repeat
    yield (Event.KILL,), options.rarely
    yield (Event.GROW,), options.rarely


class _Group(MeasuredGroup):
    def __init__(self, testbed: RebalanceTestbed, options: RebalanceOptions) -> None:
        super().__init__(testbed.crew, options.members)
        self._testbed, self._options = testbed, options
        self._partitions = options.partitions
        self._generation = 0

    def _cause(self, event: Event) -> Cost:
        match event:
            case Event.JOIN:
                time.sleep(STILL_S)  # for a fair comparison with the join beside a stuck group, which also waits
            case Event.STUCK:
                with self._testbed.stuck_group():
                    self.crews.joiner.do("join")
                    found = self._settle(event, self.members + 1)
                self.crews.joiner.do("leave")
                self._settle(Event.LEAVE, self.members - 1)
                return found
            case Event.REBALANCE:
                at_ns, answered_ns = self._testbed.rebalance()
                return self._settle(event, self.members, at_ns=at_ns, answered_ns=answered_ns)
            case Event.GROW:
                self._partitions += -(-self._options.partitions // 10)
                return self._settle(event, self.members, at_ns=self._testbed.set_partitions(self._partitions))
        return super()._cause(event)

    def _await_settled(
        self, event: Event, members: int, at_ns: int, killed: str, answered_ns: int
    ) -> tuple[Cost, Owners]:
        within_s = _SETTLES_S + 2 * self._options.session_timeout_ms / 1000
        self._generation = self._testbed.quiet.after(self._generation, members, within_s).generation
        return self._cost(event, self._testbed.journals.new_lines(), at_ns, killed, answered_ns)


def _told(event: Event, costs: Sequence[Cost]) -> str:
    found = summary(costs)
    settle, longest = found["settle_ms"], found["longest_gap_ms"]
    return (
        f"{event}, {len(costs)} times: settled after {settle['p50']} ms ({settle['max']} at most), longest gap "
        f"{longest['p50']} ms ({longest['max']} at most), {found['moved']:g} partitions moved"
    )


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            flat |= {f"{name.removesuffix('_ms')}_{quantile}_ms": number for quantile, number in value.items()}
        else:
            flat[name] = value
    return flat


# --- bars ------------------------------------------------------------------------------------------------------------

_SETTLE_MS = {(10, 900): (70.0, 150.0), (50, 5_000): (250.0, 500.0), (100, 10_000): (500.0, 1_000.0)}
"""Maps (members, partitions) to the required p50 and p99 of a join, a leave and an operator's rebalance."""


def bars(costs: Mapping[Event, Sequence[Cost]], options: RebalanceOptions) -> list[Bar]:
    """Returns the targets for a group of this size."""
    found: list[Bar] = []
    wanted = _SETTLE_MS.get((options.members, options.partitions))
    for event in (Event.JOIN, Event.LEAVE, Event.REBALANCE):
        if wanted and costs[event]:
            settle = summary(costs[event])["settle_ms"]
            found.append(
                Bar(
                    f"{event}: settled",
                    f"p50 at most {wanted[0]:g} ms, p99 {wanted[1]:g} ms",
                    f"{settle['p50']}, {settle['p99']} ms",
                    settle["p50"] <= wanted[0] and settle["p99"] <= wanted[1],
                )
            )
    if (options.members, options.partitions) == (10, 900):
        if costs[Event.GROW]:
            most = max(one.settle_ms for one in costs[Event.GROW])
            found.append(Bar.at_most("partitions +10 %: owned", 150, round(most, 1), " ms"))
        if costs[Event.JOIN]:
            longest = summary(costs[Event.JOIN])["longest_gap_ms"]["p99"]
            found.append(Bar("join: longest gap", "p99 at most 50 ms", f"{longest} ms", longest <= 50))
    if costs[Event.JOIN] and costs[Event.STUCK]:
        alone, beside = (summary(costs[event])["settle_ms"]["p50"] for event in (Event.JOIN, Event.STUCK))
        found.append(
            Bar("a stuck group beside it", "adds at most 5 %", f"{beside / alone - 1:+.1%}", beside <= 1.05 * alone)
        )
    if costs[Event.KILL]:
        most = max(one.settle_ms for one in costs[Event.KILL])
        found.append(Bar.at_most("member killed: settled", options.session_timeout_ms + 150, most, " ms"))
    needless = sum(one.interrupted_not_moved for every in costs.values() for one in every)
    found.append(Bar.at_most("interrupted without moving", 0, needless))
    return found
