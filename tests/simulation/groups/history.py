"""Runs one seeded history: instances, clients, faults, and a calm period in which everything must settle."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kafka_coord.classic_groups.metadata import ClassicState
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.routing import HEARTBEAT
from kafka_coord.grouplog import term
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import PROOF_S
from kafka_coord.wire import batches
from kafka_coord.wire.frames import RequestHeader
from tests.frontends.kafka.callers import OpenCaller
from tests.simulation.groups.clients import ALONE, GROUP, RESTS_S, Client
from tests.simulation.groups.instances import FIRST_TREE, REGISTRY_READ_S, Instance, Network, Registry, Znode, sent
from tests.simulation.groups.judge import InvariantBroken, Judge
from tests.simulation.groups.line import Line
from tests.simulation.groups.log import STORAGE, TIMED_OUT, SimulatedPartition
from tests.simulation.groups.loop import Process, World
from tests.simulation.groups.member_faults import OF_MEMBERS, MemberFaults
from tests.simulation.groups.session_faults import OF_SESSIONS, SessionFaults
from tests.simulation.groups.topics import SimulatedTopic
from tests.simulation.groups.tree_faults import OF_TREES, TreeFaults

_DELETE_GROUPS = 42
FAULTS = frozenset({
    "move", "freeze", "kill", "twin", "loss", "delay", "replicas", "compact", "znode", "forget",
    "client-kill", "client-freeze", "lazy", "delete", "away", "die", "stop",
    "idle", "deny", "size", "unclear", "zookeeper", "topics", "emptied", "evict", "return", "newcomer", "outage",
    "alternate", "restore", "ahead",
})  # fmt: skip
OF_OUTCOMES = frozenset({"idle", "deny", "size", "unclear", "zookeeper"})
"""The kinds that decide how an append ends. They are drawn on their own, so that they take nothing from the others."""
TURMOIL_S, CALM_S = 14.0, 26.0
BROKERS = (1, 2, 3)
_LOOKS_S = 0.05
"""The seconds between two checks of held heartbeats."""
_SESSION_S = 1.5
"""How long the registration of a killed instance lasts, in seconds."""
_NAMED_S = 1.0
"""How long after the end of its session a dead instance may still be named, in seconds: longer than the others need to
read the change."""
_STOPS_WITHIN_S, _STOP_LOOKS_S = 2.5, 0.01
"""How long a planned stop takes at most, in seconds, until every request has been answered."""
_FEW = 4
"""If at most this many kinds of faults are allowed, all of them may happen. Otherwise, each history has half of them,
so none hides the others."""
_ANSWERED_WITHIN_S = 20.0
_CALM_PACE = 2.0
_LATE_S = 12.0
"""How late a message of the turmoil may arrive, in seconds."""
_RECOVERS_S = 12.0
"""How long clients may need, in seconds, after a broker closed a connection while a request was on its way: nobody
knows then whether the broker has it, so the term ends, and all clients join again."""
_NOTICED_WITHIN_S = 0.1
"""How long after such a close its term may end, in seconds."""
_COMMITS_WITHIN_S = 3 * RESTS_S * _CALM_PACE + 1.0
"""In the calm period, a client commits after at most one random action and one due heartbeat, and pauses before each of
the three. The requests take a few hundredths of a second, because no message is lost or late."""


class GroupHistory:
    """``faults`` are the possible kinds. They may happen for ``turmoil_s`` seconds."""

    def __init__(self, seed: int, faults: frozenset[str] = FAULTS, turmoil_s: float = TURMOIL_S) -> None:
        self.seed, self.turmoil_s = seed, turmoil_s
        self.software = ("apache-kafka-java", "kgo", "kgo", "librdkafka")[seed % 4]
        self.world = World(seed)
        self.rng = rng = self.world.rng
        self.story: list[str] = []
        self.calm, self.calm_at = False, math.inf
        few = len(faults) <= _FEW
        on_their_own = OF_OUTCOMES | OF_MEMBERS | OF_SESSIONS | OF_TREES | {"topics"}
        kinds = [kind for kind in sorted(faults - on_their_own) if rng.random() < 0.5 or few]
        of_outcomes = random.Random(f"outcomes {seed}")
        self.of_outcomes = [kind for kind in sorted(faults & OF_OUTCOMES) if of_outcomes.random() < 0.4 or few]
        if "forget" in kinds and "compact" in kinds:
            kinds.remove(rng.choice(["forget", "compact"]))
        self.kinds = kinds
        self.of_members = MemberFaults(self, faults, few=few)
        self.of_sessions = SessionFaults(self, faults, few=few)
        self.of_trees = TreeFaults(self, faults, few=few)
        self.left: set[str] = set()
        """The ids of the members that have asked to leave."""
        self.net = Network(self.world)
        self.log = SimulatedPartition(self.world, partition_of(GROUP), BROKERS)
        self.topic = SimulatedTopic(self.world, seed)
        self.judge = Judge(self.log, self.topic, "forget" in kinds)
        self.znode = Znode(rng.choice([0, 0, 0, 32_767 - rng.randint(1, 6)]), FIRST_TREE)
        self.registry = Registry(self.world)
        self.instances = {broker: self._instance(broker) for broker in BROKERS}
        for instance in self.instances.values():
            self.registry.register(instance)
        self.twins: list[Instance] = []
        self.processes: list[Process] = []
        self.asked: dict[object, tuple[float, Process, str]] = {}
        self.lines: dict[tuple[Process, Process], Line] = {}
        """The keys are the client's process and the instance's process."""
        names = [*("a", "b", "c")[: rng.randint(1, 3)], *(["static"] if rng.random() < 0.4 else []), "alone"]
        self.clients = [Client(self, name) for name in names]
        self.topic.is_still = not ("topics" in faults and (few or self.topic.rng.random() < 0.5))
        self.every_s = rng.uniform(0.15, 1.5)
        self._pace = rng.choice([1.0, 1.0, 0.3])

    def _instance(self, broker: int) -> Instance:
        return self.instance_of(broker, self.znode)

    def instance_of(self, broker: int, znode: Znode) -> Instance:
        """Returns a new process beside the broker, which serves the tree of the znode."""
        return Instance(self.world, self.net, self.log, znode, broker, self.topic, self.registry)

    def begin_again(self, broker: int) -> None:
        """Replaces the instance beside the broker by one of the present tree."""
        self.instances[broker] = self._instance(broker)
        self.registry.register(self.instances[broker])

    @property
    def pace(self) -> float:
        """The factor of the clients' pauses."""
        return _CALM_PACE if self.calm else self._pace

    def say(self, what: str) -> None:
        self.story.append(f"{self.world.now - 1_000:7.3f} {what}")

    def run(self) -> None:
        """Runs the history. Raises :class:`InvariantBroken`."""
        world, start = self.world, self.world.now
        world.after(1.0, self._fault)
        if self.of_outcomes:
            world.after(1.2, self._fault_of_outcomes)
        if not self.topic.is_still:
            world.after(self.topic.rng.uniform(1.0, 5.0), self._topics)
        self.of_members.start()
        self.of_sessions.start()
        self.of_trees.start()
        world.after(_LOOKS_S, self._look_at_held)
        world.after(_LOOKS_S, self._look_at_named)
        self._run(start + max(self.turmoil_s, self.of_sessions.takes_s))
        self._end_all()
        self._run(world.now + _LATE_S)
        judged_since = world.now
        self._run(world.now + CALM_S - _LATE_S)
        while self.net.crossed_at and world.now < self.net.crossed_at[-1] + _RECOVERS_S:
            self._run(self.net.crossed_at[-1] + _RECOVERS_S)
        self._at_rest(judged_since)
        self.judge.end()

    def _run(self, until: float) -> None:
        self.world.run(until, lambda: bool(self.judge.broken))
        if self.judge.broken:
            raise InvariantBroken(self.judge.broken)

    # --- requests ----------------------------------------------------------------------------------------------------

    def deliver(
        self, client: Client, frame: bytes, told: asyncio.Future[bytes], check: Callable[[Any], None] | None
    ) -> None:
        """Sends a request to the presumed coordinator. Returns its answer, if request and answer both arrive."""
        rng, net = self.rng, self.net
        guess = self.log.leader if self.calm or rng.random() < 0.8 else rng.choice(BROKERS)
        beside = [self.instances[guess], *(twin for twin in self.twins if twin.broker == guess)]
        instance = rng.choice(beside)
        if net.loses():
            return
        key = object()
        process = client.process

        line = self.lines.setdefault((process, instance.process), Line(self.software))

        async def handle() -> None:
            line.sent_more()
            self.asked[key] = world.now, instance.process, client.name
            try:
                found = await instance.coordinator.answer(frame, line)
            finally:
                began = self.asked.pop(key)[0]
            assert isinstance(found, bytes), "no group is native"
            self._look_at_proof(instance, frame, found, began)
            if check is not None:
                check(found)
            if not net.loses():
                world.after(net.takes_s(), lambda: process.call_soon(tell, found))

        def tell(found: bytes) -> None:
            if not told.done():
                told.set_result(found)

        world = self.world
        world.after(net.takes_s(), lambda: instance.process.start(handle))

    def _look_at_proof(self, instance: Instance, frame: bytes, found: bytes, began: float) -> None:
        """Checks that while appends are refused, a heartbeat is answered only with a fresh proof of the term."""
        term = instance.manager.terms.get(self.log.partition)
        if int.from_bytes(frame[:2], "big") != HEARTBEAT or found[-2:] != bytes(2) or term is None:
            return
        if term.is_refused and term.proven_at < began - PROOF_S:
            self.judge.breaks(f"{instance.process.name} answers a heartbeat without a proof of its term")

    def _look_at_held(self) -> None:
        """Checks that only requests of members of stable groups are held."""
        self.world.after(_LOOKS_S, self._look_at_held)
        for instance in (*self.instances.values(), *self.twins):
            if instance.process.frozen or instance.process.killed:
                continue
            lines = (line for (_, at), line in self.lines.items() if at is instance.process)
            held = sum(line.held is not None for line in lines)
            group = instance.manager.group(GROUP)
            members = () if group is None else group.metadata.members.values()
            waiting = sum(member.beat_token is not None for member in members)
            if held != waiting:
                self.judge.breaks(f"{instance.process.name} holds {held} heartbeats, for {waiting} members")
            elif group is not None and held and group.metadata.state is not ClassicState.STABLE:
                self.judge.breaks(f"{instance.process.name} holds a heartbeat in a rebalance")

    def _look_at_named(self) -> None:
        """Checks that no instance names one whose session has ended. An instance that was frozen must read first."""
        self.world.after(_LOOKS_S, self._look_at_named)
        for instance in self.instances.values():
            if not instance.process.frozen and not instance.process.killed:
                instance.process.call_soon(partial(self._named_by, instance))

    def _named_by(self, instance: Instance) -> None:
        known, now = instance.known, self.world.now
        if self.log.partition not in known.leaders or now - known.read_at > 2 * REGISTRY_READ_S:
            return
        node = known.named(self.log.partition)
        ended_at = self.registry.ended_at.get(node[0]) if node is not None and node[0] != instance.broker else None
        if ended_at is not None and now - ended_at > _NAMED_S:
            self.judge.breaks(f"{instance.process.name} names instance {node}, whose session ended at {ended_at:.3f}")

    def lose_connections(self, client: Client) -> None:
        """Lets running instances notice the change."""
        for (of, at), line in self.lines.items():
            if of is client.process:
                at.call_soon(line.lost)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if self.calm:
            return
        self.world.after(self.rng.expovariate(1 / self.every_s), self._fault)
        if self.kinds:
            kind = self.rng.choice(self.kinds)
            self.say(kind)
            getattr(self, f"_{kind.replace('-', '_')}")()

    def _fault_of_outcomes(self) -> None:
        if self.calm:
            return
        self.world.after(self.rng.expovariate(1 / self.every_s), self._fault_of_outcomes)
        kind = self.rng.choice(self.of_outcomes)
        self.say(kind)
        getattr(self, f"_{kind}")()

    def _idle(self) -> None:
        """Brokers close idle connections soon, and connections are replaced often."""
        self.net.idle_s = self.rng.choice([math.inf, 0.05, 0.5])
        self.net.lifetime_s = self.rng.choice([math.inf, 1.0])

    def _deny(self) -> None:
        self.log.denies = True
        self.world.after(self.rng.uniform(0.05, 2.0), self._allow)

    def _allow(self) -> None:
        self.log.denies = False

    def _size(self) -> None:
        """The brokers refuse batches of more records than a few, or than one, or any."""
        self.log.most_records = self.rng.choice([1 << 30, 2, 1, 0])

    def refuse_more_than(self, records: int) -> None:
        """Makes the brokers refuse batches of more than ``records`` records, unless the turmoil is over."""
        if not self.calm:
            self.log.most_records = records

    def _unclear(self) -> None:
        self.log.unclear = self.rng.choice([None, TIMED_OUT, STORAGE])

    def _zookeeper(self) -> None:
        self.net.without_zookeeper = True
        self.world.after(self.rng.uniform(0.05, 4.0), self._zookeeper_answers)

    def _zookeeper_answers(self) -> None:
        self.net.without_zookeeper = False

    def _move(self) -> None:
        self.log.move(self.rng.choice(BROKERS))
        self.say(f"broker {self.log.leader} leads, from offset {self.log.leo}")

    def _freeze(self) -> None:
        process = self.instances[self.rng.choice([self.log.leader, *BROKERS])].process
        self._freeze_process(process, self.rng.choice([0.3, 2.0, 10.0]))

    def _freeze_process(self, process: Process, most_s: float) -> None:
        if process.frozen or process.killed:
            return
        process.freeze()
        self.say(f"{process.name} is frozen")
        self.world.after(self.rng.uniform(0.01, most_s), process.thaw)

    def _away(self) -> None:
        """Freezes the leader's instance, and moves the leadership to another broker."""
        leader = self.log.leader
        self._freeze_process(self.instances[leader].process, 6.0)
        self.log.move(self.rng.choice([broker for broker in BROKERS if broker != leader]))
        if self.rng.random() < 0.5:
            self.world.after(self.rng.uniform(0.0, 4.0), lambda: self._give_back(leader))

    def _give_back(self, broker: int) -> None:
        if not self.calm:
            self.log.move(broker)

    def _kill(self) -> None:
        self._killed(self.rng.uniform(0.0, 3.0))

    def _die(self) -> None:
        """Kills an instance that stays away longer than its session, while its broker may lead on."""
        self._killed(self.rng.uniform(2.0, 8.0))

    def _killed(self, for_s: float) -> None:
        broker = self.rng.choice([self.log.leader, *BROKERS])
        instance = self.instances[broker]
        instance.process.killed = True
        self.world.after(_SESSION_S, lambda: self.registry.end(instance))
        self.world.after(for_s, lambda: self._restart(broker))

    def _restart(self, broker: int) -> None:
        if self.instances[broker].process.killed:
            self.processes.append(self.instances[broker].process)
            self.begin_again(broker)

    def _stop(self) -> None:
        """Stops an instance as planned, with whatever requests are in flight."""
        instance = self.instances[self.rng.choice([self.log.leader, *BROKERS])]
        away_s = self.rng.uniform(0.0, 3.0)
        if not (instance.known.is_stopping or instance.process.frozen or instance.process.killed):
            self.say(f"{instance.process.name} stops")
            instance.process.start(lambda: self._stopped(instance, away_s))

    async def _stopped(self, instance: Instance, away_s: float) -> None:
        process, asked = instance.process, self.asked.values()
        self.registry.end(instance)
        await instance.coordinator.stop()
        turns = round(_STOPS_WITHIN_S / _STOP_LOOKS_S)  # not a time: the process may be frozen meanwhile
        while any(at is process for _, at, _ in asked) and turns:
            turns -= 1
            await asyncio.sleep(_STOP_LOOKS_S)
        left = [name for _, at, name in asked if at is process]
        if left:
            self.judge.breaks(f"{process.name} stopped without an answer to {', '.join(left)}")
        process.killed = True
        self.world.after(away_s, lambda: self._restart(instance.broker))

    def _twin(self) -> None:
        twin = self._instance(self.log.leader)
        self.twins.append(twin)
        self.world.after(self.rng.uniform(0.5, 4.0), lambda: self.without(twin))

    def without(self, twin: Instance) -> None:
        twin.process.killed = True
        if twin in self.twins:
            self.twins.remove(twin)
            self.processes.append(twin.process)

    def _loss(self) -> None:
        self.net.loss = self.rng.choice([0.0, 0.02, 0.1])

    def _delay(self) -> None:
        self.net.delay = self.rng.choice([0.0, 0.03, 0.1])

    def _replicas(self) -> None:
        self.log.have_replicas(False)
        self.world.after(self.rng.uniform(0.05, 3.0), lambda: self.log.have_replicas(True))

    def _compact(self) -> None:
        self.log.compact()

    def _znode(self) -> None:
        """Deletes the znode and creates it again, with a lower version."""
        self.znode.make_anew(max(0, self.znode.version - self.rng.choice([1, 2, 4, 1 << 30])))

    def _forget(self) -> None:
        self.log.forget_producers()

    def _client_kill(self) -> None:
        client = self.rng.choice(self.clients)
        client.process.killed = True
        self.lose_connections(client)
        self.world.after(self.rng.uniform(0.0, 4.0), lambda: self._start_again(client))

    def _start_again(self, client: Client) -> None:
        if client.process.killed:
            client.start()

    def _client_freeze(self) -> None:
        self._freeze_process(self.rng.choice(self.clients).process, 12.0)

    def _lazy(self) -> None:
        client = self.rng.choice(self.clients)
        client.is_lazy = not client.is_lazy

    def _delete(self) -> None:
        """An operator deletes the group without members."""
        self.judge.deleted_at = self.world.now
        instance = self.instances[self.log.leader]

        async def delete() -> None:
            await instance.coordinator._deleted(self.of_a_tool(), ALONE)

        instance.process.start(delete)

    @staticmethod
    def of_a_tool() -> Call:
        return Call(RequestHeader(_DELETE_GROUPS, 0, 0, "a tool"), None, OpenCaller("h"))

    def _topics(self) -> None:
        """Makes the topic anew, or hides it. Its choices are its own, so other faults are the same with and without
        it."""
        if self.calm:
            return
        self.world.after(self.topic.rng.uniform(0.5, 6.0), self._topics)
        back = self.topic.rng.choice([self.topic.make_anew, self.topic.show])
        self.topic.hide()
        self.say("the topic is gone")
        self.world.after(self.topic.rng.uniform(0.0, 2.0), lambda: self._topic_back(back))

    def _topic_back(self, back: Callable[[], None]) -> None:
        back()
        self.say(f"the topic is {self.topic.identity}")

    def _end_all(self) -> None:
        self.say("calm")
        self.topic.show()
        self.calm, self.calm_at = True, self.world.now
        self.net.loss = self.net.delay = 0.0
        self.net.without_zookeeper = self.log.denies = False
        self.log.most_records, self.log.unclear = 1 << 30, None
        self.log.have_replicas(True)
        for twin in list(self.twins):
            self.without(twin)
        for broker, instance in list(self.instances.items()):
            if instance.process.frozen:
                instance.process.thaw()
            self._restart(broker)
        for client in self.clients:
            if client.process.frozen:
                client.process.thaw()
            self._start_again(client)

    # --- the end of the history --------------------------------------------------------------------------------------

    def _at_rest(self, judged_since: float) -> None:
        now = self.world.now
        # A claim that has been on its way since the turmoil ends a term, which may notice it late.
        ends = sum(
            at > judged_since and claim_began > self.calm_at
            for instance in self.instances.values()
            for at, claim_began in instance.terms_ended
        )
        closes = sum(at > judged_since - _NOTICED_WITHIN_S for at in self.net.crossed_at)
        if ends > closes:
            raise InvariantBroken(f"{ends} terms ended in the calm, and {closes} closes crossed a request")
        for asked_at, process, name in self.asked.values():
            if not process.killed and now - asked_at > _ANSWERED_WITHIN_S:
                raise InvariantBroken(f"a request of {name} is not answered after {now - asked_at:.0f} s")
        for client in self.clients:
            newest = max((one.acknowledged_at or 0.0 for one in client.commits), default=0.0)
            if now - newest > _COMMITS_WITHIN_S:
                raise InvariantBroken(f"{client.name} has not committed for {now - newest:.1f} s")
        processes = [*(one.process for one in self.instances.values()), *(one.process for one in self.clients)]
        for process in (*processes, *self.processes):
            for failure in process.failures():
                raise InvariantBroken(failure)

    def digest(self) -> tuple[int, int, int]:
        return self.world.steps, self.log.leo, len(self.judge.promised)


@contextmanager
def simulated_wire() -> Iterator[None]:
    """Makes batches travel as values."""
    places: tuple[tuple[Any, str, Any], ...] = ((term, "encode_batch", sent), (batches, "decode_batches", iter))
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, simulated in places:
        setattr(module, name, simulated)
    try:
        yield
    finally:
        for (module, name, _), real in zip(places, before, strict=True):
            setattr(module, name, real)


def violation(history: Any) -> str:
    """Runs the history, and returns the violation, or "" if there is none."""
    try:
        history.run()
    except InvariantBroken as broken:
        history.say(str(broken))
        return str(broken)
    return ""


def play(seed: int, faults: frozenset[str] = FAULTS, turmoil_s: float = TURMOIL_S) -> tuple[str, GroupHistory]:
    """Returns the violation ("" if there is none) and the history."""
    with simulated_wire():
        history = GroupHistory(seed, faults, turmoil_s)
        return violation(history), history
