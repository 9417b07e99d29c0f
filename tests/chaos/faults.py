"""Injects the faults of the schedule into the testbed, and records them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from kafka_coord.dev.cluster.identity import cpu_seconds, stat_fields
from kafka_coord.errors import BrokerError, DevClusterError, KafkaCoordError, RequestRefused, StoreUnavailable, Timeout
from kafka_coord.zk import layout
from tests.chaos.force_expire import expire
from tests.chaos.journal import WORLD, Event, EventWriter, Kind, Phase
from tests.chaos.links import Direction
from tests.chaos.logins import OPERATOR, as_variables
from tests.chaos.parts import EAGER_GROUP, PREFIX, Part, another, mixed_cast
from tests.chaos.schedule import Planned
from tests.chaos.skewed import set_skew
from tests.chaos.testbed import Actor, ChaosTestbed
from tests.chaos.world.scene import Scene
from tests.chaos.world.scenes import play

Tell = Callable[[str], None]

_MOST_BUSY = {"consumer": 5, "serve": 2, "zookeeper": 1, "kafka": 1}
"""The maximum number of processes of each role with a fault at a time. A majority of ZooKeeper's servers, and two of
three brokers (the minimum of in-sync replicas), must stay available."""

_OF_LINKS = frozenset({Kind.CUT, Kind.SLOW, Kind.RESET_CONNECTIONS})

_MOST_PARTITIONS = {f"{PREFIX}a": 24, f"{PREFIX}b": 12}
_MOST_TOPICS = 4
_RESET = frozenset({"manual", EAGER_GROUP, *(part.group for part in mixed_cast())})
"""The groups whose offsets operators set."""
_STOP_S = 30.0
_CLI_S = 60.0
_BROKER_BACK_S = 90.0
"""How long to restart a broker that ends during its start, in seconds: several session timeouts."""


@dataclass(frozen=True, slots=True)
class Said:
    """The result of an operator's command."""

    exit_code: int
    output: str


class Faults:
    """Starts each fault immediately, on its own thread. :meth:`wait` waits for all faults. Thread-safe."""

    def __init__(self, testbed: ChaosTestbed, events: EventWriter, tell: Tell) -> None:
        self._testbed = testbed
        self._events = events
        self._tell = tell
        self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="fault")
        self._running: set[Future[None]] = set()
        self._operators = threading.Lock()
        self._groups_in_use: set[str] = set()
        self._joined = 0
        self._topics_added = 0
        self._scenes = 0
        self._playing = threading.Lock()
        self.failures: list[str] = []
        self.done = 0
        self.skipped = 0

    # --- from the schedule -------------------------------------------------------------------------------------------

    def begin(self, planned: Planned) -> None:
        """Begins the fault. Skips the fault if no process of its role is free."""
        if planned.role in _MOST_BUSY:
            actor = self.claim(planned.role, planned.pick)
            if actor is not None and planned.kind in _OF_LINKS and not actor.links:
                actor.busy = False
                actor = None
            if actor is None:
                self.skipped += 1
                return
            joins = planned.kind is Kind.JOIN  # it is no fault of the consumer that it is like, which others may use
            if joins:
                actor.busy = False
            self._run(None if joins else actor, lambda: self._strike(planned, actor))
        else:
            self._run(None, lambda: self._operate(planned))

    def wait(self, timeout_s: float = 180.0) -> None:
        """Waits until all faults are over and all processes run again."""
        deadline = time.monotonic() + timeout_s
        while self._running:
            for future in tuple(self._running):
                try:
                    future.result(max(0.0, deadline - time.monotonic()))
                except TimeoutError:
                    self.failures.append("a fault was not over in time")
                    self._running.clear()
                    return

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def claim(self, role: str, pick: float) -> Actor | None:
        """Returns a process of this role, which is then busy, or None if none is free. ``pick`` (0 to 1) chooses."""
        testbed = self._testbed
        with testbed.lock:
            alike = [actor for actor in testbed.actors if actor.role == role]
            free = [actor for actor in alike if not actor.busy]
            if not free or len(alike) - len(free) >= _MOST_BUSY[role]:
                return None
        actor = free[int(pick * len(free))]
        # otherwise, only a third of the faults would hit the leader, which matters most
        if role == "zookeeper" and pick < 0.5:
            leader = testbed.zookeeper_leader()
            actor = leader if leader in free and leader is not None else actor
        with testbed.lock:
            if actor.busy:
                return None
            actor.busy = True
        return actor

    def claim_target(self, target: str) -> Actor | None:
        """Returns that process, which is then busy, or None if it is not free or too many of its role are busy."""
        actor = self._testbed.actor(target)
        with self._testbed.lock:
            alike = [one for one in self._testbed.actors if one.role == actor.role]
            if actor.busy or sum(one.busy for one in alike) >= _MOST_BUSY[actor.role]:
                return None
            actor.busy = True
        return actor

    def _run(self, actor: Actor | None, what: Callable[[], None]) -> None:
        def run() -> None:
            try:
                what()
                self.done += 1
            except Exception as error:  # noqa: BLE001  the run fails with it at its end
                self.failures.append(f"{actor.target if actor else 'operator'}: {error!r}")
                self._tell(f"FAILED: {error!r}")
            finally:
                if actor is not None:
                    actor.mend()
                    actor.busy = False

        future = self._pool.submit(run)
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    # --- on one process ----------------------------------------------------------------------------------------------

    def _strike(self, planned: Planned, actor: Actor) -> None:
        lasts_s = planned.duration_s
        match planned.kind:
            case Kind.KILL:
                self.kill(actor, lasts_s)
            case Kind.STOP:
                self.stop(actor)
                time.sleep(lasts_s)
                self.start(actor)
            case Kind.FREEZE:
                self.freeze(actor, lasts_s)
            case Kind.CUT:
                self._cut(actor, Direction(planned.detail["direction"]), lasts_s)
            case Kind.SLOW:
                self._slow(actor, lasts_s, **planned.detail)
            case Kind.RESET_CONNECTIONS:
                for link in actor.links:
                    link.reset()
                self.note(Kind.RESET_CONNECTIONS, f"link:{actor.target}")
            case Kind.EXPIRE:
                self._expire(actor)
            case Kind.CLOCK:
                self._jump(actor, planned.detail["seconds"], lasts_s)
            case Kind.EVICT:
                self._evict(actor)
            case Kind.JOIN:
                self._join(actor, lasts_s)
            case other:
                raise ValueError(f"{other} cannot be injected into a process")

    def kill(self, actor: Actor, then_s: float = 0.0) -> Event:
        """Kills the process with ``kill -9``, and starts it again ``then_s`` seconds later."""
        event = self.kill_only(actor)
        time.sleep(then_s)
        self.start(actor)
        return event

    def kill_only(self, actor: Actor) -> Event:
        """Kills the process with ``kill -9``, and leaves it to the caller to start it again."""
        pid = actor.process.pid
        at = time.monotonic()
        (actor.server or actor.process).kill()
        return self.note(Kind.KILL, actor.target, t=at, pid=pid)

    def stop(self, actor: Actor) -> None:
        """Sends SIGTERM, and waits for the end of the process. If it has to be killed, that is a failure."""
        pid = actor.process.pid
        self.note(Kind.STOP, actor.target, Phase.BEGIN, pid=pid)
        actor.process.terminate()
        deadline = time.monotonic() + _STOP_S
        while actor.process.running and time.monotonic() < deadline:
            time.sleep(0.01)
        code = actor.process.exit_code
        if code is None:
            actor.process.kill()
            self.note(Kind.KILL, actor.target, pid=pid)
            if actor.role in {"consumer", "serve"} and not (actor.part is not None and actor.part.stock):
                raise KafkaCoordError(f"{actor.target} did not end within {_STOP_S:g} s of SIGTERM")
        elif code != 0 and actor.role in {"consumer", "serve"}:
            raise KafkaCoordError(f"{actor.target} ended with exit code {code} after SIGTERM: see {actor.process.log}")
        if actor.server is not None:
            actor.server.stop()  # it has ended, so this only keeps its class archives
        self.note(Kind.STOP, actor.target, Phase.END, pid=pid, exit_code=code)

    def start(self, actor: Actor) -> None:
        """Starts the process, and waits until it works."""
        self.note(Kind.START, actor.target, Phase.BEGIN)
        self._testbed.note_ghost(actor)
        give_up_at = time.monotonic() + _BROKER_BACK_S
        while True:
            try:
                actor.start()
                break
            except DevClusterError:
                if actor.role != "kafka" or actor.process.running or time.monotonic() >= give_up_at:
                    raise
            # A broker gives up if the registration of its earlier session still exists. That session lasts longer each
            # time ZooKeeper loses its leader. An operator would start the broker again.
            self._tell(f"starting {actor.target} again: it ended with exit code {actor.process.exit_code}")
        self.note(Kind.START, actor.target, Phase.END, pid=actor.process.pid)

    def start_together(self, actors: Sequence[Actor]) -> None:
        """Starts processes that work only together, and waits until they do."""
        for actor in actors:
            self.note(Kind.START, actor.target, Phase.BEGIN)
            actor.launch()
        for actor in actors:
            actor.process.wait_until(actor.ready, _BROKER_BACK_S)
            self.note(Kind.START, actor.target, Phase.END, pid=actor.process.pid)

    def freeze(self, actor: Actor, lasts_s: float) -> None:
        """Stops the process with SIGSTOP, and continues it with SIGCONT."""
        pid = actor.process.pid
        actor.process.pause()
        self.note(Kind.FREEZE, actor.target, Phase.BEGIN, pid=pid)
        try:
            time.sleep(lasts_s)
        finally:
            self.note(Kind.FREEZE, actor.target, Phase.END, pid=pid)
            actor.process.resume()

    @contextmanager
    def claimed(self, *roles: str) -> Iterator[tuple[Actor, ...]]:
        """Yields all processes of these roles, which are busy while the block runs, or none if one is busy already."""
        testbed = self._testbed
        with testbed.lock:
            wanted = tuple(actor for actor in testbed.actors if actor.role in roles)
            if any(actor.busy for actor in wanted):
                wanted = ()
            for actor in wanted:
                actor.busy = True
        try:
            yield wanted
        finally:
            for actor in wanted:
                actor.busy = False

    @contextmanager
    def zookeeper_frozen(self) -> Iterator[bool]:
        """Freezes all ZooKeeper servers while the block runs. Yields False, and freezes none, if one is busy."""
        with self.claimed("zookeeper") as servers:
            if not servers:
                yield False
                return
            try:
                for actor in servers:
                    actor.process.pause()
                self.note(Kind.FREEZE, "zookeeper:*", Phase.BEGIN)
                yield True
            finally:
                self.note(Kind.FREEZE, "zookeeper:*", Phase.END)
                for actor in servers:
                    actor.process.resume()

    def _links_of(self, actor: Actor) -> list[Any]:
        """Returns the process's own links and, for a ZooKeeper server, the other servers' links to it."""
        links = list(actor.links)
        if actor.role == "zookeeper":
            for other in self._testbed.of("zookeeper"):
                if other is not actor:
                    # Each server has a link to each other server, in order of their numbers.
                    names = [one.name for one in self._testbed.of("zookeeper") if one is not other]
                    links.append(other.links[names.index(actor.name)])
        return links

    def _cut(self, actor: Actor, direction: Direction, lasts_s: float) -> None:
        links = self._links_of(actor)
        self.note(Kind.CUT, f"link:{actor.target}", Phase.BEGIN, direction=direction)
        for link in links:
            link.cut(direction)
        try:
            time.sleep(lasts_s)
        finally:
            for link in links:
                link.mend()
            self.note(Kind.CUT, f"link:{actor.target}", Phase.END, direction=direction)

    def _slow(self, actor: Actor, lasts_s: float, latency_ms: int, bytes_per_s: int) -> None:
        detail = {"latency_ms": latency_ms, "bytes_per_s": bytes_per_s}
        links = self._links_of(actor)
        self.note(Kind.SLOW, f"link:{actor.target}", Phase.BEGIN, **detail)
        for link in links:
            link.slow(latency_ms / 1000, bytes_per_s)
        try:
            time.sleep(lasts_s)
        finally:
            for link in links:
                link.mend()
            self.note(Kind.SLOW, f"link:{actor.target}", Phase.END, **detail)

    def _expire(self, actor: Actor) -> None:
        if actor.part is not None:
            path = layout.registration(actor.part.group, actor.part.name)
        else:
            path = layout.instance(int(actor.name))
        session = self._testbed.session_at(path)
        if session is None:
            return
        self.note(Kind.EXPIRE, actor.target, session=f"{session:#x}")
        try:
            expire(self._testbed.hosts, session)
        except StoreUnavailable as error:
            self._tell(str(error))

    def _jump(self, actor: Actor, seconds: float, lasts_s: float) -> None:
        set_skew(actor.clock, seconds)
        self.note(Kind.CLOCK, actor.target, seconds=seconds)
        time.sleep(lasts_s)
        set_skew(actor.clock, 0.0)
        self.note(Kind.CLOCK, actor.target, seconds=-seconds)

    def _join(self, like: Actor, lasts_s: float) -> None:
        self._joined += 1
        actor = self._testbed.add_consumer(another(like.membership, self._joined))
        self.note(Kind.JOIN, actor.target)
        self.start(actor)
        time.sleep(lasts_s)
        self.stop(actor)
        self._testbed.remove(actor)

    # --- operators ---------------------------------------------------------------------------------------------------

    def _evict(self, actor: Actor) -> None:
        part = actor.membership
        name = self._registered(part) if part.stock else part.name
        if name is None:
            self.skipped += 1
            return
        self.note(Kind.EVICT, actor.target, group=part.group, consumer=part.name)
        self.command("groups", "evict", part.group, name, "--reason", "chaos")

    def _registered(self, part: Part) -> str | None:
        """Returns a stock client's name in its group. Returns None without a name or an answer of ZooKeeper."""
        try:
            members = self._testbed.members(part.group)
        except KafkaCoordError:
            return None
        return next((member.consumer for member in members if member.client == part.name), None)

    def play(self, kind: Kind, pick: float) -> None:
        """Plays the scene of an event of the world, and records what it observed. Skips it while another is played,
        because scenes need most of a small machine."""
        if not self._playing.acquire(blocking=False):
            self.skipped += 1
            return
        try:
            self._scenes += 1
            scene = Scene(self._testbed, self, kind, self._scenes, pick)
            target = f"{WORLD}:{scene.name}"
            self.note(kind, target, Phase.BEGIN)
            observed = play(kind, scene)
            self.note(kind, target, Phase.END, **observed.to_detail())
        finally:
            self._playing.release()

    def _operate(self, planned: Planned) -> None:
        if planned.role == WORLD:
            self.play(planned.kind, planned.pick)
            return
        if planned.role == "topic":
            with self._operators:
                self._grow(planned)
            return
        if planned.kind is Kind.RESIGN:
            self.note(Kind.RESIGN, "all")
            self.command("coordinator", "resign", "--reason", "chaos")
            return
        groups = [group for group in self._testbed.groups() if group not in self._groups_in_use]
        if not groups:
            self.skipped += 1
            return
        group = groups[int(planned.pick * len(groups))]
        self._groups_in_use.add(group)
        try:
            if planned.kind is Kind.REBALANCE:
                self.note(Kind.REBALANCE, f"group:{group}")
                self.command("groups", "rebalance", group, "--reason", "chaos")
            elif planned.kind is Kind.PAUSE:
                self._pause(group, planned.duration_s)
            else:
                self._reset(planned.pick)
        finally:
            self._groups_in_use.discard(group)

    def _pause(self, group: str, lasts_s: float) -> None:
        self.note(Kind.PAUSE, f"group:{group}", Phase.BEGIN)
        self.command("groups", "pause", group, "--reason", "chaos")
        time.sleep(lasts_s)
        self.resume(group)
        self.note(Kind.PAUSE, f"group:{group}", Phase.END)

    def resume(self, group: str) -> None:
        """Resumes a paused group. Repeats the command until it is done."""
        self._until_done("groups", "resume", group, refused_is_done=True)

    def _reset(self, pick: float) -> None:
        """Stops a group's consumers, sets its offsets some records back, and starts the consumers again."""
        groups = [group for group in self._testbed.groups() if group in _RESET]
        group = groups[int(pick * len(groups))]
        with self._testbed.lock:
            members = [actor for actor in self._testbed.actors if actor.part is not None and actor.part.group == group]
            if any(actor.busy for actor in members):
                self.skipped += 1
                return
            for actor in members:
                actor.busy = True
        try:
            for actor in members:
                self.stop(actor)
            said = self._until_done(
                *("groups", "reset-offsets", group, "--all-topics", "--shift-by", "-40"),
                *("--execute", "--accept-notes", "-o", "json", "--reason", "chaos"),  # some have read less than 40
            )
            self.note(Kind.RESET, f"group:{group}", group=group, offsets=_offsets(said.output))
        finally:
            for actor in members:
                self.start(actor)
                actor.busy = False

    def _grow(self, planned: Planned) -> None:
        topics = self._testbed.topics
        if planned.kind is Kind.PARTITIONS_ADDED:
            names = sorted(_MOST_PARTITIONS)
            topic = names[int(planned.pick * len(names))]
            total = min(topics.partition_count(topic) + 2, _MOST_PARTITIONS[topic])
            if total == topics.partition_count(topic):
                self.skipped += 1
                return
            self._patiently(lambda: topics.add_partitions(topic, total))
            self.note(Kind.PARTITIONS_ADDED, f"topic:{topic}", topic=topic, partitions=total)
        elif self._topics_added < _MOST_TOPICS:
            topic = f"{PREFIX}n{self._topics_added + 1}"
            try:
                self._patiently(lambda: topics.create(topic, 3, replication=3))
            except RequestRefused as error:
                if "available brokers" not in str(error):
                    raise
                self._tell(f"no {topic}: {error}")  # a broker was unreachable for long, so the operator gives up
                self.skipped += 1
                return
            self._topics_added += 1
            self.note(Kind.TOPIC_ADDED, f"topic:{topic}", topic=topic, partitions=3)
        else:
            self.skipped += 1

    def _patiently(self, change: Callable[[], None]) -> None:
        """Repeats the change, because restarting brokers may refuse it. If an earlier attempt took effect, the next
        attempt is refused as a repetition.
        """
        deadline = time.monotonic() + 2 * _CLI_S
        while True:
            try:
                return change()
            except RequestRefused as error:
                if "already" in str(error):
                    return None
                if time.monotonic() >= deadline:
                    raise
            except (BrokerError, Timeout):
                if time.monotonic() >= deadline:
                    raise
            time.sleep(1.0)

    def _until_done(self, *arguments: str, refused_is_done: bool = False) -> Said:
        deadline = time.monotonic() + 2 * _CLI_S
        while True:
            said = self.command(*arguments)
            if said.exit_code == 0 or (refused_is_done and said.exit_code == 6):
                return said
            if time.monotonic() >= deadline:
                raise KafkaCoordError(f"{' '.join(arguments)} was not done: {said.output.strip()[-500:]}")
            time.sleep(0.5)

    def command(self, *arguments: str) -> Said:
        """Runs ``kafka-coord …`` as an operator does, and appends its output to ``logs/operators.log``."""
        ran = subprocess.run(
            [sys.executable, "-m", "kafka_coord.cli.main", *arguments],
            env={
                **os.environ,
                **as_variables(self._testbed.user(OPERATOR)),
                "KAFKA_COORD_ZOOKEEPER": self._testbed.hosts,
            },
            capture_output=True,
            text=True,
            timeout=_CLI_S * 2,
            check=False,
        )
        with (self._testbed.directory / "logs" / "operators.log").open("a", encoding="utf-8") as log:
            log.write(f"$ kafka-coord {' '.join(arguments)}\n{ran.stdout}{ran.stderr}(exit code {ran.returncode})\n")
        if ran.returncode == 1:
            raise KafkaCoordError(f"kafka-coord {' '.join(arguments)} crashed: {ran.stderr.strip()[-500:]}")
        return Said(ran.returncode, ran.stdout)

    # --- events ------------------------------------------------------------------------------------------------------

    def note(
        self, kind: Kind, target: str, phase: Phase = Phase.POINT, *, t: float | None = None, **detail: Any
    ) -> Event:
        """Records the event, and shows it."""
        event = self._events.write(kind, target, phase, t=t, **detail)
        words = " ".join(f"{name}={value}" for name, value in detail.items() if name not in {"pid", "offsets", "owed"})
        self._tell(f"{kind} {target}{'' if phase is Phase.POINT else ' ' + phase} {words}".rstrip())
        return event


def _offsets(printed: str) -> dict[str, dict[str, int]]:
    """Returns ``{topic: {partition: offset}}`` from the output of ``reset-offsets -o json``."""
    found: dict[str, dict[str, int]] = {}
    rows = json.loads(printed)
    for row in _rows(rows):
        found.setdefault(row["topic"], {})[str(row["partition"])] = row["new_offset"]
    return found


def _rows(document: Any) -> Sequence[dict[str, Any]]:
    if isinstance(document, list):
        return document
    return next(value for value in document.values() if isinstance(value, list))


class Used(TypedDict):
    """The fields of :class:`~tests.chaos.journal.Usage` that come from /proc."""

    rss_bytes: int
    threads: int
    descriptors: int
    sockets: int
    cpu_s: float


def read_process(pid: int) -> Used | None:
    """Reads memory (bytes), threads, descriptors and CPU seconds of a process. Returns None if it has ended."""
    stat = stat_fields(pid)
    if stat is None:
        return None
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "rss_bytes": int(fields["VmRSS"].split()[0]) * 1024,
        "threads": int(fields["Threads"]),
        "descriptors": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "cpu_s": cpu_seconds(stat),
    }
