"""Runs histories in which a client-assigned group becomes managed, or a managed one client-assigned, while its members
run, and something happens at one step of the conversion: its instance is killed, a write's outcome stays unknown, ...

The instances, their terms of managed groups and the elected coordinator are the real ones, on a simulated ZooKeeper.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from kafka_coord.coordinator.assignors import built_in_assignors
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.decision_writer import ActiveLeadership
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.handler import RebalanceRequestHandler
from kafka_coord.coordinator.image import Wanted, read_images
from kafka_coord.coordinator.memory import GroupRegistry, TopicCatalog
from kafka_coord.coordinator.pending_requests import PendingRequests
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import StoreUnavailable
from kafka_coord.frontends.kafka.managed.administration import Administration
from kafka_coord.frontends.kafka.managed.group import ManagedGroups
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.model import GroupKind, Request, RequestType, TopicInfo
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check
from tests.simulation.groups.clients import GROUP, SESSION_MS, TOPIC
from tests.simulation.groups.history import BROKERS, violation
from tests.simulation.groups.instances import WALL_START_MS
from tests.simulation.groups.judge import InvariantBroken
from tests.simulation.groups.loop import Process, World
from tests.simulation.groups.moves import HERE, Front, MoveHistory, simulated
from tests.simulation.groups.readers import SHARED, Reader
from tests.simulation.store import Quiet, SimulatedStore, connected_store

FAULTS = ("kill", "lost", "move", "silent", "zookeeper", "joins", "dies")
"""What happens at a step: the instance is killed and another one leads, the answer is lost, another one leads although
this one lives, the elected coordinator does nothing for a while, the instance loses its connection to ZooKeeper for a
while, a client joins, or one dies and comes back."""
_TURN_S, _BEGINS_S, _CONVERTED_WITHIN_S, _CALM_S, _AWAY_S = 0.01, 4.0, 40.0, 9.0, 3.0
_READS = ("get", "exists", "children", "read", "sync", "follow")


class WorldClock:
    """The clock of a store."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def time(self) -> float:
        return WALL_START_MS / 1000 + self._world.now


class Steps(Quiet):
    """Counts the writes that a conversion sends to ZooKeeper, before and after their effect."""

    def __init__(self, front: ManagedFront) -> None:
        self._front = front

    def before_effect(self, _store: SimulatedStore, doing: str) -> None:
        self._step(doing)

    def before_reply(self, _store: SimulatedStore, doing: str) -> None:
        self._step(doing)

    def _step(self, doing: str) -> None:
        if self._front.is_converting and not doing.startswith(_READS) and self._front.history.strikes(doing):
            raise StoreUnavailable("the outcome is unknown")


class ManagedFront(Front):
    """An instance that serves managed groups, too."""

    history: ConversionHistory

    def __init__(self, history: ConversionHistory, broker: int) -> None:
        self.is_converting = False
        """Whether the request that is being sent to ZooKeeper may be one of a conversion."""
        super().__init__(history, broker)
        self.manager.other_members = lambda partition: {
            key: ms for key, ms in self.terms.left_ms(partition).items() if self.kinds.are(GroupKind.MANAGED, key[0])
        }
        self.process.start(self._run_terms)

    def _connected(self) -> SimulatedStore:
        return connected_store(self.history.server, WorldClock(self.history.world), Steps(self))

    def _managed(self) -> ManagedGroups:
        self.terms = ManagedTerms(self.store, self.manager.resign, lambda _request: None, SESSION_MS / 1000)
        administration = Administration(self.store, self.terms)
        return ManagedGroups(self.terms, administration, self.manager, self.broker, self.manager.limits)

    def ask_zookeeper(self, what: str) -> None:
        super().ask_zookeeper(what)
        self.is_converting = self is self.history.converting

    def _read(self) -> None:
        self.is_converting = False
        super()._read()

    async def _run_terms(self) -> None:
        due = 0.0
        while True:
            self.is_converting = False
            while self.store.has_notification():
                self.store.deliver()
            if self.terms._news.is_set() or self.world.now >= due:
                self.terms.turn()
                due = self.world.now + self.terms._sleep_s()
            await asyncio.sleep(_TURN_S)

    def _term_ended(self, partition: int) -> None:
        super()._term_ended(partition)
        self.terms.end(partition)

    async def _begun(self, partition: int) -> None:
        await super()._begun(partition)
        term = self.manager.terms.get(partition)
        if term is not None:
            self.terms.begin(partition, term.znode_version, self.manager.states[partition].sessions)
            self.coordinator.conversions.begin(partition)


class Elected:
    """The elected coordinator. Looks at every group whenever anything in ZooKeeper has changed."""

    def __init__(self, history: MoveHistory) -> None:
        self._history, self._seen, self.silent_until = history, -1, 0.0
        clock = WorldClock(history.world)
        self.store = connected_store(history.server, clock)
        for path in (*layout.PERSISTENT_ROOTS, layout.COORDINATOR_EPOCH, layout.COORDINATOR, layout.BROKER_TOPICS):
            self.store.ensure_path(path)
        self.store.create(layout.broker_topic(TOPIC), topic_value(len(SHARED), topic_id=history.topic.identity))
        self._queue, catalog = RebalanceRequestQueue(clock), TopicCatalog()
        catalog.put(TopicInfo(TOPIC, frozenset(SHARED), history.topic.identity))
        self._requests = PendingRequests(self.store)
        self._handler = RebalanceRequestHandler(
            self.store,
            ActiveLeadership(1, Executor(self.store, Check(layout.COORDINATOR_EPOCH)), lambda: True),
            *(self._queue, GroupRegistry(), catalog, self._requests, built_in_assignors(), CoordinatorOptions()),
        )
        self.process = Process(history.world, "elected")
        self.process.start(self._run)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._history.rng.uniform(0.005, 0.05))
            if self._history.world.now < self.silent_until:
                continue
            if self._seen != len(self._history.server.log):
                self._seen = len(self._history.server.log)
                asked = self._requests.load(self.store.children(layout.REQUESTS))
                for name in {*self.store.children(layout.GROUPS), *(one.group for one in asked if one.group)}:
                    self._queue.request(name)
            while self._handler.step():
                self._look()

    def _look(self) -> None:
        """Checks that nobody decides for a group before it is recorded as managed."""
        record = self._history.record()
        if record is None or record.kind is GroupKind.MANAGED:
            return
        target = read_images(self.store, [Wanted(GROUP)]).get(GROUP)
        if target is not None and target.assignment is not None and target.assignment.members:
            self._history.judge.breaks("the elected coordinator has assigned the partitions of a client-assigned group")


class ConversionHistory(MoveHistory):
    """The group is converted to the kind ``to``, and ``fault`` happens at the conversion's step ``at``. The operator
    asks again until the group is converted."""

    front = ManagedFront
    fronts: dict[int, ManagedFront]  # type: ignore[assignment]

    def __init__(self, seed: int, to: GroupKind, fault: str = "", at: int = -1) -> None:
        self.converting: ManagedFront | None = None
        self.to, self._fault_now, self._at, self.steps = to, fault, at, 0
        self.result: tuple[str, str] = "", ""
        super().__init__(seed, frozenset())
        self.is_native_first, self.delay_s = False, 0.0
        self.elected = Elected(self)
        produce = self.log.produce

        def produced(broker: int, records: Any, reply: Any) -> None:
            mine = self.converting is not None and self.converting.broker == broker
            if mine and self.strikes("produce"):
                reply(None)
                return
            produce(broker, records, reply)

        self.log.produce = produced  # type: ignore[method-assign, assignment]

    def _begin(self) -> None:
        self.readers += [Reader(self, name) for name in ("a", "b", "static")]

    def strikes(self, doing: str) -> bool:
        """Counts a step, and returns whether its outcome is lost."""
        self.steps += 1
        front = self.converting
        if self.steps - 1 != self._at or front is None:
            return False
        self.say(f"{self._fault_now} at {doing}")
        getattr(self, f"_at_{self._fault_now}")(front)
        return self._fault_now in {"kill", "lost", "zookeeper"}

    def _at_kill(self, front: ManagedFront) -> None:
        self._at_move(front)
        self._die(front.process)
        front.store.dead = True
        self.world.after(1.0, partial(self._restart, front.broker))

    def _at_lost(self, _front: ManagedFront) -> None:
        """Whoever asks loses the answer."""

    def _at_move(self, front: ManagedFront) -> None:
        leader = next(one for one in BROKERS if one != front.broker)
        self.world.after(0.05, partial(self.log.move, leader))

    def _at_silent(self, _front: ManagedFront) -> None:
        self.elected.silent_until = self.world.now + _AWAY_S

    def _at_zookeeper(self, front: ManagedFront) -> None:
        front.store.disconnect()
        self.net.without_zookeeper = True
        self.world.after(_AWAY_S, partial(self._zookeeper_back, front))

    def _zookeeper_back(self, front: ManagedFront) -> None:
        front.store.connect(front.store.replica)
        self._zookeeper_answers()

    def _at_joins(self, _front: ManagedFront) -> None:
        self.readers.append(Reader(self, "late"))

    def _at_dies(self, _front: ManagedFront) -> None:
        reader = self.readers[0]
        self._client_dies(reader)
        self.world.after(_AWAY_S, partial(self._client_returns, reader))

    # --- the history -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        at, self._at = self._at, -1
        self._run(self.world.now + _BEGINS_S)
        if self.to is GroupKind.CLIENT_ASSIGNED:
            self._convert(GroupKind.MANAGED)
            self._run(self.world.now + 1.0)
        self.steps, self._at = 0, at
        self._convert(self.to)
        self._at = -1
        self.calm, self.pace = True, 2.0
        self._run(self.world.now + _CALM_S)
        if any(self._unserved()):  # a member whose leaving was lost may have held the others up for its whole session
            self._run(self.world.now + _CALM_S)
        self._at_rest()

    def _convert(self, to: GroupKind) -> None:
        """Asks, in each term, until the group is converted, as operators do."""
        late, self.result = self.world.now + _CONVERTED_WITHIN_S, ("", "")
        asked: object = None
        while self.result[0] != "done":
            self._run(self.world.now + 0.05)
            front = self.fronts[self.log.leader]
            term = front.manager.terms.get(HERE)
            is_known = front.terms.knows_partition(HERE)
            if term is not None and is_known and (term is not asked or self.result[0] == "refused"):
                self.result, asked = ("", ""), term
                front.process.start(partial(self._asked, front, to))
            if self.world.now > late:
                raise InvariantBroken(f"the group cannot be made {to}: {self.result[1]}")

    async def _asked(self, front: ManagedFront, to: GroupKind) -> None:
        self.converting = front
        request = Request(RequestType.CONVERT_GROUP, GROUP, to=to, by="alice")
        try:
            told = await front.coordinator.conversions.converted(request)
        finally:
            if self.converting is front:
                self.converting = None
        if told is not None:
            self.say(f"{told.result}: {told.message}")
            await asyncio.sleep(0.3)
            self.result = told.result, told.message

    def _at_rest(self) -> None:
        front, record = self.fronts[self.log.leader], self.record()
        if record is None or record.kind is not self.to:
            raise InvariantBroken(f"the group is recorded as {record}")
        if self.to is GroupKind.MANAGED and front.manager.has(GROUP):
            raise InvariantBroken("the group is managed, and the log has it still")
        if self.to is GroupKind.CLIENT_ASSIGNED and self.server_store.exists(layout.group(GROUP)):
            raise InvariantBroken("the group is client-assigned, and ZooKeeper has it still")
        for failure in self.elected.process.failures():
            raise InvariantBroken(failure)
        self._all_served()


def play(seed: int, to: GroupKind, fault: str = "", at: int = -1) -> tuple[str, ConversionHistory]:
    """Returns the violation ("" if there is none) and the history."""
    history = ConversionHistory(seed, to, fault, at)
    with simulated(history):
        return violation(history), history
