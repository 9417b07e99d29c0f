"""Runs seeded histories in which a group is taken over and given back, again and again, under faults.

Both sides run the real coordinator of client-assigned groups: the brokers on a log of their own, and the instances as
they are, with the real moves, and kinds in a simulated ZooKeeper.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, TypeVar
from zlib import crc32

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import GroupMetadata
from kafka_coord.errors import BrokerError, KafkaCoordError, NoNode, StoreError, StoreUnavailable
from kafka_coord.frontends.kafka.clients import with_length
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.frontends.kafka.instances import Node
from kafka_coord.frontends.kafka.managed.group import ManagedGroups
from kafka_coord.frontends.kafka.moving import MoveRefused
from kafka_coord.frontends.kafka.native import FENCE, Kinds, NativeGroups, PassedOn
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import Claimed
from kafka_coord.model import GroupKind
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import GroupRecord, decode_kinds, read_kinds
from kafka_coord.zk.store import GetData
from kafka_coord.zk.store import Node as Data
from tests.frontends.kafka.callers import NoManagedGroups
from tests.simulation.groups.clients import GROUP, REBALANCE_MS, SESSION_MS, TOPIC, Elsewhere
from tests.simulation.groups.history import BROKERS, simulated_wire, violation
from tests.simulation.groups.instances import FIRST_TREE, LIMITS, LOOK_S, Instance, Network, Registry, Znode
from tests.simulation.groups.judge import InvariantBroken
from tests.simulation.groups.line import Line
from tests.simulation.groups.log import SimulatedPartition
from tests.simulation.groups.loop import Process, World
from tests.simulation.groups.planted import patched
from tests.simulation.groups.readers import Reader, ReadJudge
from tests.simulation.groups.topics import SimulatedTopic
from tests.simulation.store import SimulatedStore, connected_store

_History = TypeVar("_History", bound="MoveHistory")
FAULTS = frozenset({
    "kill", "freeze", "deaf", "move", "offsets-move", "broker-kill", "loss", "slow", "zookeeper", "client-kill",
    "stranger", "namesake", "unheard",
})  # fmt: skip
TURMOIL_S, CALM_S = 20.0, 24.0
HERE = partition_of(GROUP)
_SESSION_S = 1.5
_JOIN_S = 10.0
_LONGEST_S = 70.0
PATIENT_MS = 60_000
"""How long a rebalance may take in some histories: much longer than a session."""
_LATE_S, _PATIENT = 12.0, 0.3
_LIMITS = dataclasses.replace(LIMITS, least_session_s=SESSION_MS / 1000, max_session_timeout_s=_LONGEST_S)
"""Every term waits for each member as long as its session, as Kafka does, and for one whose timeouts nobody knows as
long as any may have."""
_SERVED_WITHIN_S = 6.0
"""How long a reader may be without an answer at the end, in seconds."""
_FEW = 4
"""If at most this many kinds of faults are allowed, all of them happen."""
_VERBS = {
    GroupKind.NATIVE: "take_over",
    GroupKind.CLIENT_ASSIGNED: "give_back",
    GroupKind.MANAGED: "give_back_consumers",
}


class ServedZnode(Znode):
    """The znode of the partition, which fences what its terms write in the simulated ZooKeeper."""

    def __init__(self, store: SimulatedStore) -> None:
        super().__init__(0, FIRST_TREE)
        self._store = store

    def claim(self, broker: int | None, began: float, newest: int) -> Claimed:
        self._store.set(layout.log_partition(HERE), b"", -1)
        return super().claim(broker, began, newest)


class Broker(Instance):
    """A broker's own coordinator, which is reliable as long as it lives."""

    def __init__(self, history: MoveHistory, broker: int) -> None:
        registry = Registry(history.world)
        where = history.offsets_log, history.offsets_znode, broker, history.topic, registry
        super().__init__(history.world, history.inside, *where)
        self.manager.limits = dataclasses.replace(_LIMITS, initial_rebalance_delay_s=history.delay_s)
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
        self.history, self.deaf_until = history, -math.inf
        super().__init__(
            history.world, history.net, history.log, history.znode, broker, history.topic, history.registry
        )
        self.manager.limits = _LIMITS
        self.store = self._connected()
        self.kinds = Kinds(self.store)
        self._read_state = -1, -1
        self.known.newest_version = _newest  # type: ignore[method-assign, assignment]
        self.known.native_coordinator = self._native_coordinator  # type: ignore[method-assign, assignment]
        self.coordinator = GroupCoordinator(
            self.manager,
            self.known,
            self._managed(),
            lambda: f"{broker}.{history.fresh()}",
            native=Beside(self),
            left_to_brokers=lambda _name: history.is_native_first,
        )
        history.front_of[self.process] = self
        self.process.start(self._hear)

    def _connected(self) -> SimulatedStore:
        return connected_store(self.history.server)

    def _managed(self) -> ManagedGroups:
        return NoManagedGroups()

    @property
    def deaf(self) -> bool:
        return self.world.now < self.deaf_until

    def ask_zookeeper(self, what: str) -> None:
        if self.deaf or self.net.without_zookeeper or self.net.loses():
            raise StoreUnavailable(f"the {what} was lost")

    async def _native_coordinator(self, _group: str) -> Node:
        broker = self.history.offsets_log.leader
        if self.net.loss and self.world.rng.random() < 0.1:
            broker = self.world.rng.choice(BROKERS)
        return broker, str(broker), broker

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
        state = (node.stat.czxid, node.stat.version) if isinstance(node, Data) else (self.history.deletions, -1)
        if state != self._read_state:
            self._read_state = state
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


class MoveHistory:
    """``faults`` are the possible kinds."""

    left: set[str]
    front: type[Front] = Front
    broker: type[Broker] = Broker
    reader: type[Reader] = Reader
    turmoil_s, calm_s = TURMOIL_S, CALM_S
    deletions = 0
    """How often somebody has deleted the znode of the kinds."""

    def __init__(self, seed: int, faults: frozenset[str] = FAULTS) -> None:
        self.seed, self.world = seed, World(seed)
        self.rng = rng = self.world.rng
        self.story: list[str] = []
        self.calm, self.left = False, set()
        few = len(faults) <= _FEW
        self.kinds = [kind for kind in sorted(faults) if rng.random() < 0.5 or few]
        self.net, self.inside, self.slow = Network(self.world), Network(self.world), 0.0
        self.log = SimulatedPartition(self.world, HERE, BROKERS)
        self.offsets_log = SimulatedPartition(self.world, HERE, BROKERS)
        self.offsets_log.leader = rng.choice(BROKERS)
        self.topic = SimulatedTopic(self.world, seed)
        self.delay_s = rng.choice([0.0, 3.0])
        """How long a broker delays the first generation of a group: Kafka does so for 3 s, unless it is configured."""
        self.rebalance_ms = PATIENT_MS if Random(seed).random() < _PATIENT else REBALANCE_MS
        self.judge = ReadJudge(self)
        self.server_store: SimulatedStore = connected_store()
        self.server = self.server_store.server
        self.znode, self.offsets_znode = ServedZnode(self.server_store), Znode(0, FIRST_TREE)
        self.registry = Registry(self.world)
        self.server_store.ensure_path(layout.log_partition(HERE))
        self._fresh, self.is_native_first = 0, rng.random() < 0.7
        self.front_of: dict[object, Front] = {}
        self.brokers = {broker: self.broker(self, broker) for broker in BROKERS}
        self.fronts = {broker: self.front(self, broker) for broker in BROKERS}
        for front in self.fronts.values():
            self.registry.register(front)
        self._waiting: dict[Process, dict[asyncio.Future[bytes], Callable[[], None]]] = defaultdict(dict)
        """What is asked of a process, and how the asker notices that it has died."""
        self.pace = 0.5
        self.readers: list[Reader] = []
        self.world.after(1.0, self._begin)
        self.moved: Counter[str] = Counter()
        self._thrown_out: list[tuple[float, str, str]] = []
        self._taken_over: tuple[float, float, frozenset[str]] = -math.inf, -math.inf, frozenset()
        """When the last take-over began, and until when its members must not notice anything."""
        self.every_s = rng.uniform(1.5, 6.0)
        self._moving: Process | None = None
        """Who is moving the group."""
        self._was_fenced = False

    def _begin(self) -> None:
        if self.rng.random() < 0.15:
            self.readers += [self.reader(self, f"own-{at}", own=at) for at in range(self.rng.randint(1, 2))]
            return
        names = [*("a", "b", "c")[: self.rng.randint(1, 3)], *(["static"] if self.rng.random() < 0.4 else [])]
        self.readers += [self.reader(self, name) for name in names]

    def fresh(self) -> int:
        self._fresh += 1
        return self._fresh

    def say(self, what: str) -> None:
        self.story.append(f"{self.world.now - 1_000:7.3f} {what}")

    def record(self) -> GroupRecord | None:
        return read_kinds(self.server_store, [GROUP]).get(GROUP)

    # --- requests ----------------------------------------------------------------------------------------------------

    def deliver(self, reader: Reader, frame: bytes, told: asyncio.Future[bytes], _check: object) -> None:
        """Sends a request to the coordinator that the reader has found, as long as it is not told of another."""
        process = reader.process
        if reader.server is None:
            reader.server = self._found_by(reader)
        server = reader.server
        if server not in reader.lines:
            reader.lines[server] = Line("kgo")
            reader.lines[server].number = self.fresh()
        line = reader.lines[server]

        def lost() -> None:
            process.call_soon(_fail, told, Elsewhere())

        async def handle() -> None:
            line.sent_more()
            found: bytes | PassedOn | None
            try:
                found = await line.handling(server.answer(frame, line))
                if isinstance(found, PassedOn):
                    found = await self._passed_on(server, frame, found)
            except BrokerError:
                found = None
            waiting.pop(told, None)
            if found is None or self.net.loses():
                self.world.after(self.net.takes_s(), lost)
            else:
                self.world.after(self.net.takes_s(), lambda: process.call_soon(_tell, told, found))

        if server.process.killed or self.net.loses():
            self.world.after(self.net.takes_s(), lost)
            return
        waiting = self._waiting[server.process]
        waiting[told] = lost
        self.world.after(self.net.takes_s(), lambda: server.process.start(handle))

    def _found_by(self, reader: Reader) -> Instance:
        """Returns the coordinator that an instance names, by what it knows."""
        if reader.plain:
            return self.brokers[self.offsets_log.leader]
        is_native = self.fronts[self.rng.choice(BROKERS)].kinds.are(GroupKind.NATIVE, GROUP)
        return self.fronts[(self.offsets_log if is_native else self.log).leader]

    async def _passed_on(self, front: Instance, frame: bytes, passed: PassedOn) -> bytes:
        try:
            found = await self.at_broker(front, front.broker, frame)
            return found if passed.change is None else with_length(await passed.change(found[4:]))
        finally:
            passed.end()

    async def at_broker(self, front: Instance, broker: int, frame: bytes) -> bytes:
        """Asks a broker. Raises :class:`BrokerError` if it dies, or if the connection is lost."""
        there, told, line = self.brokers[broker], front.process.create_future(), Line("kgo")
        waiting = self._waiting[there.process]

        def lost() -> None:
            front.process.call_soon(_fail, told, BrokerError("the connection was lost"))

        async def answered() -> None:
            found = await there.answer(frame, line)
            assert isinstance(found, bytes)
            waiting.pop(told, None)
            if self.net.loses():
                lost()
            else:
                self.world.after(self._takes_s(), lambda: front.process.call_soon(_tell, told, found))

        if self.net.loses():
            self.world.after(self.net.takes_s(), lost)
        else:
            waiting[told] = lost
            self.world.after(self._takes_s(), lambda: there.process.start(answered))
        return bytes(await told)

    def _takes_s(self) -> float:
        """How long a message between an instance and a broker takes."""
        return self.rng.uniform(0.05, 1.5) if self.rng.random() < self.slow else self.net.takes_s()

    def _die(self, process: Process) -> None:
        process.killed = True
        for lost in self._waiting.pop(process, {}).values():
            self.world.after(self.net.takes_s(), lost)

    # --- what readers notice -----------------------------------------------------------------------------------------

    def thrown_out(self, reader: Reader, error: Error) -> None:
        """A member is told that it is none. While a take-over succeeds, no instance that hears of it may say so."""
        if not isinstance(reader.server, Front) or reader.server.deaf_until > self.world.now - 1.0:
            return
        self._thrown_out.append((self.world.now, reader.member_id, f"{reader.name} was told {error.name}"))
        began, until, members = self._taken_over
        record = self.record()
        if self.world.now < until and record is not None and record.kind is not GroupKind.NATIVE:
            self._look_at_thrown_out(began, members)

    def _look_at_thrown_out(self, began: float, members: frozenset[str]) -> None:
        for at, member_id, what in self._thrown_out:
            if at >= began and member_id in members - self.left:
                self.judge.breaks(f"{what} at {at - 1_000:.3f} during a take-over")

    def given_up(self, reader: Reader) -> None:
        if reader.plain:
            reader.process.killed = True
        else:
            self.judge.breaks(f"{reader.name} was told INCONSISTENT_GROUP_PROTOCOL, and ends")

    # --- moves and faults --------------------------------------------------------------------------------------------

    def run(self) -> None:
        world, start = self.world, self.world.now
        world.after(3.0, self._move_group)
        world.after(5.0, self._fault)
        self._run(start + self.turmoil_s)
        self._end_all()
        self._run(world.now + self.calm_s)
        if self._waits_long():
            self._run(world.now + _LONGEST_S)
        self._at_rest()

    def _waits_long(self) -> bool:
        """Whether the group may wait for a member whose timeouts nobody knows."""
        record, machine = self.record(), self.fronts[self.log.leader].manager.group(GROUP)
        members = machine.metadata.members.values() if machine is not None else ()
        is_unknown = any(_LONGEST_S in {one.session_timeout_s, one.rebalance_timeout_s} for one in members)
        return is_unknown or (record is not None and record.is_returning)

    def _run(self, until: float) -> None:
        self.world.run(until, lambda: bool(self.judge.broken))
        if self.judge.broken:
            raise InvariantBroken(self.judge.broken)

    def _move_group(self) -> None:
        if self.calm:
            return
        self.world.after(self.rng.uniform(0.2, 1.5), self._move_group)
        front = self.fronts[self.log.leader]
        is_moving = self._moving is not None and not self._moving.killed
        if HERE in front.manager.terms and (not is_moving or self.rng.random() < 0.3):
            front.process.start(lambda: self._moved(front))

    async def _moved(self, front: Front) -> None:
        record, began = front.kinds.record_of(GROUP), self.world.now
        if record is None or not _is_at_rest(record):
            return
        verb = _VERBS[record.kind]
        self._moving = front.process
        if self.kinds and self.rng.random() < 0.5:
            self.world.after(self.rng.uniform(0.0, 0.4), self._strike)
        try:
            told = await self._ask_to_move(front, verb)
        except MoveRefused as reason:
            self.say(f"{verb} refused: {reason}")
            self.moved["refused"] += 1
            return
        finally:
            self._moving = None
        self.say(f"{verb} done: {told}")
        self.moved[verb] += 1
        self._was_fenced = True
        if verb == "take_over":
            self._took_over(front, began)

    async def _ask_to_move(self, front: Front, verb: str) -> str:
        told: str = await getattr(front.coordinator.moves, verb)(GROUP)
        return told

    def _took_over(self, front: Front, began: float) -> None:
        group = front.manager.group(GROUP)
        members = frozenset(group.metadata.members) if group is not None else frozenset()
        self._taken_over = began, self.world.now + 1.0, members
        self._look_at_thrown_out(began, members)

    def _fault(self) -> None:
        if not self.calm:
            self.world.after(self.rng.expovariate(1 / self.every_s), self._fault)
            self._strike()

    def _strike(self) -> None:
        if self.kinds and not self.calm:
            kind = self.rng.choice(self.kinds)
            self.say(kind)
            getattr(self, f"_{kind.replace('-', '_')}")()

    def _kill(self) -> None:
        broker = self.rng.choice([self.log.leader, *BROKERS])
        front = self.fronts[broker]
        self._die(front.process)
        self.world.after(_SESSION_S, lambda: self.registry.end(front))
        self.world.after(self.rng.uniform(0.0, 3.0), lambda: self._restart(broker))

    def _restart(self, broker: int) -> None:
        if self.fronts[broker].process.killed:
            self.fronts[broker] = self.front(self, broker)
            self.registry.register(self.fronts[broker])

    def _freeze(self) -> None:
        process = self.fronts[self.rng.choice([self.log.leader, *BROKERS])].process
        if not (process.frozen or process.killed):
            process.freeze()
            self.world.after(self.rng.uniform(0.01, 4.0), process.thaw)

    def _deaf(self) -> None:
        """An instance loses its session, and serves its clients by what it knows."""
        self._deafen(self.fronts[self.rng.choice(BROKERS)], self.rng.uniform(0.5, 8.0))

    def _unheard(self) -> None:
        """The group's own coordinator moves beside an instance that has no session: the other ones know its members."""
        leaders = {self.log.leader, self.offsets_log.leader}
        broker = self.rng.choice([one for one in BROKERS if one not in leaders])
        self._deafen(self.fronts[broker], self.rng.uniform(4.0, 12.0))
        self._offsets_move_to(broker)

    def _deafen(self, front: Front, for_s: float) -> None:
        front.deaf_until, front.kinds._is_current = math.inf, False
        self.world.after(_SESSION_S, lambda: self.registry.end(front) if front.deaf else None)
        self.world.after(for_s, lambda: self._hears(front))

    def _hears(self, front: Front) -> None:
        front.deaf_until = min(front.deaf_until, self.world.now)
        if not front.process.killed:
            self.registry.register(front)

    def _move(self) -> None:
        self.log.move(self.rng.choice(BROKERS))

    def _offsets_move(self) -> None:
        self._offsets_move_to(self.rng.choice(BROKERS))

    def _offsets_move_to(self, broker: int) -> None:
        self.offsets_log.move(broker)

    def _broker_kill(self) -> None:
        broker = self.offsets_log.leader
        self._die(self.brokers[broker].process)
        self.offsets_log.move(self.rng.choice([one for one in BROKERS if one != broker]))
        self.brokers[broker] = self.broker(self, broker)

    def _loss(self) -> None:
        self.net.loss = self.rng.choice([0.02, 0.1])
        self.world.after(self.rng.uniform(0.1, 3.0), lambda: setattr(self.net, "loss", 0.0))

    def _slow(self) -> None:
        self.slow = self.rng.choice([0.05, 0.3])
        self.world.after(self.rng.uniform(0.5, 4.0), lambda: setattr(self, "slow", 0.0))

    def _zookeeper(self) -> None:
        self.net.without_zookeeper = True
        self.world.after(self.rng.uniform(0.05, 3.0), self._zookeeper_answers)

    def _zookeeper_answers(self) -> None:
        self.net.without_zookeeper = False

    def _client_kill(self) -> None:
        reader = self.rng.choice(self.readers)
        self._client_dies(reader)
        if not reader.plain:
            at_least_s = 0.0 if reader.own is None else 2.0  # whatever it has sent is over by then
            self.world.after(self.rng.uniform(at_least_s, 4.0), lambda: self._client_returns(reader))

    def _client_dies(self, reader: Reader) -> None:
        reader.process.killed = True
        reader.disconnect()

    def _client_returns(self, reader: Reader) -> None:
        if reader.process.killed:
            reader.start()

    def _stranger(self) -> None:
        """A client behind the brokers' plain listener comes, and goes again. Before its first move, nothing keeps it
        out of the namesake of a group that was never native."""
        record = self.record()
        if record is not None and record.kind is not GroupKind.NATIVE and not self._was_fenced:
            return
        stranger = self.reader(self, f"stranger-{self.fresh()}", plain=True)
        self.readers.append(stranger)
        self.world.after(self.rng.uniform(0.3, 3.0), lambda: self._client_dies(stranger))

    def _namesake(self) -> None:
        """A client comes that cannot be told from another one."""
        if any(one.own is not None for one in self.readers):  # they may commit only while the group has no members
            return
        namesake = self.reader(self, f"namesake-{self.fresh()}")
        namesake.client_id = self.rng.choice(self.readers).client_id
        self.readers.append(namesake)

    def _end_all(self) -> None:
        self.say("calm")
        self.calm = True
        self.net.loss, self.slow, self.net.without_zookeeper = 0.0, 0.0, False
        for broker, front in list(self.fronts.items()):
            self._hears(front)
            if front.process.frozen:
                front.process.thaw()
            self._restart(broker)
        for reader in self.readers:
            if reader.plain:
                self._client_dies(reader)
            else:
                self._client_returns(reader)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _at_rest(self) -> None:
        """No move is stuck, one side alone has the group, and everybody reads."""
        record = self.record()
        if record is not None and not _is_at_rest(record):
            raise InvariantBroken(f"the move has not ended: {record}")
        theirs, fences = self.brokers[self.offsets_log.leader].manager.group(GROUP), self._fences()
        others = len(theirs.metadata.members) - len(fences) if theirs is not None else 0
        is_native = record is not None and record.kind is GroupKind.NATIVE
        if is_native and (fences or self.fronts[self.log.leader].manager.has(GROUP)):
            raise InvariantBroken(f"the group is native, and the instances have left {fences or 'theirs'}")
        if record is not None and record.fenced and (others or not fences):
            raise InvariantBroken(f"the group is the instances', and the brokers' has {others} members {fences}")
        self._all_served()

    def _fences(self) -> set[str]:
        theirs = self.brokers[self.offsets_log.leader].manager.group(GROUP)
        return set(theirs.metadata.static_members) & {FENCE} if theirs is not None else set()

    def _unserved(self) -> Iterator[str]:
        for reader in self.readers:
            last_at = reader.heard_at if reader.is_member and not reader.positions else reader.committed_at
            if not reader.plain and self.world.now - last_at > _SERVED_WITHIN_S:
                yield f"{reader.name} was not served for {self.world.now - last_at:.1f} s"

    def _all_served(self) -> None:
        for broken in self._unserved():
            raise InvariantBroken(broken)
        processes = [*(one.process for one in self.fronts.values()), *(one.process for one in self.readers)]
        for failure in (one for process in processes for one in process.failures()):
            raise InvariantBroken(failure)


class DeletedHistory(MoveHistory):
    """Somebody also deletes the znode of the kinds, with what is below it, again and again."""

    def _strike(self) -> None:
        if self.calm or self.rng.random() < 0.5:
            super()._strike()
            return
        self.say("deleted")
        self.deletions += 1
        store, path = self.fronts[BROKERS[0]].store, layout.kinds(HERE)
        with suppress(NoNode):
            for name in store.children(path):
                store.delete(f"{path}/{name}")
            store.delete(path)


class ChangedHistory(MoveHistory):
    """Without faults: a member leaves while its group is taken over, and joins again on the same connections. Then the
    group is given back, which takes ``returned_s``."""

    returned_s = math.inf

    def __init__(self, seed: int) -> None:
        super().__init__(seed, frozenset())
        self.is_native_first = self.calm = True

    def _begin(self) -> None:
        self.readers += [self.reader(self, name) for name in ("a", "b")]

    def run(self) -> None:
        self._run(self.world.now + _JOIN_S)
        self._moves()
        self._changes()
        self._moves()
        began = self.world.now
        while (record := self.record()) is not None and record.is_returning and self.world.now < began + CALM_S:
            self._run(self.world.now + 0.1)
        self.returned_s = self.world.now - began
        self._run(self.world.now + self.calm_s)
        self._at_rest()

    def _changes(self) -> None:
        self.readers[0].is_leaving = True
        self._run(self.world.now + _JOIN_S)

    def _moves(self) -> Front:
        front, before = self.fronts[self.log.leader], self.moved.total()
        front.process.start(lambda: self._moved(front))
        while self.moved.total() == before:
            self._run(self.world.now + 0.1)
        return front


class MissingHistory(ChangedHistory):
    """Without faults: a member has died when its group is given back. With ``rests_s``, it joins so much later."""

    def __init__(self, seed: int, rests_s: float = 0.0, *, is_static: bool = False) -> None:
        super().__init__(seed)
        self._rests_s, self._is_static, self.rebalance_ms = rests_s, is_static, PATIENT_MS

    def _begin(self) -> None:
        self.readers += [self.reader(self, name) for name in ("static" if self._is_static else "a", "b")]

    def _changes(self) -> None:
        if self._rests_s:
            self.readers[0].rests_s = self._rests_s
        else:
            self._die(self.readers.pop(0).process)


class StrangerHistory(ChangedHistory):
    """A client comes behind the brokers' plain listener while the fence enters, which takes a while."""

    def _takes_s(self) -> float:
        return self.rng.uniform(0.005, 0.025) if self.slow else super()._takes_s()

    def run(self) -> None:
        self._run(self.world.now + _JOIN_S)
        front = self.fronts[self.log.leader]
        front.process.start(lambda: self._moved(front))
        while not (self.moved or self._fences()):
            self._run(self.world.now + 0.001)
        self.slow = 1.0
        self.readers.append(self.reader(self, "stranger", plain=True))
        self._run(self.world.now + SESSION_MS / 1000)
        self.slow = 0.0
        self._run(self.world.now + self.calm_s)
        self._at_rest()


class HeldHistory(ChangedHistory):
    """Without faults: a group that was taken over is changed for longer than any session lasts."""

    def run(self) -> None:
        self._run(self.world.now + _JOIN_S)
        front = self._moves()
        before = self._member_ids(front)
        groups = front.coordinator.groups
        with groups.change(GROUP):
            with groups.change(GROUP):
                self._run(self.world.now + 0.1)
            self._run(self.world.now + 2 * SESSION_MS / 1000)
            if not groups.is_changing(GROUP, or_writing=False):
                raise InvariantBroken("one change of the group has ended another one")
        if self._member_ids(front) != before:
            raise InvariantBroken("a session has ended while nobody could be heard")
        self._run(self.world.now + self.calm_s)
        self._at_rest()

    def _member_ids(self, front: Front) -> set[str]:
        machine = front.manager.group(GROUP)
        return set(machine.metadata.members) if machine is not None else set()


class NewerHistory(ChangedHistory):
    """An instance that has no session hears alone of the newest generation of members that all instances know."""

    def run(self) -> None:
        self._run(self.world.now + _JOIN_S)
        broker = next(one for one in BROKERS if one not in {self.log.leader, self.offsets_log.leader})
        self._deafen(self.fronts[broker], math.inf)
        self._offsets_move_to(broker)
        self._run(self.world.now + _SESSION_S)
        self._client_dies(self.readers.pop(0))
        self._run(self.world.now + 2 * SESSION_MS / 1000)
        self._moves()
        self._run(self.world.now + _SESSION_S)
        self._hears(self.fronts[broker])
        while not self.moved["take_over"]:
            self._moves()
        self._run(self.world.now + self.calm_s)
        self._at_rest()


class LateHistory(ChangedHistory):
    """Without faults: what an instance sends to remove an offset from the brokers' group arrives after another instance
    has given the group back, and its client has committed again."""

    def _begin(self) -> None:
        self._deposed: Front | None = None
        self._is_late = False
        self.readers.append(self.reader(self, "own-0", own=0))

    async def at_broker(self, front: Instance, broker: int, frame: bytes) -> bytes:
        name, _ = LOCAL[int.from_bytes(frame[:2], "big")]
        self._is_late = front is self._deposed and name in {"OffsetCommit", "OffsetDelete"}
        return await super().at_broker(front, broker, frame)

    def _takes_s(self) -> float:
        return _LATE_S if self._is_late else super()._takes_s()

    def run(self) -> None:
        self._run(self.world.now + _JOIN_S)
        front, reader = self._moves(), self.readers[0]
        self._client_dies(reader)
        front.process.start(lambda: front.manager.delete_offsets(GROUP, [(TOPIC, 0)]))
        self._run(self.world.now + 1.0)
        self._deposed = front
        front.process.start(lambda: self._moved(front))
        while not self._is_late:
            self._run(self.world.now + 0.1)
        self._is_late = False
        self._die(front.process)
        self.log.move(next(one for one in BROKERS if one != front.broker))
        self._run(self.world.now + 1.0)
        self._restart(front.broker)  # the brokers' group may be coordinated beside it
        while not self.moved["give_back"]:
            self._moves()
        self.judge.committed.clear()
        self._client_returns(reader)
        self._run(self.world.now + _LATE_S + self.calm_s)
        self._at_rest()


def _is_at_rest(record: GroupRecord) -> bool:
    return not (record.moving or record.is_returning)


def _fail(told: asyncio.Future[bytes], error: Exception) -> None:
    if not told.done():
        told.set_exception(error)


def _tell(told: asyncio.Future[bytes], found: bytes) -> None:
    if not told.done():
        told.set_result(found)


@contextmanager
def simulated(history: MoveHistory) -> Iterator[None]:
    """Makes batches travel as values, and calls to ZooKeeper take time. Their requests and answers may be lost. When a
    leader leaves, any other member leads, as the first one of Kafka's hash map does."""

    async def to_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        front = history.front_of[asyncio.get_running_loop()]
        await asyncio.sleep(front.net.takes_s())
        front.ask_zookeeper("request")
        found = function(*arguments, **named)
        await asyncio.sleep(front.net.takes_s())
        front.ask_zookeeper("answer")
        return found

    remove = GroupMetadata.remove

    def removed(group: GroupMetadata, member_id: str) -> None:
        leads = group.leader_id == member_id
        remove(group, member_id)
        if leads:
            group.leader_id = min(group.members, key=lambda one: crc32(one.encode()), default=None)

    real = asyncio.to_thread
    gc.collect()  # what a coroutine of an earlier history does when it is collected must not happen in this one
    gc.disable()
    asyncio.to_thread = to_thread  # type: ignore[assignment]
    try:
        with simulated_wire(), patched((GroupMetadata, "remove", removed)):
            yield
    finally:
        asyncio.to_thread = real
        gc.enable()


def play(seed: int, faults: frozenset[str] = FAULTS) -> tuple[str, MoveHistory]:
    """Returns the violation ("" if there is none) and the history."""
    return played(MoveHistory(seed, faults))


def played(history: _History) -> tuple[str, _History]:
    with simulated(history):
        return violation(history), history
