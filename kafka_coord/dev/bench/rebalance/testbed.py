"""The testbed of the rebalance benchmark: ZooKeeper, a coordinator, and processes with members of one group."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import IO

from kafka_coord.channel.operations import register_ops
from kafka_coord.dev.bench.children import await_end, line_within
from kafka_coord.dev.bench.group import plain_member, write_topic
from kafka_coord.dev.bench.rebalance.journal import Journals
from kafka_coord.dev.bench.rebalance.member import Place
from kafka_coord.dev.bench.rebalance.peer import PeerPlace
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.coordinator import serve_beside
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings, ephemeral_exists
from kafka_coord.errors import KafkaCoordError, MalformedValue, NotFound, Timeout
from kafka_coord.model import Decision, Request, RequestType
from kafka_coord.monitor.history import read_history
from kafka_coord.monitor.requests import await_answer, submit
from kafka_coord.zk import layout
from kafka_coord.zk.session import connect
from kafka_coord.zk.store import Store

GROUP, TOPIC = "bench", "flights"
JOINER = "zjoiner"
_STUCK = "stuck"
_BROKER_ID = 1
_WITHIN_S = 120.0
STILL_S = 0.3
"""An event ends after this many seconds without a new decision."""


class MembersChannel(StrEnum):
    """How the members of a benchmark connect."""

    ZK = "zk"
    SOCKET = "socket"


class Crew:
    """A process with members. It receives its orders through a pipe, so it always ends with the benchmark.

    ``packages`` is a directory of packages to use instead of the installed ones. ``command`` runs a program with
    members other than this package's.
    """

    def __init__(
        self,
        name: str,
        place: Place | PeerPlace,
        consumers: Sequence[str],
        log: Path,
        packages: Path | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self.consumers = tuple(consumers)
        environment = dict(os.environ)
        if packages is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        module = "member" if isinstance(place, Place) else "peer"
        own = (sys.executable, "-m", f"kafka_coord.dev.bench.rebalance.{module}", json.dumps(asdict(place)))
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command or own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        self._name, self._log = name, log
        self.begin("open")

    def begin(self, what: str) -> None:
        """Sends the order ``open``, ``join`` or ``leave``. :meth:`ended` waits until it is executed."""
        with contextlib.suppress(BrokenPipeError):  # ended() reports it
            self._pipes()[0].write(json.dumps([what, self.consumers]).encode() + b"\n")
            self._pipes()[0].flush()

    def ended(self) -> None:
        """Waits until the process has executed its order."""
        answers = self._pipes()[1]
        answer = line_within(answers, _WITHIN_S)
        if not answer:
            raise Timeout(
                f"the members of {self._name} did not execute the order within {_WITHIN_S:.0f} s; see {self._log}"
            )
        problem = json.loads(answer)
        if problem is not None:
            raise KafkaCoordError(problem)

    def do(self, what: str) -> None:
        self.begin(what)
        self.ended()

    def kill(self) -> int:
        """Kills the process, like a crash. Returns the time (ns, monotonic)."""
        at_ns = time.monotonic_ns()
        self._process.kill()
        self.close()
        return at_ns

    def close(self) -> None:
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        await_end(self._process)

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        orders, answers = self._process.stdin, self._process.stdout
        if orders is None or answers is None:
            raise ValueError("made without pipes")
        return orders, answers


class Crews:
    """``members`` stay, in at most ten processes, and another member joins and leaves. ``make`` starts a process with
    this name and these members.
    """

    def __init__(self, make: Callable[[str, Sequence[str]], Crew], members: int) -> None:
        self._make = make
        count = min(members, 10)
        names = [f"m{number:05}" for number in range(members)]
        self._stay = [make(f"crew-{number}", names[number::count]) for number in range(count)]
        self._joiners = 1
        self.joiner = make("joiner", [JOINER])
        for crew in [*self._stay, self.joiner]:
            crew.ended()

    def all(self, what: str) -> None:
        """Gives an order to all members that stay, at the same time."""
        for crew in self._stay:
            crew.begin(what)
        for crew in self._stay:
            crew.ended()

    def next_joiner(self) -> None:
        """Starts a new process to replace a killed one."""
        self._joiners += 1
        self.joiner = self._make(f"joiner-{self._joiners}", [JOINER])
        self.joiner.ended()

    def close(self) -> None:
        for crew in [*self._stay, self.joiner]:
            crew.close()


class Quiet:
    """Detects when the coordinator has finished with an event, because its decisions have settled and there are no new
    ones for a while.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Event()

    def newest(self) -> Decision | None:
        self._changed.clear()
        self._store.exists(layout.history(GROUP), lambda _event: self._changed.set())
        try:
            found = read_history(self._store, GROUP)
        except (MalformedValue, NotFound):
            return None
        return found[-1] if found else None

    def after(self, generation: int, members: int, within_s: float) -> Decision:
        """Waits until the last decision after ``generation``, for a group of ``members``, has settled. Returns it."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            found = self.newest()
            settled = (
                found is not None
                and found.generation > generation
                and found.members == members
                and found.settled_ms is not None
            )
            if found is not None and settled and not self._changed.wait(STILL_S):
                return found
            if not settled:
                self._changed.wait(0.5)
        raise Timeout(f"the group did not settle with {members} members within {within_s:.0f} s")


@dataclass(frozen=True, slots=True)
class RebalanceTestbed:
    """``coordinator`` is the process of the elected (and only) instance."""

    store: Store
    place: Place
    coordinator: ChildProcess
    quiet: Quiet
    journals: Journals
    directory: Path

    def crew(self, name: str, consumers: Sequence[str]) -> Crew:
        """Starts a process, which opens the sessions of these members."""
        journal = self.directory / "journals" / f"{name}.journal"
        return Crew(name, replace(self.place, journal=str(journal)), consumers, self.directory / f"{name}.log")

    def set_partitions(self, partitions: int) -> int:
        """Creates or changes the topic's znode as Kafka does. Returns the time (ns, monotonic)."""
        at_ns = time.monotonic_ns()
        write_topic(self.store, TOPIC, partitions)
        return at_ns

    @contextmanager
    def stuck_group(self) -> Iterator[None]:
        """Adds another group with a live member that ignores its commands. The block begins after the first
        command."""
        path = layout.channel(_STUCK, _STUCK)
        for parent in (layout.ids(_STUCK), path):
            self.store.ensure_path(parent)
        value = plain_member(_STUCK, TOPIC, _STUCK).registration_value(self.store)
        self.store.multi(register_ops(_STUCK, _STUCK, value))
        awaited(lambda: self.store.children(path), _WITHIN_S, "a command for the stuck member")
        time.sleep(STILL_S)  # other writes for this group do not count
        try:
            yield
        finally:
            self.store.delete(layout.registration(_STUCK, _STUCK))

    def rebalance(self) -> tuple[int, int]:
        """Requests a rebalance as an operator. Returns the times of the request and the answer (ns, monotonic)."""
        at_ns = time.monotonic_ns()
        request_id = submit(self.store, Request(RequestType.REBALANCE, group=GROUP, reason="bench"))
        await_answer(self.store, request_id, 60.0, lambda _: None)
        return at_ns, time.monotonic_ns()


@contextmanager
def testbed(
    directory: Path, session_timeout_ms: int, partitions: int, channel: MembersChannel
) -> Iterator[RebalanceTestbed]:
    """Starts a standalone ZooKeeper and one coordinator, with the topic and an empty group."""
    (directory / "journals").mkdir(parents=True, exist_ok=True)
    # ZooKeeper ends sessions at whole ticks. With large ticks, the wait for a tick would dominate the cost of a kill.
    settings = ZooKeeperSettings(tick_ms=100, heap_mb=256)
    with ZooKeeperServer(directory / "zookeeper", settings=settings) as server:
        store = connect(server.connect_string)
        command = serve_beside(_BROKER_ID, server.connect_string)
        bootstrap = ""
        if channel is MembersChannel.SOCKET:
            bootstrap = f"{LOOPBACK}:{free_port()}"
            command += ["--listen-channel", bootstrap]
        coordinator = ChildProcess("coordinator", command, directory / "coordinator.log")
        try:
            store.ensure_path(layout.BROKER_TOPICS)
            store.ensure_path(layout.BROKER_IDS)
            place = Place(server.connect_string, GROUP, TOPIC, session_timeout_ms, "", bootstrap)
            found = RebalanceTestbed(
                store, place, coordinator, Quiet(store), Journals(directory / "journals"), directory
            )
            found.set_partitions(partitions)
            coordinator.start()
            coordinator.wait_until(lambda: ephemeral_exists(server.connect_string, layout.COORDINATOR) is True, 60.0)
            yield found
        finally:
            store.close()
            coordinator.stop()
