"""Runs the failover benchmark: stops and kills the elected coordinator of many settled groups."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.bench.failover.groups import ManyGroups
from kafka_coord.dev.bench.failover.instances import Elected, Instance, await_groups
from kafka_coord.dev.bench.group import held, write_topic, zookeeper, zxid_now
from kafka_coord.dev.bench.rebalance.journal import Journals, What
from kafka_coord.dev.bench.rebalance.member import BenchMember, Journal, Place
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Drawing, Setup, Spread, Table
from kafka_coord.dev.bench.usage import Meter, open_files
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.spark.session import find_java
from kafka_coord.zk.store import Store

_TOPIC = "flights"
_STABLE = str(GroupState.STABLE)
_WITHIN_S = 120.0
_PER_GROUP_S = 0.25
_RESTS_WITHIN = 30
_BAR_GROUPS, _BAR_LOOKED_MS, _BAR_MIB = 10_000, 5_000.0, 1_024.0


class Ending(StrEnum):
    """How the elected instance ends: stopped or killed."""

    CLEAN = "stopped"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class FailoverOptions(BenchOptions):
    """The benchmark runs once for each number of groups in ``sizes``. Each group has ``consumers`` consumers, and the
    coordinator is ended ``repeat`` times in each way. Once ``rest_s`` have passed without a write, the benchmark
    watches the idle coordinator for ``idle_s``. ``rest_s`` must exceed the time after which the coordinator records a
    group as at rest.
    """

    sizes: tuple[int, ...] = (10, 1_000, 10_000)
    consumers: int = 10
    repeat: int = 3
    session_timeout_ms: int = 6_000
    idle_s: float = 60.0
    rest_s: float = 8.0


SMOKE = FailoverOptions(sizes=(5,), consumers=3, repeat=1, idle_s=1.0, rest_s=0.2, judged=False)


@dataclass(frozen=True, slots=True)
class Failover:
    """``elected_ms`` is the time from the signal to the next election. ``looked_ms`` is the time from the election
    until the new coordinator has checked every group. ``member_ms`` is the time from the signal until another member
    has started the partitions of a departed member. ``rewritten`` counts the targets and ledgers that were rewritten
    without any change in their groups."""

    groups: int
    ending: Ending
    elected_ms: float
    looked_ms: float
    member_ms: float
    rewritten: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Idle:
    """What settled groups cost an elected coordinator that is idle."""

    groups: int
    cpu_percent: float
    transactions: int
    peak_mib: float


def run_failover_bench(options: FailoverOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    failovers: list[Failover] = []
    idle: list[Idle] = []
    starts: list[dict[str, Any]] = []
    for size in options.sizes:
        with failover_testbed(directory / f"{size}-groups", size, options, on_progress) as testbed:
            starts.append(testbed.started)
            for _ in range(options.repeat):
                for ending in Ending:
                    failovers.append(testbed.fail(ending))
                    on_progress(_told(failovers[-1]))
            idle.append(testbed.idle())
            testbed.look_at_zookeeper()
            on_progress(
                f"{size:,} settled groups: {idle[-1].cpu_percent:.1f} % of a core, {idle[-1].transactions} writes in "
                f"{options.idle_s:g} s, {idle[-1].peak_mib:,.0f} MiB"
            )
    found = [Table("cold start", starts), *tables(failovers, idle)]
    return BenchReport.of("failover", setup, options, found, bars(failovers, idle))


class FailoverTestbed:
    """Two instances. The elected one coordinates many settled groups, plus one group with real members."""

    def __init__(
        self,
        store: Store,
        many: ManyGroups,
        instances: Sequence[Instance],
        place: Place,
        options: FailoverOptions,
        server: ZooKeeperServer,
    ) -> None:
        self._server = server
        self._store, self._many, self._instances, self._options = store, many, instances, options
        self._elected = Elected(store)
        self._journals = Journals(Path(place.journal).parent)
        journal = Journal(place.journal)
        self._stays, self._leaves = (BenchMember(place, name, journal) for name in ("stays", "leaves"))
        self.started: dict[str, Any] = {}

    @property
    def _count(self) -> int:
        return len(self._many.names) + 1

    @property
    def _within_s(self) -> float:
        return _WITHIN_S + _PER_GROUP_S * self._count

    def start(self, on_progress: OnProgress) -> None:
        """Registers all groups, then starts the first instance, and measures its initial work."""
        self._many.register(on_progress)
        self._stays.join()
        self._leaves.join()
        began = time.monotonic_ns()
        self._instances[0].start(self._store)
        pid = self._instances[0].process.pid or 0
        with Meter(pid) as meter:
            elected, elected_ns = self._elected.other_than(None, self._within_s)
            self._many.acknowledge_all(self._within_s, on_progress)
            settled_ns = await_groups(self._instance(elected), self._count, _STABLE, self._within_s)
            self.started = {
                "groups": self._count - 1,
                "elected_ms": _ms(began, elected_ns),
                "all_stable_ms": _ms(elected_ns, settled_ns),
                "cpu_s": round(meter.cpu_s(), 1),
                "peak_mib": round(self._instance(elected).peak_mib()),
            }
        self._instances[1].start(self._store)
        self.at_rest()
        self.started["files"] = open_files(pid)

    def fail(self, ending: Ending) -> Failover:
        """Ends the elected instance while a member leaves its group, and restarts the instance as a standby."""
        before = self._many.written()
        elected = self._elected.broker_id(self._within_s)
        self._journals.new_lines()
        goes, comes = self._instance(elected), next(one for one in self._instances if one.broker_id != elected)
        with Meter(comes.process.pid or 0) as meter:
            at_ns = time.monotonic_ns()
            if ending is Ending.KILLED:
                goes.process.kill()
            else:
                goes.process.terminate()
            self._leaves.leave()
            _, elected_ns = self._elected.other_than(elected, self._within_s)
            looked_ns = await_groups(comes, self._count, None, self._within_s)
            member_ns = self._started_ns(at_ns)
            await_groups(comes, self._count, _STABLE, self._within_s)
            cpu_s = meter.cpu_s()
        goes.process.stop()
        goes.start(self._store)
        after = self._many.written()
        rewritten = sum(1 for path, zxid in after.items() if before.get(path) != zxid)
        rejoins_ns = time.monotonic_ns()
        self._leaves.join()
        self._started_ns(rejoins_ns)
        await_groups(comes, self._count, _STABLE, self._within_s)
        return Failover(
            self._count - 1,
            ending,
            _ms(at_ns, elected_ns),
            _ms(elected_ns, looked_ns),
            _ms(at_ns, member_ns),
            rewritten,
            round(cpu_s, 2),
        )

    def join_ms(self) -> float:
        """Measures how long a rejoining member waits until its partitions are started."""
        self._leaves.leave()
        await_groups(self.elected, self._count, _STABLE, self._within_s)
        self._journals.new_lines()
        began_ns = time.monotonic_ns()
        self._leaves.join()
        found = _ms(began_ns, self._started_ns(began_ns))
        await_groups(self.elected, self._count, _STABLE, self._within_s)
        return found

    @property
    def elected(self) -> Instance:
        return self._instance(self._elected.broker_id(self._within_s))

    def look_at_zookeeper(self) -> None:
        """Adds to ``started`` what ZooKeeper holds. Comes last, because looking at a heap slows ZooKeeper down."""
        self.started |= held(self._server)

    def idle(self) -> Idle:
        """Measures an idle coordinator, once the writes after the last failover have ended."""
        elected = self.elected
        first = self.at_rest()
        with Meter(elected.process.pid or 0) as meter:
            time.sleep(self._options.idle_s)
            cpu_s = meter.cpu_s()
        written = zxid_now(self._store) - first - 1
        return Idle(
            self._count - 1, round(100 * cpu_s / self._options.idle_s, 2), written, round(elected.peak_mib(), 1)
        )

    def at_rest(self) -> int:
        """Waits until all writes have ended, including those that record groups as at rest. Returns the last zxid."""
        first = zxid_now(self._store)
        for _ in range(_RESTS_WITHIN):
            time.sleep(self._options.rest_s)
            before, first = first, zxid_now(self._store)
            if first == before + 1:
                break
        return first

    def _started_ns(self, since_ns: int) -> int:
        """Returns when a member first started partitions after ``since_ns``. Ignores earlier starts that reached the
        journal late."""

        def started() -> list[int]:
            lines = self._journals.new_lines()
            return [line.at_ns for line in lines if line.what is What.STARTED and line.at_ns >= since_ns]

        return awaited(started, self._within_s, "a member to be started")[0]

    def _instance(self, broker_id: int) -> Instance:
        return next(one for one in self._instances if one.broker_id == broker_id)

    def close(self) -> None:
        for member in (self._stays, self._leaves):
            member.close()
        for instance in self._instances:
            instance.process.stop()


@contextmanager
def failover_testbed(
    directory: Path, groups: int, options: FailoverOptions, on_progress: OnProgress
) -> Iterator[FailoverTestbed]:
    (directory / "journals").mkdir(parents=True, exist_ok=True)
    settings = ZooKeeperSettings(tick_ms=500, heap_mb=1_024, max_session_ms=600_000)
    on_progress(f"starting ZooKeeper for {groups:,} groups of {options.consumers}")
    with zookeeper(directory, settings, session_timeout_ms=600_000) as (server, store):
        write_topic(store, _TOPIC, options.consumers)
        many = ManyGroups(store, _TOPIC, groups, options.consumers)
        watched = f"{many.names[groups // 2]}-watched"  # sorts in the middle of the groups
        journal = str(directory / "journals" / "members.journal")
        place = Place(server.connect_string, watched, _TOPIC, 20_000, journal)
        timeout_ms = options.session_timeout_ms
        instances = [Instance(directory, number, server.connect_string, timeout_ms) for number in (1, 2)]
        with contextlib.closing(FailoverTestbed(store, many, instances, place, options, server)) as testbed:
            testbed.start(on_progress)
            yield testbed


def _ms(since_ns: int, until_ns: int) -> float:
    return round((until_ns - since_ns) / 1_000_000, 1)


# --- results ---------------------------------------------------------------------------------------------------------


def tables(failovers: Sequence[Failover], idle: Sequence[Idle]) -> list[Table]:
    rows = []
    for groups in dict.fromkeys(one.groups for one in failovers):
        for ending in Ending:
            found = [one for one in failovers if (one.groups, one.ending) == (groups, ending)]
            if not found:
                continue
            elected, looked = (Spread.some(getattr(one, name) for one in found) for name in ("elected_ms", "looked_ms"))
            member = Spread.some(one.member_ms for one in found)
            rows.append(
                {
                    "groups": groups,
                    "ending": str(ending),
                    "n": len(found),
                    "elected_p50_ms": elected.median,
                    "elected_max_ms": elected.most,
                    "looked_p50_ms": looked.median,
                    "looked_max_ms": looked.most,
                    "member_p50_ms": member.median,
                    "member_max_ms": member.most,
                    "rewritten": sum(one.rewritten for one in found),
                    "cpu_s": Spread.some(one.cpu_s for one in found).median,
                }
            )
    labels = ("groups", "ending")
    drawings = [Drawing(labels, f"{what}_p50_ms", f"{what}_max_ms") for what in ("elected", "looked", "member")]
    return [Table("failover", rows, drawings), Table("idle", [asdict(one) for one in idle])]


def bars(failovers: Sequence[Failover], idle: Sequence[Idle]) -> list[Bar]:
    looked = max((one.looked_ms for one in failovers if one.groups == _BAR_GROUPS), default=None)
    peak = max((one.peak_mib for one in idle if one.groups == _BAR_GROUPS), default=None)
    resting = [one for one in idle if one.groups == 1_000]
    percent = max((one.cpu_percent for one in resting), default=None)
    return [
        Bar.at_most(f"{_BAR_GROUPS:,} groups read after an election", _BAR_LOOKED_MS, looked, " ms"),
        Bar.at_most("rewritten although nothing changed", 0, sum(one.rewritten for one in failovers)),
        Bar.at_most(f"memory with {_BAR_GROUPS:,} groups", _BAR_MIB, peak, " MiB"),
        Bar.at_most("1,000 settled groups, as a share of one core", 2.0, percent, " %"),
        Bar.at_most("1,000 settled groups, writes", 0, max((one.transactions for one in resting), default=None)),
    ]


def _told(one: Failover) -> str:
    return (
        f"{one.groups:,} groups, coordinator {one.ending}: another elected after {one.elected_ms:,.0f} ms, all groups "
        f"read {one.looked_ms:,.0f} ms later; a member's partitions restarted after {one.member_ms:,.0f} ms; "
        f"{one.rewritten} rewritten"
    )
