"""Runs one chaos run from beginning to end."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import confluent_kafka

from kafka_coord.errors import DevClusterError, KafkaCoordError
from kafka_coord.groups.requests import await_answer, submit, withdraw
from kafka_coord.model import Request, RequestType
from tests.chaos import foreign
from tests.chaos.clients.faults import ClientsFaults
from tests.chaos.clients.following import LogFollower
from tests.chaos.clients.log_settings import SMALL_SEGMENTS, set_of_log
from tests.chaos.clients.watching import ClientsWatch
from tests.chaos.faults import Faults
from tests.chaos.journal import GROUP_LOG, EventWriter, Group, Kind, Phase, ResourceWriter, Run, Setup, write_run
from tests.chaos.kraft import KraftTestbed
from tests.chaos.machine import MachineTimes
from tests.chaos.parts import EAGER_GROUP, REBALANCE_TIMEOUT_MS, Part, cast, groups_of, mixed_cast, stock_cast
from tests.chaos.schedule import (
    CLEAN_STOP,
    FROZEN,
    KILLED,
    OF_KRAFT,
    SORTS_OF_MIXED,
    Stretch,
    schedule,
    schedule_of_clients,
    schedule_of_events,
)
from tests.chaos.testbed import KAFKA_SESSION_MS, SERVE_SESSION_MS, SERVERS, Actor, ChaosTestbed
from tests.chaos.watching import Watch

Tell = Callable[[str], None]

_SETTLE_S = 120.0
_WARM_S = 10.0
CALM_S = 4.0
"""The time without faults before an event that happens alone, in seconds. The judge allows a fault a little less for
its effects."""
_SHORTLY_WARM_S = 2.0
"""In a run of less than a minute, which is too short to find leaks."""
_CAUGHT_UP_S = 180.0
_PICKS = (0.125, 0.625, 0.375, 0.875)
"""Chooses each of up to four variants of an event that happens again and again, and each of two at first."""
_REQUESTS = 12
_REQUESTS_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    directory: Path
    minutes: float = 3.0
    seed: int = 1
    per_s: float = 400.0
    spark: bool = False
    only: tuple[Kind, ...] = ()
    """If there are any, the run has only these events of the world, and no other faults."""
    clients: str = "library"
    """With ``kafka``, all consumers are stock Kafka clients. With ``mixed``, managed groups have every kind of
    consumer."""


class ChaosRun:
    """Starts the testbed, executes the schedule, and leaves the journals in the directory for the judge."""

    def __init__(self, options: Options, tell: Tell) -> None:
        self._options = options
        self._tell_line = tell
        self._begin = time.monotonic()
        self._of_clients = options.clients == "kafka"
        self._follower: LogFollower | None = None
        self._mixed = options.clients == "mixed"
        self._parts = self._cast()
        if not foreign.SOURCE.is_file():
            self._tell(f"no third-party consumer: {foreign.SOURCE} does not exist (a checkout has it)")

    def run(self) -> None:
        """Raises :class:`KafkaCoordError` if the testbed itself fails, so that there is nothing to judge."""
        options = self._options
        options.directory.mkdir(parents=True, exist_ok=True)
        if any(options.directory.iterdir()):
            raise DevClusterError(f"{options.directory} is not empty; a run needs its own directory")
        (options.directory / "logs").mkdir()
        with (
            EventWriter(options.directory) as events,
            ResourceWriter(options.directory) as resources,
            self._testbed() as testbed,
        ):
            self._write_run(testbed)
            testbed.set_up(self._parts, self._tell)
            faults = (ClientsFaults if self._of_clients or self._mixed else Faults)(testbed, events, self._tell)
            watch = ClientsWatch(testbed, events, resources, lambda actor: self._revive(faults, actor))
            watch.start()
            try:
                self._require_settled(watch, "at the start")
                self._await_members()
                if self._of_clients:
                    self._follower = self._follow(testbed)
                    self._follower.start()
                    self._compact(testbed)
                time.sleep(_WARM_S if options.minutes >= 1.0 else _SHORTLY_WARM_S)
                events.write(Kind.BASELINE)
                self._course(testbed, faults, watch, events)
                self._end(testbed, faults, watch, events)
                if faults.failures:
                    raise KafkaCoordError("the testbed failed: " + "; ".join(faults.failures))
            finally:
                if self._follower is not None:
                    self._follower.close()
                watch.close()
                faults.close()

    # --- parts of the run --------------------------------------------------------------------------------------------

    def _await_members(self) -> None:
        """Waits for members that take long to join, so that the judge compares resources only from then on."""

    def _follow(self, testbed: ChaosTestbed) -> LogFollower:
        return LogFollower(testbed.bootstrap, self._options.directory)

    def _testbed(self) -> ChaosTestbed:
        testbed = KraftTestbed if set(self._options.only) & set(OF_KRAFT) else ChaosTestbed
        return testbed(self._options.directory, self._options.per_s, clients=self._options.clients)

    def _course(self, testbed: ChaosTestbed, faults: Faults, watch: Watch, events: EventWriter) -> None:
        """What happens between the start and the quiet end."""
        plan = self._plan()
        for number, stretch in enumerate(plan, start=1):
            self._tell(f"stretch {number} of {len(plan)}: {stretch.seconds:.0f} s, {len(stretch.planned)} faults")
            self._turmoil(stretch, faults)
            self._happen(stretch, faults, watch)
            for what in stretch.then:
                self._measure(what, testbed, faults, watch, events)

    def _cast(self) -> tuple[Part, ...]:
        if self._of_clients:
            return stock_cast()
        if self._mixed:
            return mixed_cast()
        return cast(third_party=foreign.SOURCE.is_file(), spark=self._options.spark)

    def _groups(self) -> tuple[Group, ...]:
        return groups_of(self._parts)

    def _plan(self) -> tuple[Stretch, ...]:
        seed, minutes, clients = self._options.seed, self._options.minutes, self._options.clients
        if self._options.only:
            return schedule_of_events(self._options.only, minutes)
        if self._of_clients:
            return schedule_of_clients(seed, minutes)
        return schedule(seed, minutes, SORTS_OF_MIXED, clients) if self._mixed else schedule(seed, minutes)

    def _compact(self, testbed: ChaosTestbed) -> None:
        """Has the groups log compacted continuously from now on. It must exist."""
        if not set_of_log(testbed.bootstrap, SMALL_SEGMENTS):
            raise KafkaCoordError("the brokers refuse the settings of the groups log")

    def _turmoil(self, stretch: Stretch, faults: Faults) -> None:
        begin = time.monotonic()
        for planned in stretch.planned:
            time.sleep(max(0.0, begin + planned.at_s - time.monotonic()))
            faults.begin(planned)
        time.sleep(max(0.0, begin + stretch.seconds - time.monotonic()))
        faults.wait()

    def _happen(self, stretch: Stretch, faults: Faults, watch: Watch) -> None:
        """Plays the scenes of the stretch's events of the world without other faults."""
        for number, kind in enumerate(stretch.calm):
            time.sleep(CALM_S)
            self._require_settled(watch, f"before '{kind}'")
            faults.play(kind, _PICKS[number // len(set(stretch.calm)) % len(_PICKS)])

    def _measure(self, what: str, testbed: ChaosTestbed, faults: Faults, watch: Watch, events: EventWriter) -> None:
        """Measures one failover without other faults, or a rolling restart."""
        if what in {CLEAN_STOP, KILLED, FROZEN}:
            time.sleep(SERVE_SESSION_MS / 1000 + 1.0)  # then the elected instance is alive, and there is no other fault
        self._require_settled(watch, f"before '{what}'")
        if what in {CLEAN_STOP, KILLED, FROZEN}:
            elected = self._elected(testbed, watch)
            elected.busy = True
            try:
                if what == CLEAN_STOP:
                    self._stop_and_ask(elected, testbed, faults, events)
                elif what == KILLED:
                    faults.kill(elected, 2 * SERVE_SESSION_MS / 1000)
                else:
                    faults.freeze(elected, SERVE_SESSION_MS / 1000 + 4.0)
            finally:
                elected.busy = False
        else:
            self._roll(what, testbed, faults, watch, events)
        self._require_settled(watch, f"after '{what}'")

    def _stop_and_ask(self, elected: Actor, testbed: ChaosTestbed, faults: Faults, events: EventWriter) -> None:
        """Sends SIGTERM. From then on, requests a rebalance of one group after another every 50 ms, so that some
        request arrives during the handover."""
        # An eager group stops all partitions at every rebalance.
        groups = [group for group in testbed.groups() if group != EAGER_GROUP]
        pid = elected.process.pid
        machine = MachineTimes.now()
        faults.note(Kind.STOP, elected.target, Phase.BEGIN, pid=pid)
        elected.process.terminate()
        with ThreadPoolExecutor(max_workers=_REQUESTS) as asking:
            asked = []
            for number in range(_REQUESTS):
                group = groups[number % len(groups)]
                asked.append(asking.submit(self._ask, group, testbed, events))
                time.sleep(_REQUESTS_EVERY_S)
            for one in asked:
                one.result()
        events.write(Kind.MACHINE, elected.target, **machine.until_now())
        while elected.process.running:
            time.sleep(0.01)
        faults.note(Kind.STOP, elected.target, Phase.END, pid=pid, exit_code=elected.process.exit_code)
        time.sleep(1.0)
        faults.start(elected)

    def _ask(self, group: str, testbed: ChaosTestbed, events: EventWriter) -> None:
        asked = time.monotonic()
        request = submit(testbed.store, Request(RequestType.REBALANCE, group=group, reason="at a failover", by="chaos"))
        events.write(Kind.REQUEST, f"group:{group}", Phase.BEGIN, t=asked, id=request, group=group)
        await_answer(testbed.store, request, 30.0, lambda _: None)
        events.write(Kind.REQUEST, f"group:{group}", Phase.END, id=request, group=group)
        withdraw(testbed.store, request)

    def _roll(self, role: str, testbed: ChaosTestbed, faults: Faults, watch: Watch, events: EventWriter) -> None:
        """Restarts all processes of a role in turn. The next process follows when all groups are settled."""
        events.write(Kind.ROLLING, role, Phase.BEGIN)
        for actor in testbed.of(role):
            actor.busy = True
            try:
                faults.stop(actor)
                faults.start(actor)
            finally:
                actor.busy = False
            self._require_settled(watch, f"after {actor.target} was restarted")
        events.write(Kind.ROLLING, role, Phase.END)

    def _end(self, testbed: ChaosTestbed, faults: Faults, watch: Watch, events: EventWriter) -> None:
        """Ends the faults, waits until all records are read, and lets all consumers leave."""
        for actor in testbed.actors:
            actor.mend()
        quiet = events.write(Kind.QUIET)
        self._tell("quiet: waiting until all groups are settled and all records are read")
        self._require_settled(watch, "at the end")
        watch.note_settled(max(quiet.t, time.monotonic()))
        producer = testbed.of("producer")[0]
        producer.busy = True
        producer.process.terminate()
        deadline = time.monotonic() + _CAUGHT_UP_S
        while producer.process.running and time.monotonic() < deadline:
            time.sleep(0.1)
        if producer.process.exit_code != 0:
            raise KafkaCoordError(f"the producer ended with {producer.process.exit_code}: see its log")
        while (lag := watch.lag()) != 0:
            if time.monotonic() >= deadline:
                self._tell(f"not all records were read: {lag} are left")
                break
            self._tell(f"{'?' if lag is None else lag} records are left to read")
            time.sleep(2.0)
        events.write(Kind.ENDED)
        watch.close()
        for actor in testbed.of("consumer"):
            actor.busy = True
            actor.process.terminate()
        for role in ("consumer", "serve"):  # a consumer without ZooKeeper needs a coordinator to leave
            for actor in testbed.of(role):
                actor.busy = True
                faults.stop(actor)
            if role == "consumer" and self._mixed:
                self._await_departures(testbed)
        if self._of_clients or self._mixed:
            said = faults.command("audit", "--group-log", "-o", "json")
            (self._options.directory / GROUP_LOG).write_text(said.output, encoding="utf-8")
        if self._follower is not None:
            self._follower.finish()
        for actor in (*testbed.of("kafka"), *testbed.of("zookeeper")):
            actor.busy = True
        for actor in testbed.of("kafka"):
            actor.process.kill()  # after a SIGTERM, the last broker would wait long for a controller
        for actor in testbed.of("zookeeper"):
            faults.stop(actor)

    def _await_departures(self, testbed: ChaosTestbed) -> None:
        """Waits until no group has members. A static member stays a member until its session ends, and acknowledges no
        commands in that time."""
        deadline = time.monotonic() + _SETTLE_S
        while any(testbed.members(group) for group in testbed.managed_groups()):
            if time.monotonic() >= deadline:
                self._tell(f"a member has not left within {_SETTLE_S:g} s")
                return
            time.sleep(0.2)

    def _revive(self, faults: Faults, actor: Actor) -> None:
        self._tell(f"DIED {actor.target}: exit code {actor.process.exit_code}, see {actor.process.log}")
        faults.start(actor)
        actor.busy = False

    def _elected(self, testbed: ChaosTestbed, watch: Watch) -> Actor:
        deadline = time.monotonic() + _SETTLE_S
        while watch.elected is None:
            if time.monotonic() >= deadline:
                raise KafkaCoordError(f"nobody was elected within {_SETTLE_S:g} s")
            time.sleep(0.05)
        return testbed.actor(f"serve:{watch.elected}")

    def _require_settled(self, watch: Watch, when: str) -> None:
        if not watch.wait_until_settled(_SETTLE_S):
            # the judge sees this in the events, so the run continues
            self._tell(f"NOT SETTLED within {_SETTLE_S:g} s {when}")

    def _write_run(self, testbed: ChaosTestbed) -> None:
        page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
        sessions = {"serve": SERVE_SESSION_MS, "kafka": KAFKA_SESSION_MS}
        sessions["consumer"] = max(part.session_timeout_ms for part in self._parts)
        write_run(
            self._options.directory,
            Run(
                seed=self._options.seed,
                minutes=self._options.minutes,
                commit=_commit(),
                started=self._begin,
                started_wall=time.time(),
                setup=Setup(
                    cores=len(os.sched_getaffinity(0)),
                    memory_bytes=page * pages,
                    versions={
                        "kafka_coord": version("kafka_coord"),
                        "python": platform.python_version(),
                        "kazoo": version("kazoo"),
                        "kafka": testbed.broker.release.name.removeprefix("Kafka "),
                        "librdkafka": confluent_kafka.libversion()[0],
                    },
                    session_timeouts_ms=sessions,
                    rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                ),
                groups=self._groups(),
                consumers=tuple(part.participant() for part in self._parts),
                clients=self._options.clients,
                zookeeper_logs=tuple(f"zookeeper-{number}/data" for number in range(1, SERVERS + 1)),
            ),
        )

    def _tell(self, line: str) -> None:
        self._tell_line(f"{time.monotonic() - self._begin:7.1f}s  {line}")


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return f"kafka_coord {version('kafka_coord')}"
    return found.stdout.strip()
