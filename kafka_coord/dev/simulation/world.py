"""A seeded history: processes, faults, and time until everybody is at rest again."""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.connector import Connector
from kafka_coord.coordinator.assignors import load_assignors
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.simulation.applications import SimulatedFetchers, SimulatedLog
from kafka_coord.dev.simulation.invariants import InvariantBroken, Judge
from kafka_coord.dev.simulation.scheduler import Actor, Scheduler
from kafka_coord.dev.simulation.server import SimulatedZooKeeper
from kafka_coord.dev.simulation.store import SimulatedStore
from kafka_coord.errors import KafkaCoordError
from kafka_coord.model import Member, PartitionSet, Request, RequestType, Subscription, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, SessionState, SetData

SESSION_MS = 4_000
GROUP = "delays"
TOPIC = "flights"
FAULTS = frozenset({"cut", "lost", "freeze", "kill", "grow", "pause", "evict", "rebalance", "resign", "close"})
OPTIONS = CoordinatorOptions(look_interval_ms=20_000)
TURMOIL = 2_500
"""For how many steps faults happen."""
STORY_LENGTH = 4_000
"""How many of the last sentences of a history are kept."""

_assignors = cache(load_assignors)


@dataclass(eq=False, slots=True)
class Process:
    """One process: a store and the actors that use it. ``incarnation`` and the rest make a consumer's witness."""

    name: str
    store: SimulatedStore
    service: CoordinatorService | None = None
    connector: Connector | None = None
    fetchers: SimulatedFetchers | None = None
    actors: list[Actor] = field(default_factory=list)
    alive: bool = True
    frozen: bool = False
    ready: list[Callable[[], None]] = field(default_factory=list)
    """The turns of the actors that may run, as of the last look at them."""
    ready_until: float = 0.0
    """When the first of the others may run, unless something happens in this process before."""

    def look(self, now: float) -> None:
        """Finds out which actors may run."""
        self.ready, self.ready_until = [], float("inf")
        for actor in self.actors:
            if not actor.sleeping or actor.asleep_until <= now or (actor.waker is not None and actor.waker()):
                self.ready.append(actor.turn)
            else:
                self.ready_until = min(self.ready_until, actor.asleep_until)

    def deliver(self) -> None:
        """The client calls the watchers of the oldest notification."""
        self.ready_until = 0.0
        self.store.deliver()

    @property
    def consumer(self) -> str:
        return self.name

    @property
    def incarnation(self) -> int | None:
        registration = self.connector.registration if self.connector is not None else None
        return registration.incarnation if registration is not None else None

    def holds(self, partition: TopicPartition) -> bool:
        return self.fetchers is not None and partition in self.fetchers.holdings

    def may_fetch(self, partition: TopicPartition) -> bool:
        if not self.alive or self.fetchers is None or self.connector is None:
            return False
        holding = self.fetchers.holdings.get(partition)
        return holding is not None and holding.wanted and self.connector.may_hand_out()


class World:
    """One history of one seed. ``faults`` are the kinds that may happen in the first ``turmoil`` steps; ``spared``
    are the numbers (from 1, as they come) of those that do not happen all the same."""

    def __init__(
        self, seed: int, faults: frozenset[str] = FAULTS, turmoil: int = TURMOIL, spared: frozenset[int] = frozenset()
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.rng
        self.clock = self.scheduler.clock
        self.server = SimulatedZooKeeper(replicas=2)
        self._advances = [(replica, partial(self.server.advance, replica)) for replica in self.server.replicas]
        self._said: deque[tuple[int, float, str]] = deque(maxlen=STORY_LENGTH)
        self.faults, self.turmoil, self.spared = faults, turmoil, spared
        self.faults_met = 0
        self.fault_rate = self.rng.choice((0.002, 0.005, 0.015))
        self.steps = 0
        self.calm = not faults
        self.log = SimulatedLog()
        self.partitions = self.rng.randint(2, 6)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._events_made = 0
        self._look_at = 0.0
        self._session_changes_seen = -1
        self.processes: dict[str, Process] = {}
        self._owner: dict[int, Process] = {}
        self.judge = Judge(self.server, self._consumer_of, self._is_coordinator)
        self._write(*(Create(path) for path in ("/brokers", layout.BROKER_IDS, layout.BROKER_TOPICS)))
        self._write(Create(layout.broker_topic(TOPIC), self._topic_value()))
        for broker_id in range(1, self.rng.randint(2, 3) + 1):
            self._start(f"serve-{broker_id}")
        for number in range(1, self.rng.randint(2, 4) + 1):
            self._start(f"c{number}")

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises :class:`InvariantBroken`, the story so far in :attr:`story`."""
        while self.steps < self.turmoil:
            self._step()
        self._calm()
        deadline = self.clock.now + 240
        limit = self.steps + 60_000
        while (unrest := self._unrest()) != "":
            for _ in range(50):
                self._step()
            if self.clock.now > deadline or self.steps > limit:
                raise InvariantBroken(f"not at rest {self.steps - self.turmoil} steps after the last fault: {unrest}")

    def _unrest(self) -> str:
        members = frozenset(name for name, process in self.processes.items() if process.connector is not None)
        numbers = PartitionSet({TOPIC: range(self.partitions)})
        found = self.judge.unrest(GROUP, members, numbers)
        behind = [str(p) for p in numbers if self.judge.frontier.get((GROUP, p), 0) != self.log.ends.get(p, 0)]
        return found or (f"not read to the end: {behind}" if behind else "")

    def _step(self) -> None:
        self.steps += 1
        clock, rng = self.clock, self.rng
        clock.now += rng.random() * 0.004
        if clock.now >= self._look_at or self.server.session_changes != self._session_changes_seen:
            self._time_passes()
        if not self.calm:
            if rng.random() < self.fault_rate:
                self._fault()
                self._look_at_all()
            if rng.random() < 0.02:
                self.log.append(TopicPartition(TOPIC, rng.randrange(self.partitions)), rng.randint(1, 3))
        choices = self._choices()
        if choices:
            rng.choice(choices)()
        else:
            clock.now = max(clock.now, self._next_moment())
        if self.judge.broken is not None:
            raise self.judge.broken

    def _choices(self) -> list[Callable[[], None]]:
        """All that may happen next, each as likely as the other."""
        now, written = self.clock.now, len(self.server.log)
        choices: list[Callable[[], None]] = [
            advance for replica, advance in self._advances if replica.applied < written
        ]
        for process in self.processes.values():
            if process.alive and not process.frozen:
                if process.store.has_notification():
                    choices.append(process.deliver)
                if now >= process.ready_until:
                    process.look(now)
                choices += process.ready
        return choices

    def _look_at_all(self) -> None:
        """Something happened from outside: whoever sleeps may have been woken. Otherwise only what a process does
        itself, and what it is told, wakes its own actors."""
        for process in self.processes.values():
            process.ready_until = 0.0

    def _act(self, actor: Actor) -> None:
        self.processes[actor.process].ready_until = 0.0
        try:
            self.scheduler.step(actor)
        except KafkaCoordError as error:
            self.say(f"{actor.process} ended: {error}")
            actor.done = True
            if actor in self.scheduler.actors:
                self.scheduler.actors.remove(actor)
            self._kill(self.processes[actor.process])
        process = self.processes[actor.process]
        if actor.done and actor in process.actors:
            process.actors.remove(actor)

    def _next_moment(self) -> float:
        """When something will happen by itself, where nothing can happen now."""
        nothing = float("inf")
        soonest = self._events[0][0] if self._events else nothing
        for process in self.processes.values():
            if process.alive and not process.frozen:
                store = process.store
                soonest = min(soonest, process.ready_until)
                if store.session.state is SessionState.CONNECTED and (due := store.heartbeat_due()) < soonest:
                    soonest = due
        for session in self.server.sessions.values():
            if not session.ended and (ends := session.heard_at + session.timeout_s * 1.01) < soonest:
                soonest = ends
        return soonest if soonest != nothing else self.clock.now + 1.0

    def _time_passes(self) -> None:
        now = self.clock.now
        self._look_at_all()
        self._session_changes_seen = self.server.session_changes
        for process in self.processes.values():
            store = process.store
            if process.alive and not process.frozen and store.session.state is SessionState.CONNECTED:
                if store.remote is not None and store.remote.ended:
                    store.disconnect()
                    self._later(self.rng.random(), partial(self._reconnect, process))
                elif store.heartbeat_due() <= now:
                    store.heartbeat()
        for session_id in [i for i, s in self.server.sessions.items() if now > s.heard_at + s.timeout_s]:
            session = self.server.sessions.pop(session_id)
            if not session.ended:
                self.say(f"session of {self._owner[session_id].name} expires")
                self.server.end_session(session, self._ms())
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[2]()
        self._look_at = self._next_look()

    def _next_look(self) -> float:
        """Before this moment :meth:`_time_passes` finds nothing to do, unless a session begins, is resumed or ends.

        What a process has heard and what a server has heard of it only moves its own moments further away; what is
        frozen has its moment in the past, as it may be thawed at any time."""
        soonest = self._events[0][0] if self._events else float("inf")
        for process in self.processes.values():
            if process.alive and process.store.session.state is SessionState.CONNECTED:
                soonest = min(soonest, process.store.heartbeat_due())
        for session in self.server.sessions.values():
            soonest = min(soonest, session.heard_at + session.timeout_s)
        return soonest

    def _later(self, delay_s: float, what: Callable[[], None]) -> None:
        self._events_made += 1
        moment = self.clock.now + delay_s
        heapq.heappush(self._events, (moment, self._events_made, what))
        self._look_at = min(self._look_at, moment)

    def say(self, sentence: str) -> None:
        self._said.append((self.steps, self.clock.now, sentence))

    @property
    def story(self) -> list[str]:
        """What happened, a line each: the step, the seconds since the beginning, and what."""
        return [f"{step:6d} {now - 1000:9.3f} s  {sentence}" for step, now, sentence in self._said]

    def _ms(self) -> int:
        return int(self.clock.time() * 1000)

    # --- where calls of a store meet the scheduler (store.Surroundings) ----------------------------------------------

    def before_effect(self, store: SimulatedStore, doing: str) -> None:
        self.scheduler.pause()
        if self._loses():
            self.say(f"{store.name}: request lost: {doing}")
            self._cut(self.processes[store.name])
        else:
            self.say(f"{store.name}: {doing}")

    def before_reply(self, store: SimulatedStore, doing: str) -> None:
        self.scheduler.pause()
        if self._loses():
            self.say(f"{store.name}: reply lost: {doing}")
            self._cut(self.processes[store.name])

    def _loses(self) -> bool:
        """Whether what travels now is lost."""
        if self.calm or "lost" not in self.faults or self.rng.random() >= self.fault_rate / 3:
            return False
        return not self._spared()

    def between_reads(self, store: SimulatedStore) -> None:
        if self.rng.random() < 0.3 and self.server.behind(store.replica):
            self.server.advance(store.replica)

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        store = SimulatedStore(self.server, self.clock, self, SESSION_MS, name)
        process = self.processes[name] = Process(name, store)
        self._reconnect(process)
        if name.startswith("serve"):
            self._start_service(process)
        else:
            self._start_consumer(process)

    def _start_service(self, process: Process) -> None:
        broker_id = int(process.name.rpartition("-")[2])
        service = process.service = CoordinatorService(process.store, broker_id, {}, OPTIONS, _assignors())

        def body() -> None:
            known = None
            while True:
                wait_s = service.turn()
                if service.coordinator is not None and service.coordinator is not known:
                    known = service.coordinator
                    self._spawn(process, "handler", partial(self._handle, known))
                self.scheduler.sleep(self.clock.now + wait_s, service.is_awake)

        self._spawn(process, "service", body)

    def _handle(self, coordinator: ConsumerCoordinator) -> None:
        handler, queue = coordinator.handler, coordinator.queue
        while not (handler.closed or handler.deposed):
            if handler.step():
                self.scheduler.pause()
            elif len(queue):  # it may not decide now
                self.scheduler.sleep(self.clock.now + 0.02)
            else:
                due = queue.next_due()
                self.scheduler.sleep(self.clock.now + 0.5 if due is None else due, lambda: len(queue) > 0)

    def _start_consumer(self, process: Process) -> None:
        awake = [True]

        def wake() -> None:
            awake[0] = True

        def handed(partition: TopicPartition, begin: int, end: int) -> None:
            self.say(f"{process.name} is handed {partition} [{begin}, {end})")
            remote = process.store.remote
            self.judge.in_session(process.name, partition, ended=remote is None or remote.ended)
            others = {name: p for name, p in self.processes.items() if p.connector is not None}
            self.judge.handed(GROUP, process.name, partition, begin, end, others)

        def registration_value() -> bytes:
            member = Member(process.name, 0, Subscription.to([TOPIC]), timestamp=str(self._ms()))
            return fields.dump(member.to_json())

        def may_hand_out() -> bool:
            return connector.may_hand_out()

        fetchers = process.fetchers = SimulatedFetchers(self.log, may_hand_out=may_hand_out, handed=handed, wake=wake)
        connector = process.connector = Connector(
            process.store,
            ConsumerChannel(process.store, GROUP, process.name),
            fetchers,
            registration_value=registration_value,
            wake=wake,
            on_lost=lambda lost: self.judge.crashed(GROUP, PartitionSet.of(lost)),
        )

        def connect() -> None:
            while True:
                awake[0] = False
                due = connector.step()
                if due is None:
                    if connector.failure is not None:
                        raise connector.failure
                    self._later(self.rng.random() * 5, lambda: self._restart(process))
                    return
                self.scheduler.sleep(max(due, self.clock.now), lambda: awake[0])

        def apply() -> None:
            while True:
                fetchers.poll(self.rng.randint(1, 4))
                self.scheduler.sleep(self.clock.now + self.rng.random() * 0.2)

        self._spawn(process, "connector", connect)
        self._spawn(process, "application", apply)

    def _spawn(self, process: Process, name: str, body: Callable[[], None]) -> None:
        actor = self.scheduler.spawn(Actor(name, process.name, body))
        actor.turn = partial(self._act, actor)
        process.actors.append(actor)
        process.ready_until = 0.0

    def _reconnect(self, process: Process) -> None:
        store = process.store
        if process is not self.processes.get(process.name) or not process.alive:
            return
        if process.frozen:
            self._later(0.2, lambda: self._reconnect(process))
            return
        if store.session.state in {SessionState.CONNECTED, SessionState.CLOSED}:
            return
        if store.connect(self.rng.choice(self.server.replicas)):
            self._owner[store.session.session_id] = process
            self.say(f"{process.name} connected")
        else:
            self.say(f"{process.name} learns that its session ended")
            self._later(self.rng.random() * 0.5, lambda: self._reconnect(process))

    def _cut(self, process: Process) -> None:
        process.store.disconnect()
        delay = self.rng.choice((0.05, 0.5, 2.0, 5.0))
        self._later(self.rng.random() * delay, lambda: self._reconnect(process))

    def _kill(self, process: Process) -> None:
        self.say(f"{process.name} is killed")
        process.alive = False
        process.store.dead = True
        for actor in list(process.actors):
            self.scheduler.kill(actor)
        process.actors.clear()
        process.store.disconnect()
        self._later(self.rng.random() * 8, lambda: self._restart(process))

    def _restart(self, process: Process) -> None:
        if self.processes[process.name] is process:
            self.say(f"{process.name} starts again")
            process.alive = False
            process.store.disconnect()
            self._start(process.name)

    def _thaw(self, process: Process) -> None:
        if process.frozen:
            self.say(f"{process.name} goes on")
            process.frozen = False

    # --- faults ------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        kind = self.rng.choice(sorted(self.faults))
        process = self.processes[self.rng.choice(sorted(self.processes))]
        for_s = self.rng.random() * self.rng.choice((0.1, 1.0, 8.0))
        if self._spared() or (kind in {"cut", "freeze", "kill", "close"} and not process.alive):
            return
        if kind not in {"lost", "kill"}:
            self.say(f"fault: {kind} {process.name}")
        if kind == "cut":
            self._cut(process)
        elif kind == "kill":
            self._kill(process)
        elif kind == "freeze":
            process.frozen = True
            self._later(for_s, lambda: self._thaw(process))
        elif kind == "close" and process.connector is not None:
            process.connector.close(3.0)
        elif kind == "grow":
            self.partitions += 1
            self._write(SetData(layout.broker_topic(TOPIC), self._topic_value()))
        elif kind == "pause" and layout.PAUSED not in self.server.tree.nodes:
            if layout.CONSUMERS in self.server.tree.nodes:
                self._write(Create(layout.PAUSED, b"{}"))
                self._later(for_s, self._lift)
        elif kind in {"evict", "rebalance", "resign"} and layout.REQUESTS in self.server.tree.nodes:
            group, consumer = ("", "") if kind == "resign" else (GROUP, process.name if kind == "evict" else "")
            request = Request(RequestType(kind), group, consumer)
            self._write(Create(layout.REQUEST_PREFIX, fields.dump(request.to_json()), sequence=True))

    def _spared(self) -> bool:
        """Numbers the fault that would happen now; whether it does not."""
        self.faults_met += 1
        return self.faults_met in self.spared

    def _lift(self) -> None:
        if layout.PAUSED in self.server.tree.nodes:
            self._write(Delete(layout.PAUSED))

    def _calm(self) -> None:
        self.say("the faults stop")
        self.calm = True
        self._look_at_all()
        self._lift()
        for process in self.processes.values():
            self._thaw(process)

    # --- what others write -------------------------------------------------------------------------------------------

    def _write(self, *ops: Create | SetData | Delete) -> None:
        self.server.write(ops, 0, self._ms())

    def _topic_value(self) -> bytes:
        return json.dumps({"version": 3, "partitions": {str(p): [1] for p in range(self.partitions)}}).encode()

    def _consumer_of(self, session_id: int) -> Process | None:
        process = self._owner.get(session_id)
        return process if process is not None and process.connector is not None else None

    def _is_coordinator(self, session_id: int) -> bool:
        process = self._owner.get(session_id)
        return process is not None and process.service is not None

    def verdict(self) -> InvariantBroken | None:
        """Runs to the end; what was broken, ``None`` when all held. An exception of the code under test is its own."""
        try:
            self.run()
        except InvariantBroken as broken:
            return broken
        finally:
            self.end()
        return None

    def end(self) -> None:
        """Ends every actor."""
        for process in self.processes.values():
            process.store.dead = True
        for actor in list(self.scheduler.actors):
            self.scheduler.kill(actor)


def judged(seed: int, faults: frozenset[str] = FAULTS) -> tuple[InvariantBroken, list[str]] | None:
    """Runs one seed; what was broken and the story that led to it, ``None`` when all held."""
    world = World(seed, faults)
    broken = world.verdict()
    return None if broken is None else (broken, world.story)
