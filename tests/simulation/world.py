"""A seeded history: processes, faults, and time until everybody is at rest again."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

from kafka_coord.channel.interface import Channel
from kafka_coord.channel.interface import Connection as Way
from kafka_coord.channel.link import SocketLink
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.connector import Connector
from kafka_coord.coordinator.assignors import load_assignors
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import KafkaCoordError
from kafka_coord.frontends.socket.leadership_view import ServiceOffice
from kafka_coord.model import Member, Mode, PartitionSet, Request, RequestType, Subscription, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, SessionState, SetData
from tests.simulation.applications import SimulatedFetchers, SimulatedLog
from tests.simulation.invariants import InvariantBroken, Judge
from tests.simulation.scheduler import Actor, Scheduler
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.sockets import SimulatedClient, SimulatedGateway, Wire
from tests.simulation.store import SimulatedStore

SESSION_MS = 4_000
GROUP = "delays"
TOPIC, OTHER_TOPIC = "flights", "fares"
PATTERN = "f.*"
FAULTS = frozenset(
    {
        *("cut", "lost", "freeze", "kill", "close", "expire"),
        *("grow", "topic", "pause", "pause-group", "evict", "rebalance", "resign", "reset", "depose"),
    }
)
SOCKET_SESSIONS_MS = (3_000, 6_000, 12_000)
SETTLED_AFTER_MS = (0, 0, 0, 1, 200, 2_000)
"""0: never, in half of the histories: the look that finds a group at rest makes good what a lost event would have left.
The default would come after all that a history is about."""
LOOK_INTERVALS_MS = (20_000, 600_000)
"""With the longer one nothing but events brings a group to rest in time: one that is lost is noticed."""
ENCORES = 3
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
    gateway: SimulatedGateway | None = None
    connector: Connector | None = None
    client: SimulatedClient | None = None
    unreachable_until: float = 0.0
    """Before that no connection of its own comes about; the store's are another matter."""
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


@dataclass(frozen=True, slots=True)
class GroupKind:
    """What the group's members have in common: how they take part, what by, and which of them subscribe by pattern."""

    mode: Mode
    assignor: str | None
    grace_ms: int
    patterns: str
    """``none``, ``all``, or ``some``: those whose number is odd."""
    from_the_end: bool
    """Whether a partition of which nothing is stored is read from its end on."""
    sockets: str
    """Who takes part over a socket: ``none``, ``all``, or ``some``: those whose number is even."""
    socket_session_ms: int

    @classmethod
    def drawn(cls, rng: random.Random, more: random.Random) -> GroupKind:
        """``more`` draws what came later, so that histories without it are what they were before."""
        return cls(
            sockets=more.choice(("none", "some", "all")),
            socket_session_ms=more.choice(SOCKET_SESSIONS_MS),
            from_the_end=more.random() < 0.3,
            mode=Mode.EAGER if rng.random() < 0.15 else Mode.INCREMENTAL,
            assignor=rng.choice((None, None, None, "range", "roundrobin", "weighted")),
            grace_ms=rng.choice((0, 0, 0, 1_000, 6_000)),
            patterns=rng.choice(("none", "all", "some")),
        )

    def by_pattern(self, consumer: str) -> bool:
        return self.patterns == "all" or (self.patterns == "some" and int(consumer[1:]) % 2 == 1)

    def by_socket(self, consumer: str) -> bool:
        return self.sockets == "all" or (self.sockets == "some" and int(consumer[1:]) % 2 == 0)

    def member(self, consumer: str, timestamp: str) -> Member:
        return Member(
            consumer,
            0,
            Subscription.matching(PATTERN) if self.by_pattern(consumer) else Subscription.to([TOPIC]),
            assignor=self.assignor,
            mode=self.mode,
            rejoin_grace_ms=self.grace_ms,
            timestamp=timestamp,
            session_timeout_ms=self.socket_session_ms if self.by_socket(consumer) else None,
        )


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
        # Not all kinds in every history: some defects show only where others do not hide them ("swarm testing").
        self.kinds = sorted(kind for kind in sorted(faults) if self.rng.random() < 0.6) or sorted(faults)
        self.faults_met = 0
        self.fault_rate = self.rng.choice((0.002, 0.005, 0.015))
        self.steps = 0
        self.calm = not faults
        self.log = SimulatedLog()
        self.partitions = {TOPIC: self.rng.randint(2, 6)}
        look_interval_ms = self.rng.choice(LOOK_INTERVALS_MS)
        rest = random.Random(f"rest {seed}")
        self.options = CoordinatorOptions(look_interval_ms, settled_after_ms=rest.choice(SETTLED_AFTER_MS))
        self.server.can_follow = rest.random() < 0.75
        self.kind = GroupKind.drawn(self.rng, random.Random(f"more {seed}"))
        self.occurred: Counter[str] = Counter()
        self._doomed: set[int] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._events_made = 0
        self._look_at = 0.0
        self._session_changes_seen = -1
        self.processes: dict[str, Process] = {}
        self._owner: dict[int, Process] = {}
        self.judge = Judge(self.server, self._consumer_of, self._is_coordinator, self.processes.get)
        self._write(*(Create(path) for path in ("/brokers", layout.BROKER_IDS, layout.BROKER_TOPICS)))
        if self.kind.mode is Mode.EAGER:
            self.judge.eager.add(GROUP)
        if self.kind.from_the_end:
            self.judge.from_the_end.add(GROUP)
        self._create_topic(TOPIC, self.partitions[TOPIC])
        if self.rng.random() < 0.3:
            self._create_topic(OTHER_TOPIC, self.rng.randint(1, 4))
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
        self._come_to_rest()
        for _ in range(ENCORES if self.faults else 0):
            self._encore()
            self._come_to_rest()

    def _encore(self) -> None:
        """Two events, one right after the other, and nothing else: the second comes while the first is looked into."""
        self.say("encore")
        after_s = self.rng.random() * 0.05
        if layout.ids(GROUP) in self.server.tree.nodes and self.rng.random() < 0.5:
            # Of the kind that nothing follows from, so that nothing else brings the group back to be looked at.
            stray = layout.registration(GROUP, "stray")
            self._write(Create(stray, b"not a registration"))
            self._later(after_s, lambda: self._write(Delete(stray)))
        else:
            self._grow()
            self._later(after_s, self._grow)
        self._look_at_all()

    def _come_to_rest(self) -> None:
        begin, deadline = self.steps, self.clock.now + 240
        limit = begin + 60_000
        while unrest := "more is to happen" if self._events else self._unrest():
            for _ in range(50):
                self._step()
            if self.clock.now > deadline or self.steps > limit:
                raise InvariantBroken(f"not at rest {self.steps - begin} steps after the last event: {unrest}")

    def _unrest(self) -> str:
        members = frozenset(name for name, process in self.processes.items() if process.connector is not None)
        wanted = {topic: range(count) for topic, count in self.partitions.items() if self._is_subscribed(topic)}
        numbers = PartitionSet(wanted)
        found = self.judge.unrest(GROUP, members, numbers) or self._unsettled()
        behind = [str(p) for p in numbers if self.judge.frontier.get((GROUP, p), 0) != self.log.ends.get(p, 0)]
        if found or behind:
            return found or f"not read to the end: {behind}"
        unstored = [str(p) for p in numbers if self.judge.unstored(GROUP, p)]
        return f"read, and not committed: {unstored}" if unstored else ""

    def _is_subscribed(self, topic: str) -> bool:
        names = [name for name, process in self.processes.items() if process.connector is not None]
        return topic == TOPIC or any(self.kind.by_pattern(name) for name in names)

    def _unsettled(self) -> str:
        """What the elected coordinator believes, where that is not that the group is settled: an event was lost."""
        for process in self.processes.values():
            coordinator = process.service.coordinator if process.service is not None and process.alive else None
            if coordinator is not None and not (coordinator.handler.closed or coordinator.handler.deposed):
                outcome = coordinator.handler.outcomes.get(GROUP)
                if outcome is None or outcome.state is not GroupState.STABLE:
                    return f"{process.name} believes {outcome}"
        return ""

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
                topic = rng.choice(tuple(self.partitions))
                self.log.append(TopicPartition(topic, rng.randrange(self.partitions[topic])), rng.randint(1, 3))
            if self.steps % 25 == 0 and self._leaders() > 1:
                self.occurred["two believe they lead"] += 1
        choices = self._choices()
        if choices:
            rng.choice(choices)()
        else:
            clock.now = max(clock.now, self._next_moment())
        if self.judge.broken is not None:
            raise self.judge.broken

    def _leaders(self) -> int:
        """How many instances would decide something now."""
        coordinators = (p.service.coordinator for p in self.processes.values() if p.service is not None and p.alive)
        return sum(one is not None and not (one.handler.closed or one.handler.deposed) for one in coordinators)

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
                self.occurred["session expired"] += 1
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
            self.occurred["request lost"] += 1
            self.say(f"{store.name}: request lost: {doing}")
            self._cut(self.processes[store.name])
        else:
            self.say(f"{store.name}: {doing}")

    def before_reply(self, store: SimulatedStore, doing: str) -> None:
        self.scheduler.pause()
        if self._loses():
            self.occurred["reply lost"] += 1
            self.say(f"{store.name}: reply lost: {doing}")
            self._cut(self.processes[store.name])

    def _loses(self) -> bool:
        """Whether what travels now is lost."""
        if self.calm or "lost" not in self.kinds or self.rng.random() >= self.fault_rate / 3:
            return False
        return not self._spared()

    def between_reads(self, store: SimulatedStore) -> None:
        if self.rng.random() < 0.3 and self.server.behind(store.replica):
            self.server.advance(store.replica)

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        store = SimulatedStore(self.server, self.clock, self, SESSION_MS, name)
        process = self.processes[name] = Process(name, store)
        if name.startswith("serve"):
            self._reconnect(process)
            self._start_service(process)
        else:
            if not self.kind.by_socket(name):
                self._reconnect(process)
            self._start_consumer(process)

    def _start_service(self, process: Process) -> None:
        broker_id = int(process.name.rpartition("-")[2])
        office = ServiceOffice()
        service = process.service = office.service = CoordinatorService(
            process.store, broker_id, {"channel": process.name}, self.options, _assignors()
        )

        def body() -> None:
            known = None
            while True:
                wait_s = service.turn()
                if service.coordinator is not None and service.coordinator is not known:
                    known = service.coordinator
                    self._spawn(process, "handler", partial(self._handle, known))
                self.scheduler.sleep(self.clock.now + wait_s, service.is_awake)

        self._spawn(process, "service", body)
        if self.kind.sockets != "none":
            nonce = partial(self._word, process)
            gateway = process.gateway = SimulatedGateway(process.store, broker_id, office, nonce)
            self._spawn(process, "gateway", partial(self._serve, gateway))

    def _serve(self, gateway: SimulatedGateway) -> None:
        while True:
            due = gateway.turn()
            self.scheduler.sleep(max(due, self.clock.now), gateway.is_awake)

    def _word(self, process: Process) -> str:
        """One that is made only once."""
        self._events_made += 1
        return f"{process.name} {self._events_made}"

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
        if handler.deposed:
            self.occurred["deposed between look and write"] += 1

    def _start_consumer(self, process: Process) -> None:
        awake = [True]

        def wake() -> None:
            awake[0] = True

        def handed(partition: TopicPartition, begin: int, end: int) -> None:
            self.say(f"{process.name} is handed {partition} [{begin}, {end})")
            if not self._is_doomed(process):
                self.judge.in_session(process.name, partition, ended=self._has_ended(process))
            others = {name: p for name, p in self.processes.items() if p.connector is not None}
            self.judge.handed(GROUP, process.name, partition, begin, end, others)

        def registration_value() -> bytes:
            return fields.dump(self.kind.member(process.name, str(self._ms())).to_json())

        def may_hand_out() -> bool:
            return connector.may_hand_out()

        def topic_of(partition: TopicPartition) -> int | None:
            ledger = self.judge.ledgers.get(GROUP, {}).get(process.name)
            identity = ledger.topic_ids.get(partition.topic, "") if ledger is not None else ""
            return int(identity.rpartition(" ")[2] or 0)

        fetchers = process.fetchers = SimulatedFetchers(
            self.log,
            may_hand_out=may_hand_out,
            handed=handed,
            wake=wake,
            topic_of=topic_of,
            from_the_end=self.kind.from_the_end,
        )
        way, channel = self._way(process, wake)
        connector = process.connector = Connector(
            way,
            channel,
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
                    self._hang_up(process)
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
        if process.client is not None:
            self._spawn(process, "client", process.client.run)

    # --- sockets -----------------------------------------------------------------------------------------------------

    def _way(self, process: Process, wake: Callable[[], None]) -> tuple[Way, Channel]:
        """How a consumer takes part."""
        if not self.kind.by_socket(process.name):
            return process.store, ConsumerChannel(process.store, GROUP, process.name)
        link = SocketLink(
            GROUP,
            process.name,
            self.clock,
            session_timeout_ms=self.kind.socket_session_ms,
            resume_key=self._word(process),
            auto_commit=True,
            wake=wake,
        )
        hosts = [name for name in self.processes if name.startswith("serve")]
        process.client = SimulatedClient(link, hosts, partial(self._dial, process), self.scheduler, self._occurs)
        return link, link

    def _dial(self, process: Process, host: str) -> Wire | None:
        """A frozen host takes the connection too, and says nothing on it."""
        server = self.processes[host]
        if not server.alive or server.gateway is None or self.clock.now < process.unreachable_until:
            return None
        wire = Wire(process.name, host, self)
        server.gateway.accept(wire)
        self.said(host)
        return wire

    def _occurs(self, what: str) -> None:
        self.occurred[what] += 1

    def said(self, process: str) -> None:
        """Something waits for a process (sockets.Network)."""
        self.processes[process].ready_until = 0.0

    def may_say(self, wire: Wire) -> bool:
        """Whether a connection still carries what is about to be said on it (sockets.Network)."""
        if not wire.broken and self._loses():
            self.occurred["frame lost"] += 1
            self._break(wire, f"{wire.client} - {wire.host}: what was about to be said is lost")
        return not wire.broken

    def _break(self, wire: Wire, why: str) -> None:
        """Some of what is under way still arrives; each end hears of it at once, later, or never."""
        if wire.broken:
            return
        self.say(why)
        wire.broken = True
        for direction in (wire.up, wire.down):
            for _ in range(self.rng.randint(0, len(direction))):
                direction.pop()

        def end_up() -> None:
            wire.up_ended = True
            self.said(wire.host)

        def end_down() -> None:
            wire.down_ended = True
            self.said(wire.client)

        for end in (end_up, end_down):
            delay = self.rng.choice((0.0, 0.5, 5.0, None))
            if delay is not None:
                self._later(self.rng.random() * delay, end)

    def _hang_up(self, process: Process) -> None:
        """The consumer has ended, as a program."""
        if process.client is not None:
            process.client.close()

    def _is_doomed(self, process: Process) -> bool:
        """Whether its session is ended before its time, which no proof outlives."""
        remote = process.store.remote
        return remote is not None and remote.session_id in self._doomed

    def _has_ended(self, process: Process) -> bool:
        """Whether what it takes part by is over, other than by an eviction."""
        if process.client is not None:
            return (GROUP, process.name, process.incarnation) in self.judge.expired
        return process.store.remote is None or process.store.remote.ended

    def _spawn(self, process: Process, name: str, body: Callable[[], None]) -> None:
        actor = self.scheduler.spawn(Actor(name, process.name, body))
        actor.turn = partial(self._act, actor)
        process.actors.append(actor)
        process.ready_until = 0.0

    def _reconnect(self, process: Process) -> None:
        store = process.store
        if process is not self.processes.get(process.name) or not process.alive or process.client is not None:
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
        if process.client is not None:
            process.unreachable_until = self.clock.now + self.rng.random() * delay
            if process.client.wire is not None:
                self._break(process.client.wire, f"{process.name} - {process.client.wire.host}: cut")
            return
        self._later(self.rng.random() * delay, lambda: self._reconnect(process))

    def _kill(self, process: Process) -> None:
        self.say(f"{process.name} is killed")
        self.occurred[f"killed {process.store.asking or 'between requests'}"] += 1
        process.alive = False
        process.store.dead = True
        for actor in list(process.actors):
            self.scheduler.kill(actor)
        process.actors.clear()
        process.store.disconnect()
        wires = process.gateway.break_all() if process.gateway is not None else ()
        if process.client is not None and process.client.wire is not None:
            wires = (process.client.wire,)
        for wire in wires:
            self._break(wire, f"{wire.client} - {wire.host}: one end is gone")
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
        kind = self.rng.choice(self.kinds)
        process = self.processes[self.rng.choice(sorted(self.processes))]
        for_s = self.rng.random() * self.rng.choice((0.1, 1.0, 8.0))
        if self._spared() or (kind in {"cut", "freeze", "kill", "close"} and not process.alive):
            return
        if kind not in {"lost", "kill"}:
            self.say(f"fault: {kind} {process.name}")
        self.occurred[kind] += 1
        strike: dict[str, Callable[[], object]] = {
            "cut": lambda: self._cut(process),
            "kill": lambda: self._kill(process),
            "freeze": lambda: self._freeze(process, for_s),
            "expire": lambda: self._expire(process),
            "close": lambda: self._close(process),
            "grow": self._grow,
            "topic": self._delete_or_create_topic,
            "pause": lambda: self._pause(for_s),
            "pause-group": lambda: self._pause_group(for_s),
            "reset": lambda: self._ask_for_reset(for_s),
            "evict": lambda: self._ask(Request(RequestType.EVICT, GROUP, process.name)),
            "rebalance": lambda: self._ask(Request(RequestType.REBALANCE, GROUP)),
            "resign": lambda: self._ask(Request(RequestType.RESIGN)),
            "depose": self._depose,
            "lost": lambda: None,  # where it travels, not here
        }
        strike[kind]()

    def _close(self, process: Process) -> None:
        if process.connector is not None:
            process.connector.close(3.0)

    def _depose(self) -> None:
        """Somebody deletes the elected one's znode, whose session lives on: the next one is elected beside it."""
        if layout.COORDINATOR in self.server.tree.nodes:
            self._write(Delete(layout.COORDINATOR))

    def _freeze(self, process: Process, for_s: float) -> None:
        process.frozen = True
        self._later(for_s, lambda: self._thaw(process))

    def _grow(self) -> None:
        topic = self.rng.choice(tuple(self.partitions))
        self.partitions[topic] += 1
        self._write(SetData(layout.broker_topic(topic), self._topic_value(topic)))

    def _pause(self, for_s: float) -> None:
        nodes = self.server.tree.nodes
        if layout.PAUSED not in nodes and layout.CONSUMERS in nodes:
            self._write(Create(layout.PAUSED, b"{}"))
            self._later(for_s, self._lift)

    def _spared(self) -> bool:
        """Numbers the fault that would happen now; whether it does not."""
        self.faults_met += 1
        return self.faults_met in self.spared

    def _expire(self, process: Process) -> None:
        """The server ends the session before its time: an administrator did, or its clock ran away."""
        session = process.store.remote
        if session is not None and not session.ended and self.server.sessions.pop(session.session_id, None) is not None:
            self._doomed.add(session.session_id)
            self.server.end_session(session, self._ms())

    def _delete_or_create_topic(self) -> None:
        if OTHER_TOPIC in self.partitions:
            self.occurred["topic deleted"] += 1
            del self.partitions[OTHER_TOPIC]
            self.log.delete(OTHER_TOPIC)
            self.judge.topic_gone(OTHER_TOPIC)
            self._write(Delete(layout.broker_topic(OTHER_TOPIC)))
            if self.rng.random() < 0.5:
                return
        self._create_topic(OTHER_TOPIC, self.rng.randint(1, 4))

    def _create_topic(self, topic: str, partitions: int) -> None:
        self.occurred["topic created"] += 1
        self.partitions[topic] = partitions
        self._write(Create(layout.broker_topic(topic), self._topic_value(topic)))
        self.log.topics[topic] = self.server.tree.nodes[layout.broker_topic(topic)].czxid

    def _pause_group(self, for_s: float) -> None:
        path = layout.paused(GROUP)
        if layout.group(GROUP) in self.server.tree.nodes and path not in self.server.tree.nodes:
            self._write(Create(path, b"{}"))
            self._later(for_s, self._lift_group)

    def _lift_group(self) -> None:
        if layout.paused(GROUP) in self.server.tree.nodes:
            self._write(Delete(layout.paused(GROUP)))
            self._ask(Request(RequestType.LOOK, GROUP))  # as the command does that lifts it

    def _ask_for_reset(self, for_s: float) -> None:
        """An operator stops the consumers and sets the offsets back. Who is still there makes it be refused."""
        for process in self.processes.values():
            if process.alive:
                self._close(process)
        offsets = {
            partition: self.rng.randint(0, end)
            for partition, end in self.log.ends.items()
            if partition.topic == TOPIC and self.rng.random() < 0.7
        }
        if offsets:
            request = Request(RequestType.RESET_OFFSETS, GROUP, offsets=offsets)
            self._later(for_s, lambda: self._ask(request))

    def _ask(self, request: Request) -> None:
        if layout.REQUESTS not in self.server.tree.nodes:
            return  # before the first instance came up there is nobody to ask
        self._write(Create(layout.REQUEST_PREFIX, fields.dump(request.to_json()), sequence=True))

    def _lift(self) -> None:
        if layout.PAUSED in self.server.tree.nodes:
            self._write(Delete(layout.PAUSED))

    def _calm(self) -> None:
        self.say("the faults stop")
        self.calm = True
        self._look_at_all()
        self._lift()
        self._lift_group()
        for process in self.processes.values():
            self._thaw(process)

    # --- what others write -------------------------------------------------------------------------------------------

    def _write(self, *ops: Create | SetData | Delete) -> None:
        self.server.write(ops, 0, self._ms())

    def _topic_value(self, topic: str) -> bytes:
        return topic_value(self.partitions[topic])

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
