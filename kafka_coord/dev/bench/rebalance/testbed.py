"""The testbed of the rebalance benchmark: ZooKeeper, a coordinator, and processes with members of one group."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from kafka_coord.channel.operations import register_ops
from kafka_coord.dev.bench.children import Child
from kafka_coord.dev.bench.group import plain_member, write_topic, zookeeper
from kafka_coord.dev.bench.rebalance.figures import Cost, Event, Owners, cost
from kafka_coord.dev.bench.rebalance.journal import Journals, Line, What
from kafka_coord.dev.bench.rebalance.member import Place
from kafka_coord.dev.bench.rebalance.peer import PeerPlace
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.coordinator import serve_beside
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.zookeeper import ZooKeeperSettings, ephemeral_exists
from kafka_coord.errors import KafkaCoordError, MalformedValue, NotFound, Timeout
from kafka_coord.groups.managed import read_trail
from kafka_coord.groups.requests import await_answer, submit
from kafka_coord.model import Decision, Request, RequestType
from kafka_coord.zk import layout
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
    """A process with members. ``packages`` and ``command`` are passed to :class:`Child`."""

    def __init__(
        self,
        name: str,
        place: Place | PeerPlace,
        consumers: Sequence[str],
        log: Path,
        packages: Path | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self._name, self._consumers = name, tuple(consumers)
        module = "rebalance.member" if isinstance(place, Place) else "rebalance.peer"
        self._child = Child(module, json.dumps(asdict(place)), log, command=command, packages=packages)
        self.begin("open")

    def begin(self, what: str) -> None:
        """Sends the order ``open``, ``join`` or ``leave``. :meth:`ended` waits until it has been carried out."""
        with contextlib.suppress(BrokenPipeError):  # ended() reports it
            self._child.orders.write(json.dumps([what, self._consumers]).encode() + b"\n")
            self._child.orders.flush()

    def ended(self) -> None:
        """Waits until the process has carried out its order."""
        answer = self._child.line(_WITHIN_S)
        if not answer:
            raise Timeout(
                f"the members of {self._name} did not execute the order within {_WITHIN_S:.0f} s; see {self._child.log}"
            )
        problem = json.loads(answer)
        if problem is not None:
            raise KafkaCoordError(problem)

    def do(self, what: str) -> None:
        self.begin(what)
        self.ended()

    def kill(self) -> int:
        """Kills the process, as a crash would. Returns the time (ns, monotonic)."""
        at_ns = time.monotonic_ns()
        self._child.process.kill()
        self.close()
        return at_ns

    def close(self) -> None:
        self._child.close()


class Crews:
    """All members of a group: ``members`` stay, in at most ten processes, and another one joins and leaves. ``make``
    starts a process with the given name and members.
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
        """Sends an order to all permanent members at once, and waits until they have executed it."""
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


class MeasuredGroup(ABC):
    """A group whose members stay, except one that joins and leaves. Between events, it is settled. ``costs`` contains
    the cost of each event so far. ``make`` is passed to :class:`Crews`.
    """

    def __init__(self, make: Callable[[str, Sequence[str]], Crew], members: int) -> None:
        self.crews = Crews(make, members)
        self.costs: dict[Event, list[Cost]] = {event: [] for event in Event}
        self.members = 0
        self._staying = members
        self._owners: Owners = {}

    def happen(self, event: Event) -> Cost:
        """Causes the event in the settled group, and waits until the group has settled again."""
        found = self._cause(event)
        self.costs[event].append(found)
        return found

    def _cause(self, event: Event) -> Cost:
        joiner, staying = self.crews.joiner, self._staying
        match event:
            case Event.COLD:
                if self.members:
                    self.crews.all("leave")
                    self._settle(Event.LEAVE, 0)
                self.crews.all("join")
                return self._settle(event, staying)
            case Event.JOIN:
                joiner.do("join")
                return self._settle(event, staying + 1)
            case Event.LEAVE:
                joiner.do("leave")
                return self._settle(event, staying)
            case Event.KILL:
                joiner.do("join")
                self._settle(Event.JOIN, staying + 1)
                found = self._settle(event, staying, at_ns=joiner.kill(), killed=JOINER)
                self.crews.next_joiner()
                return found
            case _:
                raise ValueError(f"this group cannot cause the event {event}")

    def _settle(self, event: Event, members: int, *, at_ns: int = 0, killed: str = "", answered_ns: int = 0) -> Cost:
        """Waits until the group has settled with ``members`` members. Returns the cost of the event."""
        found, self._owners = self._await_settled(event, members, at_ns, killed, answered_ns)
        self.members = members
        return found

    @abstractmethod
    def _await_settled(
        self, event: Event, members: int, at_ns: int, killed: str, answered_ns: int
    ) -> tuple[Cost, Owners]:
        """Returns the cost of the event and the owners after it. An event without ``at_ns`` begins when a member joins
        or leaves."""

    def _cost(
        self, event: Event, lines: Sequence[Line], at_ns: int, killed: str, answered_ns: int
    ) -> tuple[Cost, Owners]:
        begins = (line.at_ns for line in lines if line.what in {What.JOINING, What.LEAVING})
        since_ns = at_ns or next(begins, time.monotonic_ns())
        return cost(event, since_ns, lines, self._owners, killed=killed, answered_ns=answered_ns)

    def close(self) -> None:
        self.crews.close()


class Quiet:
    """Detects when the coordinator has finished handling an event: its decisions have settled, and it has not made a
    new one for a while.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Event()

    def _newest(self) -> Decision | None:
        self._changed.clear()
        self._store.exists(layout.history(GROUP), lambda _event: self._changed.set())
        with contextlib.suppress(MalformedValue, NotFound):
            return next(reversed(read_trail(self._store, GROUP).decisions), None)
        return None

    def after(self, generation: int, members: int, within_s: float) -> Decision:
        """Waits until the latest decision is later than ``generation``, is for ``members`` members, and has settled.
        Returns it."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            found = self._newest()
            if found is None or found.generation <= generation or found.members != members or found.settled_ms is None:
                self._changed.wait(0.5)
            elif not self._changed.wait(STILL_S):
                return found
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
        """Starts a process, which opens a session for each of ``consumers``."""
        journal = self.directory / "journals" / f"{name}.journal"
        return Crew(name, replace(self.place, journal=str(journal)), consumers, self.directory / f"{name}.log")

    def set_partitions(self, partitions: int) -> int:
        """Creates or changes the topic's znode as Kafka does. Returns the time (ns, monotonic)."""
        at_ns = time.monotonic_ns()
        write_topic(self.store, TOPIC, partitions)
        return at_ns

    @contextmanager
    def stuck_group(self) -> Iterator[None]:
        """Adds another group with a live member that ignores its commands. Enters the block once the member has a
        command."""
        path = layout.channel(_STUCK, _STUCK)
        for parent in (layout.ids(_STUCK), path):
            self.store.ensure_path(parent)
        value = plain_member(_STUCK, TOPIC, _STUCK).registration_value(self.store)
        self.store.multi(register_ops(_STUCK, _STUCK, value))
        awaited(lambda: self.store.children(path), _WITHIN_S, "a command for the stuck member")
        time.sleep(STILL_S)  # so that later writes for the stuck group are not measured
        try:
            yield
        finally:
            self.store.delete(layout.registration(_STUCK, _STUCK))

    def rebalance(self) -> tuple[int, int]:
        """Requests a rebalance, the way an operator would. Returns the times of the request and the answer (ns,
        monotonic)."""
        at_ns = time.monotonic_ns()
        request_id = submit(self.store, Request(RequestType.REBALANCE, group=GROUP, reason="bench"))
        await_answer(self.store, request_id, 60.0, lambda _: None)
        return at_ns, time.monotonic_ns()


@contextmanager
def testbed(
    directory: Path, session_timeout_ms: int, partitions: int, channel: MembersChannel
) -> Iterator[RebalanceTestbed]:
    """Starts a standalone ZooKeeper and one coordinator, with the topic, but without members yet."""
    (directory / "journals").mkdir(parents=True, exist_ok=True)
    # ZooKeeper expires sessions at whole ticks. With long ticks, waiting for one would dominate the cost of a kill.
    settings = ZooKeeperSettings(tick_ms=100, heap_mb=256)
    with zookeeper(directory, settings) as (server, store):
        command = serve_beside(_BROKER_ID, server.connect_string)
        bootstrap = ""
        if channel is MembersChannel.SOCKET:
            bootstrap = f"{LOOPBACK}:{free_port()}"
            command += ["--listen-channel", bootstrap]
        coordinator = ChildProcess("coordinator", command, directory / "coordinator.log")
        try:
            place = Place(server.connect_string, GROUP, TOPIC, session_timeout_ms, "", bootstrap)
            found = RebalanceTestbed(
                store, place, coordinator, Quiet(store), Journals(directory / "journals"), directory
            )
            found.set_partitions(partitions)
            coordinator.start()
            coordinator.wait_until(lambda: ephemeral_exists(server.connect_string, layout.COORDINATOR) is True, 60.0)
            yield found
        finally:
            coordinator.stop()
