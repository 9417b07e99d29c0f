"""Runs the rebalance benchmark: causes one event after another in a group, and writes the report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kafka_coord.dev.bench.rebalance.figures import Cost, Event, Ownership, cost, summary
from kafka_coord.dev.bench.rebalance.journal import What
from kafka_coord.dev.bench.rebalance.testbed import JOINER, STILL_S, Crews, MembersChannel, RebalanceTestbed, testbed
from kafka_coord.dev.bench.report import Bar, BenchReport, Drawing, Setup, Table
from kafka_coord.dev.bench.usage import Meter
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.spark.java import find_java

_SETTLES_S = 60.0
_DRAWINGS = [
    Drawing(("event",), "settle_p50_ms", "settle_p99_ms"),
    Drawing(("event",), "longest_gap_p50_ms", "longest_gap_p99_ms"),
]


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """``members`` stay, in at most ten processes, and another member joins and leaves. Each event happens ``repeat``
    times, but slow or irreversible events happen ``rarely`` times. With ``judged``, the report compares the figures
    with the targets.
    """

    members: int = 10
    partitions: int = 900
    repeat: int = 30
    rarely: int = 3
    session_timeout_ms: int = 6_000
    channel: MembersChannel = MembersChannel.ZK
    judged: bool = True

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


SMOKE = RebalanceOptions(members=3, partitions=30, repeat=2, rarely=1, judged=False)


def run_rebalance_bench(options: RebalanceOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    on_progress("starting ZooKeeper and a coordinator")
    with (
        testbed(directory, options.session_timeout_ms, options.partitions, options.channel) as found,
        _group(found, options) as group,
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
        f"the coordinator used {cpu_s:.1f} s of CPU in {wall_s:.0f} s, and {meter.peak_bytes / 2**20:.0f} MiB at most"
    ]
    judged = bars(group.costs, options) if options.judged else []
    table = Table("rebalance", rows, _DRAWINGS)
    return BenchReport("rebalance", setup, options.to_json(), [table], judged, notes, {"events": summaries})


def _program(options: RebalanceOptions) -> Iterator[tuple[Sequence[Event], int]]:
    """Yields events and their numbers of repetitions. Events that are compared with each other alternate."""
    yield (Event.COLD,), max(1, options.rarely)  # the group begins with a cold start
    yield (Event.JOIN, Event.LEAVE, Event.STUCK), options.repeat
    yield (Event.REBALANCE,), options.repeat
    yield (Event.KILL,), options.rarely
    yield (Event.GROW,), options.rarely


class _Group:
    """The settled group with the members that stay, and the cost of each event so far."""

    def __init__(self, testbed: RebalanceTestbed, options: RebalanceOptions) -> None:
        self._testbed, self._options = testbed, options
        self._crews = Crews(testbed.crew, options.members)
        self._owned = Ownership()
        self._partitions = options.partitions
        self._generation = 0
        self._members = 0
        self.costs: dict[Event, list[Cost]] = {event: [] for event in Event}

    def happen(self, event: Event) -> Cost:
        """Causes the event in the settled group and waits until the group has settled again."""
        match event:
            case Event.COLD:
                if self._members:
                    self._crews.all("leave")
                    self._await_settled(0)
                    self._read(Event.LEAVE, 0)
                self._crews.all("join")
                return self._cost(event, self._options.members)
            case Event.JOIN:
                time.sleep(STILL_S)  # for a fair comparison with the plain join, which also waits
                self._crews.joiner.do("join")
                return self._cost(event, self._options.members + 1)
            case Event.LEAVE:
                self._crews.joiner.do("leave")
                return self._cost(event, self._options.members)
            case Event.STUCK:
                with self._testbed.stuck_group():
                    self._crews.joiner.do("join")
                    found = self._cost(event, self._options.members + 1)
                self._crews.joiner.do("leave")
                self._await_settled(self._options.members)
                self._read(Event.LEAVE, 0)
                return found
            case Event.REBALANCE:
                at_ns, answered_ns = self._testbed.rebalance()
                return self._cost(event, self._members, at_ns=at_ns, answered_ns=answered_ns)
            case Event.KILL:
                self._crews.joiner.do("join")
                self._await_settled(self._options.members + 1)
                self._read(Event.JOIN, 0)
                at_ns = self._crews.joiner.kill()
                found = self._cost(event, self._options.members, at_ns=at_ns, killed=JOINER)
                self._crews.next_joiner()
                return found
            case Event.GROW:
                self._partitions += -(-self._options.partitions // 10)
                at_ns = self._testbed.set_partitions(self._partitions)
                return self._cost(event, self._members, at_ns=at_ns)

    def _await_settled(self, members: int) -> None:
        within_s = _SETTLES_S + 2 * self._options.session_timeout_ms / 1000
        self._generation = self._testbed.quiet.after(self._generation, members, within_s).generation
        self._members = members

    def _cost(self, event: Event, members: int, *, at_ns: int = 0, killed: str = "", answered_ns: int = 0) -> Cost:
        self._await_settled(members)
        found = self._read(event, at_ns, killed=killed, answered_ns=answered_ns)
        self.costs[event].append(found)
        return found

    def _read(self, event: Event, at_ns: int, *, killed: str = "", answered_ns: int = 0) -> Cost:
        lines = self._testbed.journals.new_lines()
        begins = [line.at_ns for line in lines if line.what in {What.JOINING, What.LEAVING}]
        at_ns = at_ns or (begins[0] if begins else time.monotonic_ns())
        found, self._owned = cost(event, at_ns, lines, self._owned, killed=killed, answered_ns=answered_ns)
        return found

    def close(self) -> None:
        self._crews.close()


@contextmanager
def _group(testbed: RebalanceTestbed, options: RebalanceOptions) -> Iterator[_Group]:
    group = _Group(testbed, options)
    with contextlib.closing(group):
        yield group


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
            found.append(Bar("partitions +10 %: owned", "within 150 ms", f"{most:.1f} ms", most <= 150))
        if costs[Event.JOIN]:
            longest = summary(costs[Event.JOIN])["longest_gap_ms"]["p99"]
            found.append(Bar("join: longest gap", "p99 at most 50 ms", f"{longest} ms", longest <= 50))
    if costs[Event.JOIN] and costs[Event.STUCK]:
        alone, beside = (summary(costs[event])["settle_ms"]["p50"] for event in (Event.JOIN, Event.STUCK))
        found.append(
            Bar("a stuck group beside it", "adds at most 5 %", f"{beside / alone - 1:+.1%}", beside <= 1.05 * alone)
        )
    if costs[Event.KILL]:
        most, wanted_ms = max(one.settle_ms for one in costs[Event.KILL]), options.session_timeout_ms + 150
        found.append(Bar("member killed: settled", f"within {wanted_ms:,} ms", f"{most:,.0f} ms", most <= wanted_ms))
    needless = sum(one.interrupted_not_moved for every in costs.values() for one in every)
    found.append(Bar("interrupted, and did not move", "0", str(needless), needless == 0))
    return found
