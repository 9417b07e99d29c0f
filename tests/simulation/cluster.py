"""Runs a seeded history: processes, faults, and then a calm period until the whole system is settled again."""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kafka_coord.consumer.connector import Connector
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import KafkaCoordError
from kafka_coord.model import Mode, PartitionSet, Request, RequestType, TopicPartition
from kafka_coord.model.broker import AnsweredTopic
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, Source
from kafka_coord.zk.store import Create, Delete, SessionState, SetData
from tests.simulation.applications import SimulatedLog
from tests.simulation.audited import violations
from tests.simulation.brokers import SimulatedBrokers
from tests.simulation.faults import (
    CLASSIC,
    CUT_LOG,
    DEAD_MEMBER,
    ENCORES,
    FAULTS,
    FORBIDDEN,
    FROM_THE_END,
    HARMLESS,
    LATE,
    MARKERS,
    MOVE,
    NO_FAULTS,
    NO_LEADER,
    OF_SOME_HISTORIES,
    OFTEN,
    POLLS,
    RETENTION,
    SEEK,
    SILENCE,
    SOCKETS,
    UNREADABLE,
    FaultInjector,
)
from tests.simulation.group_kind import GROUP, OTHER_TOPIC, TOPIC, GroupKind
from tests.simulation.invariants import InvariantBroken, InvariantChecker
from tests.simulation.kafka_members import KafkaMember
from tests.simulation.launching import SESSION_MS, Launcher
from tests.simulation.network import SimulatedNetwork
from tests.simulation.process import Process
from tests.simulation.scheduler import Actor, Scheduler
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.sockets import ProtocolBroken
from tests.simulation.store import SimulatedStore

EXAMINED_EACH_MS = (4_000, 600_000)
"""How often a group at rest is read as a whole, and its offsets are examined."""
SETTLED_AFTER_MS = (0, 0, 0, 1, 200, 2_000)
"""In half of the histories, this is 0 (never), because the periodic pass would repair the effect of a lost event. The
default is longer than a history."""
LOOK_INTERVALS_MS = (20_000, 600_000)
"""With the longer interval, a group comes to rest in time only because of events, so a lost event is noticed."""
FEW_ENCORES, MANY_ENCORES = 3, 40
TURMOIL = 2_500
"""The number of steps in which faults happen."""
LONG_SESSION_MS, TERM_S, DEAD_AT_MOST_S = 60_000, 40.0, 130.0
"""The session of a socket consumer that dies, how long each coordinator then serves, and how long the consumer may
stay a member: two terms in full, and the 30 s that the third gives it at least."""
STORY_LENGTH = 4_000
"""The number of lines at the end of a history that are kept."""


class SimulatedCluster:
    """One history of one seed. ``faults`` are the possible kinds in the first ``turmoil`` steps. ``spared`` are the
    numbers (from 1, in order) of faults that do not happen."""

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
        # A history has only some kinds, because other faults may hide a defect ("swarm testing").
        kinds = sorted(faults - OF_SOME_HISTORIES - NO_FAULTS - {POLLS})
        self.kinds = [kind for kind in kinds if self.rng.random() < 0.6] or kinds
        self.faults_met = 0
        self.fault_rate = self.rng.choice((0.002, 0.005, 0.015))
        if OFTEN in faults:
            self.fault_rate = 0.05
        self.steps = 0
        self.calm = not faults
        self.log = SimulatedLog()
        apart = random.Random(f"apart {seed}")
        self.silent_until = 0.0
        silences = [
            (apart.randrange(turmoil), apart.choice((1.0, 4.5, 10.0)) * apart.uniform(0.8, 1.2), apart.random() < 0.5)
            for _ in range(apart.choice((0, 0, 1, 2)) if SILENCE in faults and turmoil else 0)
        ]
        """The steps at which ZooKeeper falls silent, for how many seconds, and whether sessions survive it."""
        of_partitions = random.Random(f"troubles {seed}")
        troubles = [
            (of_partitions.randrange(turmoil), kind, of_partitions.random(), of_partitions.choice((1.0, 6.0, 20.0)))
            for kind in sorted({NO_LEADER, FORBIDDEN} & faults)
            for _ in range(of_partitions.choice((0, 0, 1, 3)) if turmoil else 0)
        ]
        """The steps at which a partition has no leader or a topic is forbidden, which one, and for how many seconds."""
        of_retention = random.Random(f"retention {seed}")
        retentions = [
            (of_retention.randrange(turmoil), of_retention.random(), of_retention.choice((0, 2, 5)))
            for _ in range(of_retention.choice((0, 0, 2, 6)) if RETENTION in faults and turmoil else 0)
        ]
        """The steps at which records are deleted, of which partition, and how many stay."""
        of_cuts = random.Random(f"cuts {seed}")
        cuts = [
            (of_cuts.randrange(turmoil), of_cuts.random(), of_cuts.choice((1, 3, 9)), of_cuts.choice((0, 2, 9)))
            for _ in range(of_cuts.choice((0, 0, 2, 6)) if CUT_LOG in faults and turmoil else 0)
        ]
        """The steps at which a log is cut, which one, how many offsets it loses, and how many it gets at once."""
        of_seeks = random.Random(f"seeks {seed}")
        seeks = [
            (of_seeks.randrange(turmoil), of_seeks.random(), of_seeks.choice((1, 3, 9)))
            for _ in range(of_seeks.choice((0, 0, 3, 9)) if SEEK in faults and turmoil else 0)
        ]
        """The steps at which an application goes back, in which partition, and by how many offsets."""
        self._planned: dict[int, list[Callable[[], None]]] = defaultdict(list)
        for at, for_s, survive in silences:
            self._planned[at].append(partial(self._fall_silent, for_s, survive))
        for what, planned in (
            (self._trouble, troubles),
            (self._delete_records, retentions),
            (self._cut_log, cuts),
            (self._seek_back, seeks),
        ):
            for at, *how in planned:
                self._planned[at].append(partial(what, *how))
        of_polls = random.Random(f"polls {seed}")
        self.brokers: SimulatedBrokers | None = None
        """The brokers of a cluster that migrates to KRaft."""
        if POLLS in faults and turmoil and of_polls.random() < 0.4:
            self.brokers = SimulatedBrokers(of_polls, self.clock)
            self.kinds = [one for one in self.kinds if one != "topic"]  # tests/coordinator/test_mirror_world.py
        self.is_final = False
        """Whether the migration is finalised: Kafka's own znodes stay as they are."""
        self.leaderless_to_the_end = of_partitions.random() < 0.5
        """Whether the last partition without a leader gets one only after the group has come to rest."""
        self.marks = apart if MARKERS in faults and apart.random() < 0.5 else None
        late = random.Random(f"late {seed}")
        may_wait = self.brokers is None
        self.waits_s = late.choice((0.7, 3.0, 12.0)) if LATE in faults and late.random() < 0.2 and may_wait else 0.0
        """How long the group waits for its topic."""
        self.partitions: dict[str, int] = {}
        partitions = self.rng.randint(2, 6)
        look_interval_ms = self.rng.choice(LOOK_INTERVALS_MS)
        rest = random.Random(f"rest {seed}")
        self.options = CoordinatorOptions(
            look_interval_ms,
            settled_after_ms=rest.choice(SETTLED_AFTER_MS),
            whole_look_interval_ms=random.Random(f"examined {seed}").choice(EXAMINED_EACH_MS),
        )
        self.server.can_follow = rest.random() < 0.75
        kafka = random.Random(f"kafka {seed}") if MOVE in faults else None
        classic = random.Random(f"classic {seed}") if CLASSIC in faults else None
        self.kind = GroupKind.drawn(self.rng, random.Random(f"more {seed}"), kafka, classic)
        if SOCKETS in faults:
            self.kind = replace(self.kind, sockets="all", pipelines=True)
        if FROM_THE_END in faults:
            self.kind = replace(self.kind, from_the_end=True)
        dies = random.Random(f"dead {seed}")
        self.has_dead_member = DEAD_MEMBER in faults and dies.random() < 0.15 and self.kind.sockets != "none"
        if self.has_dead_member:
            self.kind = replace(self.kind, socket_session_ms=LONG_SESSION_MS)
        others = of_retention.choice((OffsetReset.EARLIEST, OffsetReset.ERROR))
        self.reset = OffsetReset.LATEST if self.kind.from_the_end else others
        if self.kind.classic != "none":  # classic clients do not distinguish topics of the same name
            self.kinds = [one for one in self.kinds if one != "topic"]
        switches = self.kind.static and self.kind.classic != "none"
        self.switching = random.Random(f"switching {seed}") if switches else None
        """Decides when a static client starts under the other protocol."""
        self.log_leader = "serve-1"
        """The instance beside the broker that leads the group's partition of the groups log."""
        self.topic_ids: dict[str, str] = {}
        """The topics' ids, as Kafka writes them. Empty without Kafka clients."""
        self.occurred: Counter[str] = Counter()
        self.doomed: set[int] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._events_made = 0
        self._look_at = 0.0
        self._session_changes_seen = -1
        self.processes: dict[str, Process] = {}
        self.launcher, self.network, self.injector = Launcher(self), SimulatedNetwork(self), FaultInjector(self)
        self.owner: dict[int, Process] = {}
        self.checker = InvariantChecker(
            self.server, self._consumer_of, self._is_coordinator, self._named, self.owner.get, self.log.behind_marks
        )
        self.write(*(Create(path) for path in ("/brokers", layout.BROKER_IDS, layout.BROKER_TOPICS)))
        if UNREADABLE in faults:
            self.injector.vandal.make_bystander()
        self.checker.ends = self.log.ends
        self.checker.counts = self.partitions
        self.checker.now = lambda: self.clock.now
        self.checker.lists_promptly = faults <= HARMLESS
        if self.kind.mode is Mode.EAGER:
            self.checker.eager.add(GROUP)
        if self.kind.from_the_end:
            self.checker.from_the_end.add(GROUP)
        create = partial(self.injector.create_topic, TOPIC, partitions)
        if self.waits_s and self.kind.kafka == "none":
            self.occurred[LATE] += 1
            self.later(self.waits_s, create)
        else:
            create()
        if self.rng.random() < 0.3:
            self.injector.create_topic(OTHER_TOPIC, self.rng.randint(1, 4))
        if self.brokers is not None:
            self._plan_migration(self.brokers)
        for broker_id in range(1, self.rng.randint(2, 3) + 1):
            self.launcher.start(f"serve-{broker_id}")
        for number in range(1, self.rng.randint(2, 4) + 1):
            self.launcher.start(f"c{number}")

    def run(self) -> None:
        """Runs the history. Raises :class:`InvariantBroken`; :attr:`story` then has the history up to that point."""
        while self.steps < self.turmoil:
            self._step()
        self.injector.end_all()
        self._come_to_rest()
        if self.log.leaderless:
            self.say("every partition has a leader again")
            self.log.leaderless.clear()
            self.look_at_all()
            self._come_to_rest()
        if self.has_dead_member:
            self._outlive()
            self._come_to_rest()
        encores = MANY_ENCORES if ENCORES in self.faults else FEW_ENCORES
        for _ in range(encores if self.faults else 0):
            self._encore()
            self._come_to_rest()
        if self.checker.unsound_plan:
            raise InvariantBroken(self.checker.unsound_plan)

    def _encore(self) -> None:
        """Causes only two events. The second arrives during the pass that the first causes."""
        self.say("encore")
        after_s = self.rng.random() * 0.05
        if layout.ids(GROUP) in self.server.tree.nodes and self.rng.random() < 0.5:
            # These events have no other effect, so nothing else makes the coordinator read the group again.
            stray = layout.registration(GROUP, "stray")
            self.write(Create(stray, b"not a registration"))
            self.later(after_s, lambda: self.write(Delete(stray)))
        else:
            self.injector.grow()
            self.later(after_s, self.injector.grow)
        self.look_at_all()

    def _outlive(self) -> None:
        """A socket consumer dies, and coordinators take turns. It must not stay a member for ever."""
        of_sockets = (
            one
            for name, one in sorted(self.processes.items())
            if one.alive and isinstance(one.connector, Connector) and self.kind.by_socket(name)
        )
        dead = next(of_sockets, None)
        if dead is None or self.is_spared():
            return
        self.occurred[DEAD_MEMBER] += 1
        self.say(f"fault: {dead.name} dies, and coordinators take turns")
        self.launcher.kill(dead, restarts=False)
        died = resigned = self.clock.now
        while layout.registration(GROUP, dead.name) in self.server.tree.nodes:
            if self.clock.now > died + DEAD_AT_MOST_S:
                raise InvariantBroken(f"{dead.name} has been dead for {DEAD_AT_MOST_S:g} s, and is a member")
            if self.clock.now > resigned + TERM_S:
                resigned = self.clock.now
                self.injector.ask(Request(RequestType.RESIGN))
            self._step()
        self.launcher.restart(dead)

    def _come_to_rest(self) -> None:
        begin, deadline = self.steps, self.clock.now + 240
        limit = begin + 60_000
        while unrest := "more is to happen" if self._events else self._unrest():
            for _ in range(50):
                self._step()
            if self.clock.now > deadline or self.steps > limit:
                raise InvariantBroken(f"not at rest {self.steps - begin} steps after the last event: {unrest}")

    def _unrest(self) -> str:
        members = frozenset(one.consumer for one in self.processes.values() if one.connector is not None)
        wanted = {topic: range(count) for topic, count in self.partitions.items() if self._is_subscribed(topic)}
        numbers = PartitionSet(wanted)
        found = self.checker.unrest(GROUP, members, numbers) or self._unsettled()
        numbers = PartitionSet.of(p for p in numbers if p not in self.log.leaderless and not self._may_be_skipped(p))
        behind = [str(p) for p in numbers if self.checker.frontier_of(GROUP, p) != self.log.ends.get(p, 0)]
        if found or behind:
            return found or f"not read to the end: {behind}"
        unstored = [str(p) for p in numbers if self.checker.unstored(GROUP, p)]
        return f"read, and not committed: {unstored}" if unstored else ""

    def _may_be_skipped(self, partition: TopicPartition) -> bool:
        """Tells whether the partition's log was cut, and no living consumer knows the epoch that it had read."""
        fetchers = [one.fetchers for one in self.processes.values() if one.alive and one.fetchers is not None]
        is_old = (GROUP, partition) in self.checker.cut or self.checker.stores_old(GROUP, partition)
        return is_old and not any(one.follows(partition) for one in fetchers)

    def _is_subscribed(self, topic: str) -> bool:
        return topic == TOPIC or any(self._by_pattern(one) for one in self.processes.values() if one.connector)

    def _by_pattern(self, process: Process) -> bool:
        member = process.connector
        return member.takes_all if isinstance(member, KafkaMember) else process.by_pattern

    def _unsettled(self) -> str:
        """Describes the elected coordinator's view of the group, if it does not know that the group is settled because
        of a lost event."""
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
            if self.kinds and rng.random() < self.fault_rate:
                self.injector.inject()
                self.look_at_all()
            if rng.random() < 0.02 and self.partitions:
                topic = rng.choice(tuple(self.partitions))
                self._append(TopicPartition(topic, rng.randrange(self.partitions[topic])), rng.randint(1, 3))
            for fault in self._planned.get(self.steps, ()):
                if not self.is_spared():
                    fault()
                    self.look_at_all()
            if self.steps % 25 == 0 and self._leaders() > 1:
                self.occurred["two believe they lead"] += 1
        choices = self._choices()
        if choices:
            rng.choice(choices)()
        else:
            clock.now = max(clock.now, self._next_moment())
        if self.checker.broken is not None:
            raise self.checker.broken

    def _plan_migration(self, brokers: SimulatedBrokers) -> None:
        """The cluster migrates within half a minute. Topics grow and brokers get into trouble meanwhile."""
        self.occurred[POLLS] += 1
        at = brokers.chance.uniform
        self.later(at(0, 8), partial(self.write, Create(layout.MIGRATION)))
        for what, most in ((brokers.turmoil, 20), (self.injector.grow, 8)):
            for _ in range(brokers.chance.randrange(most)):
                self.later(at(0, 25), what)
        self.later(at(8, 25), self._finalise)
        self.later(26, brokers.calm)

    def _finalise(self) -> None:
        """Operators wait until the metadata comes from the brokers."""
        node = self.server.tree.nodes.get(layout.CLUSTER)
        if node is None or ClusterRecord.from_znode(node.data).source is not Source.BROKERS:
            self.later(1.0, self._finalise)
            return
        self.occurred["finalised"] += 1
        self.say("the migration is finalised")
        self.is_final = True

    def _fall_silent(self, for_s: float, survive: bool) -> None:
        self.injector.silence(for_s, sessions_survive=survive)

    def _trouble(self, kind: str, which: float, for_s: float) -> None:
        topics = sorted(self.partitions)
        if not topics:
            return  # the group still waits for its topic
        topic = topics[int(which * len(topics))]
        consumers = sorted(name for name in self.processes if not name.startswith("serve"))
        if kind == NO_LEADER:
            lasts = self.leaderless_to_the_end and not self.log.leaderless and topic == TOPIC
            partition = TopicPartition(topic, int(which * 1_000) % self.partitions[topic])
            self.injector.lose_leader(partition, None if lasts else for_s)
        else:
            self.injector.forbid(topic, consumers if which < 0.3 else consumers[:1], for_s)

    def _seek_back(self, which: float, by: int) -> None:
        held = [
            (process, partition)
            for name, process in sorted(self.processes.items())
            if not name.startswith("serve")
            and process.alive
            and not (process.frozen or process.closing or self.kind.by_kafka(name))
            for partition in sorted(process.fetchers.holdings if process.fetchers is not None else ())
        ]
        if held:
            self.injector.seek(*held[int(which * len(held))], by)

    def _delete_records(self, which: float, kept: int) -> None:
        """Records are written to a partition, and deleted before anybody reads them, except for the last ones."""
        partitions = [one for one in sorted(self.log.ends) if one not in self.log.leaderless]
        if partitions:
            partition = partitions[int(which * len(partitions))]
            self._append(partition, kept + 2)
            self.injector.delete_records(partition, kept)

    def _cut_log(self, which: float, lost: int, regained: int) -> None:
        """Cuts a log that the group has begun to read."""
        partitions = [one for one in sorted(self.log.ends) if (GROUP, one) in self.checker.frontier]
        partitions = [one for one in partitions if one not in self.log.leaderless]
        if partitions:
            partition = partitions[int(which * len(partitions))]
            at = max(self.log.starts.get(partition, 0), self.log.ends[partition] - lost)
            self.injector.cut_log(partition, at)
            self._append(partition, regained)

    def _append(self, partition: TopicPartition, count: int) -> None:
        if partition in self.log.leaderless:
            return
        self.checker.before_append(partition)
        self.log.append(partition, count)
        if self.marks is not None and self.marks.random() < 0.5:
            self.occurred[MARKERS] += 1
            self.log.mark(partition, self.marks.choice((1, 1, 3)))

    def _leaders(self) -> int:
        """Returns the number of instances that believe that they are elected."""
        coordinators = (p.service.coordinator for p in self.processes.values() if p.service is not None and p.alive)
        return sum(one is not None and not (one.handler.closed or one.handler.deposed) for one in coordinators)

    def _choices(self) -> list[Callable[[], None]]:
        """Returns all possible next events. Each is equally likely."""
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

    def look_at_all(self) -> None:
        """Checks all sleeping actors again after an outside event. Otherwise, only an actor's own process and messages
        to it wake the actor."""
        for process in self.processes.values():
            process.ready_until = 0.0

    def act(self, actor: Actor) -> None:
        self.processes[actor.process].ready_until = 0.0
        try:
            self.scheduler.step(actor)
        except KafkaCoordError as error:
            self.say(f"{actor.process} ended: {error}")
            actor.done = True
            if actor in self.scheduler.actors:
                self.scheduler.actors.remove(actor)
            self.launcher.kill(self.processes[actor.process])
        process = self.processes[actor.process]
        if actor.done and actor in process.actors:
            process.actors.remove(actor)

    def _next_moment(self) -> float:
        """Returns when the next event is due. Called only when nothing can happen now."""
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
        self.look_at_all()
        self._session_changes_seen = self.server.session_changes
        for process in self.processes.values():
            store = process.store
            if process.alive and not process.frozen and store.session.state is SessionState.CONNECTED:
                if store.remote is not None and store.remote.ended:
                    store.disconnect()
                    self.later(self.rng.random(), partial(self.launcher.reconnect, process))
                elif store.heartbeat_due() <= now:
                    store.heartbeat()
        for session_id in [i for i, s in self.server.sessions.items() if now > s.heard_at + s.timeout_s]:
            session = self.server.sessions.pop(session_id)
            if not session.ended:
                self.occurred["session expired"] += 1
                self.say(f"session of {self.owner[session_id].name} expires")
                self.server.end_session(session, self.ms())
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[2]()
        self._look_at = self._next_look()

    def _next_look(self) -> float:
        """Returns the time before which :meth:`_time_passes` has nothing to do, unless a session begins, is resumed or
        ends.

        Messages between a process and a server only postpone their own times. A frozen process has its time in the
        past, because it may be thawed at any moment.
        """
        soonest = self._events[0][0] if self._events else float("inf")
        for process in self.processes.values():
            if process.alive and process.store.session.state is SessionState.CONNECTED:
                soonest = min(soonest, process.store.heartbeat_due())
        for session in self.server.sessions.values():
            soonest = min(soonest, session.heard_at + session.timeout_s)
        return soonest

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        self._events_made += 1
        moment = self.clock.now + delay_s
        heapq.heappush(self._events, (moment, self._events_made, what))
        self._look_at = min(self._look_at, moment)

    def say(self, sentence: str) -> None:
        self._said.append((self.steps, self.clock.now, sentence))

    @property
    def story(self) -> list[str]:
        """The history. Each line has the step, the seconds since the beginning, and the event."""
        return [f"{step:6d} {now - 1000:9.3f} s  {sentence}" for step, now, sentence in self._said]

    def ms(self) -> int:
        return int(self.clock.time() * 1000)

    def before_effect(self, store: SimulatedStore, doing: str) -> None:
        self.scheduler.pause()
        if self.loses():
            self.occurred["request lost"] += 1
            self.say(f"{store.name}: request lost: {doing}")
            self.launcher.cut(self.processes[store.name])
        else:
            self.say(f"{store.name}: {doing}")

    def before_reply(self, store: SimulatedStore, doing: str) -> None:
        self.scheduler.pause()
        if self.loses():
            self.occurred["reply lost"] += 1
            self.say(f"{store.name}: reply lost: {doing}")
            self.launcher.cut(self.processes[store.name])

    def loses(self) -> bool:
        """Tells whether the current message is lost."""
        if self.calm or "lost" not in self.kinds or self.rng.random() >= self.fault_rate / 3:
            return False
        return not self.is_spared()

    def between_reads(self, store: SimulatedStore) -> None:
        if self.rng.random() < 0.3 and self.server.behind(store.replica):
            self.server.advance(store.replica)

    def occurs(self, what: str) -> None:
        self.occurred[what] += 1

    def spawn(self, process: Process, name: str, body: Callable[[], None]) -> None:
        actor = self.scheduler.spawn(Actor(name, process.name, body))
        actor.turn = partial(self.act, actor)
        process.actors.append(actor)
        process.ready_until = 0.0

    def is_spared(self) -> bool:
        """Numbers the current fault. Tells whether it is spared."""
        self.faults_met += 1
        return self.faults_met in self.spared

    def write(self, *ops: Create | SetData | Delete) -> None:
        self.server.write(ops, 0, self.ms())

    def write_topic(self, op: type[Create] | type[SetData], topic: str) -> None:
        """Creates or changes a topic, as :attr:`partitions` has it."""
        if not self.is_final:
            self.write(op(layout.broker_topic(topic), self.topic_value(topic)))
        if self.brokers is not None:
            counts = self.partitions.items()
            self.brokers.becomes(
                {
                    name: AnsweredTopic(name, self.topic_ids[name], dict.fromkeys(range(count), (1,)))
                    for name, count in counts
                }
            )

    def topic_value(self, topic: str) -> bytes:
        return topic_value(self.partitions[topic], topic_id=self.topic_ids.get(topic))

    def _consumer_of(self, session_id: int) -> Process | None:
        process = self.owner.get(session_id)
        return process if process is not None and process.connector is not None else None

    def _named(self, consumer: str) -> Process | None:
        """Returns the process of the member with this name."""
        process = self.processes.get(consumer.partition(".")[0])
        return process if process is not None and process.consumer == consumer else None

    def instances(self) -> list[str]:
        return sorted(name for name in self.processes if name.startswith("serve"))

    def _is_coordinator(self, session_id: int) -> bool:
        process = self.owner.get(session_id)
        return process is not None and process.service is not None

    def verdict(self) -> InvariantBroken | None:
        """Runs to the end. Returns the violation, or ``None`` if all invariants held. Exceptions of the code under test
        are raised."""
        try:
            self.run()
        except InvariantBroken as broken:
            return broken
        except ProtocolBroken as broken:
            return InvariantBroken(str(broken))
        finally:
            self.end()
        return None

    def audit(self) -> str:
        """Returns the first violation that the audit of ZooKeeper's log finds, or an empty string."""
        found = violations(self.server.log, SESSION_MS)
        return f"audit: zxid {found[0].zxid:#x}: {found[0].rule}: {found[0].what}" if found else ""

    def end(self) -> None:
        """Ends every actor."""
        for process in self.processes.values():
            process.store.dead = True
        for actor in list(self.scheduler.actors):
            self.scheduler.kill(actor)


def run_history(seed: int, faults: frozenset[str] = FAULTS) -> tuple[InvariantBroken, list[str]] | None:
    """Runs one seed. Returns the violation and the history that led to it, or ``None`` if all invariants held."""
    cluster = SimulatedCluster(seed, faults)
    broken = cluster.verdict()
    if broken is None and (objection := cluster.audit()):
        broken = InvariantBroken(objection)
    return None if broken is None else (broken, cluster.story)
