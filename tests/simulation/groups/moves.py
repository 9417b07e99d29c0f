"""Runs seeded histories in which a group is taken over and given back, again and again, under faults.

Both sides run the real coordinator of client-assigned groups: the brokers on a log of their own, and the instances as
they are, with the real moves, and kinds in a simulated ZooKeeper.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kafka_coord.errors import BrokerError, KafkaCoordError, StoreError, StoreUnavailable
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.frontends.kafka.instances import Node
from kafka_coord.frontends.kafka.moving import MoveRefused
from kafka_coord.frontends.kafka.native import Kinds, NativeGroups, PassedOn
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import decode_kinds, read_kinds
from kafka_coord.zk.store import GetData
from kafka_coord.zk.store import Node as Data
from tests.frontends.kafka.callers import NoManagedGroups
from tests.simulation.groups.clients import GROUP, SESSION_MS, Client
from tests.simulation.groups.history import BROKERS, simulated_wire
from tests.simulation.groups.instances import FIRST_TREE, LIMITS, LOOK_S, Instance, Network, Registry, Znode
from tests.simulation.groups.judge import Commit, InvariantBroken
from tests.simulation.groups.line import Line
from tests.simulation.groups.log import SimulatedPartition
from tests.simulation.groups.loop import Process, World
from tests.simulation.groups.topics import SimulatedTopic
from tests.simulation.store import SimulatedStore, connected_store

FAULTS = frozenset(
    {"kill", "freeze", "deaf", "move", "offsets-move", "broker-kill", "loss", "zookeeper", "client-kill"}
)
TURMOIL_S, CALM_S = 30.0, 40.0
HERE = partition_of(GROUP)
_SESSION_S = 1.5
_DELAY_S = 3.0
"""How long a broker delays the first generation of a group, as Kafka does by default."""
_SYNC, _JOIN = 14, 11


class Broker(Instance):
    """A broker's own coordinator, which is reliable as long as it lives."""

    def __init__(self, history: MoveHistory, broker: int) -> None:
        registry = Registry(history.world)
        where = history.offsets_log, history.offsets_znode, broker, history.topic, registry
        super().__init__(history.world, history.inside, *where)
        self.manager.limits = dataclasses.replace(LIMITS, initial_rebalance_delay_s=_DELAY_S)
        self.coordinator.holds = False

    async def _expire(self) -> None:
        """Nothing expires in so short a time."""


class Beside(NativeGroups):
    """Asks the simulated brokers."""

    def __init__(self, front: Front) -> None:
        super().__init__(front.known, front.kinds)
        self._front = front

    def connection(self, node: Node) -> Any:
        return BrokerLine(self._front, node[0])


class BrokerLine:
    """Replaces a connection to the broker beside an instance."""

    def __init__(self, front: Front, broker: int) -> None:
        self._front, self._broker, self._closed = front, broker, False

    async def ask(self, name: str, version: Any, value: Any, timeout_s: float = 4.0) -> Any:
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        number = version if isinstance(version, int) else version[1]
        frame = request_frame(RequestHeader(request.api_key or 0, number, 1, "kafka-coord"), request, value)[4:]
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._front.history.at_broker(self._front, self._broker, frame)
        except TimeoutError:
            raise BrokerError(f"{name}: no answer") from None
        if self._closed:
            raise BrokerError("the connection was closed")
        return answer.decode(found, number, 4 + answer_start(answer, number))

    def close(self) -> None:
        self._closed = True


class Front(Instance):
    """An instance, with the real kinds and moves. A ``deaf`` one hears nothing from ZooKeeper."""

    def __init__(self, history: MoveHistory, broker: int) -> None:
        self.history, self.deaf = history, False
        super().__init__(
            history.world, history.net, history.log, history.znode, broker, history.topic, history.registry
        )
        self.store = connected_store(history.server)
        self.kinds = Kinds(self.store)
        self.known.newest_version = _newest  # type: ignore[method-assign, assignment]
        self.known.native_coordinator = self._native_coordinator  # type: ignore[method-assign, assignment]
        self.coordinator = GroupCoordinator(
            self.manager, self.known, NoManagedGroups(), lambda: f"{broker}.{history.fresh()}", native=Beside(self)
        )
        moves = self.coordinator.moves
        self._record_return, moves._record_return = moves._record_return, self._returning  # type: ignore[method-assign]
        history.front_of[self.process] = self
        self.process.start(self._hear)

    async def _returning(self, name: str) -> None:
        """Notes the members that the group has when it is given back."""
        group = self.manager.group(name)
        self.history.given_back = self.world.now, set(group.metadata.members) if group is not None else set()
        await self._record_return(name)

    def ask_zookeeper(self, what: str) -> None:
        if self.deaf or self.net.without_zookeeper or self.net.loses():
            raise StoreUnavailable(f"the {what} was lost")

    async def _native_coordinator(self, _group: str) -> Node:
        broker = self.history.offsets_log.leader
        if self.net.loss and self.world.rng.random() < 0.1:
            broker = self.world.rng.choice(BROKERS)
        return broker, str(broker), broker

    async def _claim(self, partition: int, newest: int) -> Any:
        won = await super()._claim(partition, newest)
        self.history.server_store.set(layout.log_partition(partition), b"", -1)
        return won

    def _term_ended(self, partition: int) -> None:
        super()._term_ended(partition)
        self.kinds.end(partition)
        self.coordinator.moves.end(partition)

    async def _hear(self) -> None:
        while True:
            await asyncio.sleep(self.world.rng.uniform(0.01, 0.1))
            if not self.deaf and not self.net.without_zookeeper:
                self._read()

    def _read(self) -> None:
        node = self.store.read_many([GetData(layout.kinds(HERE))])[0]
        self.kinds._told(HERE, decode_kinds(HERE, node if isinstance(node, Data) else None))
        self.kinds._is_current = True

    async def _follow(self) -> None:
        partition = self.log.partition
        while True:
            leads = self.log.leader == self.broker
            await asyncio.sleep(self.net.takes_s())
            self.known.told(self.log)
            if not leads:
                self.manager.resign(partition, "its broker no longer leads it")
            elif partition not in self.manager.terms and not self.deaf:
                with suppress(KafkaCoordError):
                    await self._begun(partition)
            await asyncio.sleep(LOOK_S)

    async def _begun(self, partition: int) -> None:
        await self.manager.load_groups_for_partition(partition)
        while (term := self.manager.terms.get(partition)) is not None:
            stored = {name: one.metadata.has_members for name, one in self.manager.groups_of(partition).items()}
            try:
                await self.kinds.begin(partition, term.znode_version, stored)
                break
            except StoreError:
                await asyncio.sleep(LOOK_S)
        if partition in self.manager.terms:
            self.coordinator.client_assigned.begin_partition(partition)
            self.coordinator.moves.begin(partition)

    async def _expire(self) -> None:
        """Nothing expires in so short a time."""


async def _newest(_name: str, spoken: Any) -> int:
    return int(spoken[1])


class MoveJudge:
    """Knows each acknowledged commit."""

    def __init__(self, history: MoveHistory) -> None:
        self._history = history
        self.broken = ""
        self._sent: dict[int, tuple[Commit, float]] = {}
        self._newest: dict[int, Commit] = {}
        self.acknowledged = 0

    def breaks(self, what: str) -> None:
        self.broken = self.broken or f"{self._history.world.now - 1_000:.3f}: {what}"

    def committing(self, group: str, partition: int, member_id: str, generation: int, reads: str) -> Commit:
        one = Commit((group, partition), len(self._sent) + 1, member_id, generation, reads)
        self._sent[one.value] = one, self._history.world.now
        return one

    def promise(self, one: Commit) -> None:
        """It counts once the client has heard of it."""

    def synced(self, member_id: str, generation: int, assignment: bytes) -> None:
        """What a member is told is checked where it is told."""

    def fetched(self, _group: str, partition: int, value: int, asked_at: float) -> None:
        """A later fetch must not show a commit that had been acknowledged before the newest one was sent."""
        known = [one for one, _ in self._sent.values() if one.key[1] == partition and one.acknowledged_at is not None]
        known = [one for one in known if (one.acknowledged_at or 0.0) < asked_at]
        self.acknowledged = len(known)
        if not known:
            return
        newest = max(known, key=lambda one: self._sent[one.value][1])
        if value < 0:
            self.breaks(f"partition {partition}: no offset, although {newest.value} was acknowledged")
        elif (told := self._sent[value][0].acknowledged_at) is not None and told < self._sent[newest.value][1]:
            self.breaks(f"partition {partition}: {value} came back after {newest.value} was acknowledged")


class MoveHistory:
    """``faults`` are the possible kinds."""

    left: set[str]

    def __init__(self, seed: int, faults: frozenset[str] = FAULTS) -> None:
        self.seed, self.world = seed, World(seed)
        self.rng = rng = self.world.rng
        self.story: list[str] = []
        self.calm, self.left = False, set()
        self.kinds = [kind for kind in sorted(faults) if rng.random() < 0.5]
        self.net, self.inside = Network(self.world), Network(self.world)
        self.log = SimulatedPartition(self.world, HERE, BROKERS)
        self.offsets_log = SimulatedPartition(self.world, HERE, BROKERS)
        self.topic = SimulatedTopic(self.world, seed)
        self.judge = MoveJudge(self)
        self.znode, self.offsets_znode = Znode(0, FIRST_TREE), Znode(0, FIRST_TREE)
        self.registry = Registry(self.world)
        self.server_store: SimulatedStore = connected_store()
        self.server = self.server_store.server
        self.server_store.ensure_path(layout.log_partition(HERE))
        self._fresh = 0
        self.front_of: dict[object, Front] = {}
        self.brokers = {broker: Broker(self, broker) for broker in BROKERS}
        self.fronts = {broker: Front(self, broker) for broker in BROKERS}
        for front in self.fronts.values():
            self.registry.register(front)
        self.lines: dict[tuple[Process, Process], Line] = {}
        names = [*("a", "b", "c")[: rng.randint(1, 3)], *(["static"] if rng.random() < 0.4 else [])]
        self.pace = 0.5
        self.clients: list[Client] = []
        self.world.after(2.0, lambda: self.clients.extend(Client(self, name) for name in names))  # type: ignore[arg-type]
        self.moved: Counter[str] = Counter()
        self.given_back: tuple[float, set[str]] = -math.inf, set()
        """When the group was given back last, and its members then."""
        self.every_s = rng.uniform(0.4, 3.0)

    def fresh(self) -> int:
        self._fresh += 1
        return self._fresh

    def say(self, what: str) -> None:
        self.story.append(f"{self.world.now - 1_000:7.3f} {what}")

    def kind(self) -> GroupKind | None:
        """What is recorded."""
        found = read_kinds(self.server_store, [GROUP]).get(GROUP)
        return found.kind if found is not None else None

    # --- requests ----------------------------------------------------------------------------------------------------

    def deliver(
        self, client: Client, frame: bytes, told: asyncio.Future[bytes], check: Callable[[Any], None] | None
    ) -> None:
        """Sends a request to the presumed coordinator, or to any instance."""
        log = self.offsets_log if self.kind() in {None, GroupKind.NATIVE} else self.log
        guess = log.leader if self.calm or self.rng.random() < 0.8 else self.rng.choice(BROKERS)
        front, process = self.fronts[guess], client.process
        if self.kind() is None:
            front = self.fronts[self.log.leader]
        if self.net.loses():
            return
        line = self.lines.setdefault((process, front.process), Line("kgo"))

        async def handle() -> None:
            line.sent_more()
            before = self.kind()
            found = await front.coordinator.answer(frame, line)
            if isinstance(found, PassedOn):
                found = await self._passed_on(front, frame, found)
            if not self.net.loses():
                self._look(client, before, frame, found)
                self.world.after(self.net.takes_s(), lambda: process.call_soon(tell, found))

        def tell(found: bytes) -> None:
            if not told.done():
                told.set_result(found)

        self.world.after(self.net.takes_s(), lambda: front.process.start(handle))

    async def _passed_on(self, front: Front, frame: bytes, passed: PassedOn) -> bytes:
        try:
            found = await self.at_broker(front, front.broker, frame)
        finally:
            passed.end()
        if passed.change is None:
            return found
        body = passed.change(found[4:], int.from_bytes(frame[2:4], "big"))
        return len(body).to_bytes(4, "big") + body

    async def at_broker(self, front: Front, broker: int, frame: bytes) -> bytes:
        """Asks a broker. If it dies, or the connection is lost, there is no answer."""
        there, told = self.brokers[broker], front.process.create_future()
        line = self.lines.setdefault((front.process, there.process), Line("kgo"))

        async def answered() -> None:
            found = await there.coordinator.answer(frame, line)
            if not self.net.loses():
                self.world.after(self.net.takes_s(), lambda: front.process.call_soon(tell, found))

        def tell(found: Any) -> None:
            if not told.done():
                told.set_result(found)

        if not self.net.loses():
            self.world.after(self.net.takes_s(), lambda: there.process.start(answered))
        return bytes(await told)

    def _look(self, client: Client, before: GroupKind | None, frame: bytes, found: bytes) -> None:
        """Checks that only one side hands out partitions, and after a give-back, not before all members have heard."""
        key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        form = message("SyncGroupResponse")
        if key != _SYNC or form.decode(found, version, 4 + answer_start(form, version)).error_code:
            return
        at, members = self.given_back
        if self.kind() is not GroupKind.NATIVE or before is not GroupKind.NATIVE:
            return
        if self.world.now - at < SESSION_MS / 1000 - 0.5:
            for other in self.clients:
                alive = not (other.process.killed or other.process.frozen)
                if other is not client and alive and other.member_id in members - self.left:
                    self.judge.breaks(f"{client.name} was given partitions that {other.name} still has")

    # --- moves and faults --------------------------------------------------------------------------------------------

    def run(self) -> None:
        world, start = self.world, self.world.now
        world.after(4.0, self._move_group)
        world.after(6.0, self._fault)
        self._run(start + TURMOIL_S)
        self._end_all()
        self._run(world.now + CALM_S)
        self._at_rest()

    def _run(self, until: float) -> None:
        self.world.run(until, lambda: bool(self.judge.broken))
        if self.judge.broken:
            raise InvariantBroken(self.judge.broken)

    def _move_group(self) -> None:
        if self.calm:
            return
        self.world.after(self.rng.uniform(0.5, 4.0), self._move_group)
        front = self.fronts[self.log.leader]
        if HERE in front.manager.terms:
            front.process.start(lambda: self._moved(front))

    async def _moved(self, front: Front) -> None:
        kind = front.kinds.of(GROUP)
        verbs = {GroupKind.NATIVE: "take_over", GroupKind.CLIENT_ASSIGNED: "give_back"}
        if kind not in verbs:
            return
        verb = verbs[kind]
        try:
            await getattr(front.coordinator.moves, verb)(GROUP)
        except MoveRefused as reason:
            self.say(f"{verb} refused: {reason}")
            self.moved["refused"] += 1
        else:
            self.say(f"{verb} done")
            self.moved[verb] += 1

    def _fault(self) -> None:
        if self.calm:
            return
        self.world.after(self.rng.expovariate(1 / self.every_s), self._fault)
        if self.kinds:
            kind = self.rng.choice(self.kinds)
            self.say(kind)
            getattr(self, f"_{kind.replace('-', '_')}")()

    def _kill(self) -> None:
        broker = self.rng.choice([self.log.leader, *BROKERS])
        front = self.fronts[broker]
        front.process.killed = True
        self.world.after(_SESSION_S, lambda: self.registry.end(front))
        self.world.after(self.rng.uniform(0.0, 3.0), lambda: self._restart(broker))

    def _restart(self, broker: int) -> None:
        if self.fronts[broker].process.killed:
            self.fronts[broker] = Front(self, broker)
            self.registry.register(self.fronts[broker])

    def _freeze(self) -> None:
        process = self.fronts[self.rng.choice([self.log.leader, *BROKERS])].process
        if not (process.frozen or process.killed):
            process.freeze()
            self.world.after(self.rng.uniform(0.01, 6.0), process.thaw)

    def _deaf(self) -> None:
        """An instance loses its session, and serves its clients by what it knows."""
        front = self.fronts[self.rng.choice(BROKERS)]
        front.deaf, front.kinds._is_current = True, False
        self.world.after(_SESSION_S, lambda: self.registry.end(front) if front.deaf else None)
        self.world.after(self.rng.uniform(0.5, 8.0), lambda: self._hears(front))

    def _hears(self, front: Front) -> None:
        front.deaf = False
        if not front.process.killed:
            self.registry.register(front)

    def _move(self) -> None:
        self.log.move(self.rng.choice(BROKERS))

    def _offsets_move(self) -> None:
        self.offsets_log.move(self.rng.choice(BROKERS))

    def _broker_kill(self) -> None:
        broker = self.offsets_log.leader
        self.brokers[broker].process.killed = True
        self.offsets_log.move(self.rng.choice([one for one in BROKERS if one != broker]))
        self.brokers[broker] = Broker(self, broker)

    def _loss(self) -> None:
        self.net.loss = self.rng.choice([0.0, 0.02, 0.1])

    def _zookeeper(self) -> None:
        self.net.without_zookeeper = True
        self.world.after(self.rng.uniform(0.05, 3.0), self._zookeeper_answers)

    def _zookeeper_answers(self) -> None:
        self.net.without_zookeeper = False

    def _client_kill(self) -> None:
        client = self.rng.choice(self.clients)
        client.process.killed = True
        self.world.after(self.rng.uniform(0.0, 4.0), lambda: client.start() if client.process.killed else None)

    def _end_all(self) -> None:
        self.say("calm")
        self.calm = True
        self.net.loss, self.net.without_zookeeper = 0.0, False
        for broker, front in list(self.fronts.items()):
            self._hears(front)
            if front.process.frozen:
                front.process.thaw()
            self._restart(broker)
        for client in self.clients:
            if client.process.killed:
                client.start()

    def _at_rest(self) -> None:
        """No move is stuck, and everybody commits."""
        record = read_kinds(self.server_store, [GROUP]).get(GROUP)
        if record is not None and (record.moving or (record.kind is GroupKind.NATIVE and record.fenced)):
            raise InvariantBroken(f"the move has not ended: {record}")
        for client in self.clients:
            newest = max((one.acknowledged_at or 0.0 for one in client.commits), default=0.0)
            if self.world.now - newest > 15.0:
                raise InvariantBroken(f"{client.name} has not committed for {self.world.now - newest:.1f} s")
        processes = [*(one.process for one in self.fronts.values()), *(one.process for one in self.clients)]
        for failure in (one for process in processes for one in process.failures() if not _is_ordinary(one)):
            raise InvariantBroken(failure)


@contextmanager
def simulated(history: MoveHistory) -> Iterator[None]:
    """Makes batches travel as values, and calls to ZooKeeper take time. Their requests and answers may be lost."""

    async def to_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        front = history.front_of[asyncio.get_running_loop()]
        await asyncio.sleep(front.net.takes_s())
        front.ask_zookeeper("request")
        found = function(*arguments, **named)
        await asyncio.sleep(front.net.takes_s())
        front.ask_zookeeper("answer")
        return found

    real = asyncio.to_thread
    gc.collect()  # what a coroutine of an earlier history does when it is collected must not happen in this one
    gc.disable()
    asyncio.to_thread = to_thread  # type: ignore[assignment]
    try:
        with simulated_wire():
            yield
    finally:
        asyncio.to_thread = real
        gc.enable()


def play(seed: int, faults: frozenset[str] = FAULTS) -> tuple[str, MoveHistory]:
    """Returns the violation ("" if there is none) and the history."""
    history = MoveHistory(seed, faults)
    with simulated(history):
        try:
            history.run()
        except InvariantBroken as broken:
            history.say(str(broken))
            return str(broken), history
    return "", history


def _is_ordinary(failure: str) -> bool:
    """Whether it is the outcome of a request that was lost or refused, which somebody has waited for."""
    return any(f": {one}(" in failure for one in ("BrokerError", "Moving", "NotSent", "StoreUnavailable"))
