"""Runs an instance: the real coordinator and its terms, on a simulated broker connection and a simulated znode."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.errors import BrokerError, KafkaCoordError, StoreUnavailable, TreeRefused
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.frontends.kafka.instances import CLAIMANT_WITHIN_S, Instances
from kafka_coord.frontends.kafka.native import PassedOn
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.grouplog.term import Claimed, next_term
from kafka_coord.kafka.connection import BrokerConnection, NotSent
from kafka_coord.model.offsets import Retention
from kafka_coord.wire.batches import LogRecord
from kafka_coord.zk.root import ClusterRecord, Source
from tests.frontends.kafka.callers import NoManagedGroups, NoNativeGroups
from tests.simulation.groups.line import Line
from tests.simulation.groups.log import Sent, SimulatedPartition
from tests.simulation.groups.loop import Process, World
from tests.simulation.groups.topics import SimulatedTopic, SimulatedTopics

LOOK_S = 0.5
_NOTICED_AFTER_S = 0.002
"""How long it takes until a process knows that the broker has closed its connection."""
REGISTRY_READ_S = 0.1
RETENTION_MS = 20_000
EXPIRY_CHECK_S = 4.0
WALL_START_MS = 1_700_000_000_000
FIRST_TREE = ClusterRecord("t1", 1, Source.ZOOKEEPER, 0)
LIMITS = GroupLimits(min_session_timeout_s=1.0, initial_rebalance_delay_s=0, noted_after_s=0.5, least_session_s=1.5)


def sent(
    records: Sequence[LogRecord], *, now_ms: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> Sent:
    """Replaces :func:`~kafka_coord.wire.batches.encode_batch`. Passes a batch on without encoding."""
    return Sent(tuple(one._replace(timestamp_ms=now_ms) for one in records), producer_id, producer_epoch, base_sequence)


class Network:
    """The network between all processes. Some messages take long, and some are lost with their connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loss = self.delay = 0.0
        self.idle_s = math.inf
        """After how long brokers close idle connections."""
        self.lifetime_s = math.inf
        """After how long connections are replaced, because their authentication expires."""
        self.without_zookeeper = False
        self.crossed_at: list[float] = []
        """When a request was sent on a connection that the broker had just closed."""

    def loses(self) -> bool:
        return self.world.rng.random() < self.loss

    def takes_s(self) -> float:
        rng = self.world.rng
        return rng.uniform(0.5, 12.0) if rng.random() < self.delay else rng.uniform(0.0002, 0.004)


class Connection:
    """Replaces :class:`~kafka_coord.kafka.connection.BrokerConnection`. Messages sent before it is closed may still
    arrive. The broker may have closed it, and the process does not know yet."""

    def __init__(self, instance: Instance) -> None:
        self._instance, self._net = instance, instance.net
        self._loop = instance.process
        self.closed = self._lost = False
        self._opened_at = self._used_at = -math.inf
        self._waiting: set[asyncio.Future[Any]] = set()

    @property
    def is_open(self) -> bool:
        if self.closed or self._lost or self._opened_at < 0:
            return False
        now, net = self._net.world.now, self._net
        noticed_s = net.idle_s + _NOTICED_AFTER_S
        if not self._waiting and (now - self._used_at > noticed_s or now - self._opened_at > net.lifetime_s):
            self._lost = True
        return not self._lost

    async def open(self) -> None:
        """Connecting costs a round trip, and may fail."""
        await asyncio.sleep(self._net.takes_s())
        if self.closed or self._net.loses():
            raise NotSent("the broker cannot be reached")
        self._lost = False
        self._opened_at = self._used_at = self._net.world.now

    async def ask(self, name: str, version: int, value: Any, timeout_s: float = 30.0, *, reopens: bool = True) -> Any:
        if not self.is_open:
            if not reopens:
                raise NotSent(f"{name}: the connection is closed")
            await self.open()
        closed_by_broker = not self._waiting and self._net.world.now - self._used_at > self._net.idle_s
        if closed_by_broker:
            self._net.crossed_at.append(self._net.world.now)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(answer)
        lost, lost_back = self._net.loses() or closed_by_broker, self._net.loses()

        def arrive() -> None:
            if lost:
                self._told(None, answer)
            else:
                reply = lambda found: self._net.world.after(  # noqa: E731
                    self._net.takes_s(), lambda: self._told(None if lost_back else found, answer)
                )
                self._at_broker(name, value, reply)

        self._net.world.after(self._net.takes_s(), arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self._lose()
            raise BrokerError(f"{name}: no answer") from None
        finally:
            self._waiting.discard(answer)
            self._used_at = self._net.world.now

    def _told(self, found: Any, answer: asyncio.Future[Any]) -> None:
        def tell() -> None:
            if answer.done():
                return
            if found is None:
                self._lose()
            else:
                answer.set_result(found)

        self._loop.call_soon(tell)

    def _at_broker(self, name: str, value: Any, reply: Any) -> None:
        log, broker = self._instance.log, self._instance.broker
        if name == "Produce":
            log.produce(broker, value.topic_data[0].partition_data[0].records, reply)
        elif name == "ListOffsets":
            reply(log.offset(broker, value.topics[0].partitions[0].timestamp))
        else:
            reply(log.fetch(broker, value.topics[0].partitions[0].fetch_offset))

    def close(self) -> None:
        self.closed = True
        self._lose()

    def _lose(self) -> None:
        self._lost = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(BrokerError("the connection was lost"))


class Znode:
    """The znode of the partition, in the tree that ``record`` describes. ``czxid`` tells it from one that was deleted,
    and ``term`` is the number that it holds."""

    def __init__(self, version: int, record: ClusterRecord, term: int = 0) -> None:
        self.version, self.czxid, self.term, self.record = version, 1, term, record
        self.claimant: int | None = None
        """The broker of the instance that claimed it last."""
        self.claim_began = -math.inf
        """When that instance sent its claim."""

    def claim(self, broker: int | None, began: float, newest: int) -> Claimed:
        self.term = next_term(max(self.term, self.version, newest))
        self.version, self.claimant, self.claim_began = self.version + 1, broker, began
        return Claimed(self.term, self.version, self.czxid)

    def make_anew(self, version: int) -> None:
        """Deletes it and creates it again, with so many changes since."""
        self.version, self.term = version, 0
        self.czxid += 1
        self.claimant = None

    def is_as(self, claimed: Claimed) -> bool:
        return (self.version, self.czxid) == (claimed.version, claimed.czxid)


class Registry:
    """The registrations of the instances in ZooKeeper, by broker. That of a killed instance lasts for a session
    timeout."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.alive: dict[int, Instance] = {}
        self.ended_at: dict[int, float] = {}
        """When a broker's last registration ended, while there is no other."""

    def register(self, instance: Instance) -> None:
        self.alive[instance.broker] = instance
        self.ended_at.pop(instance.broker, None)

    def end(self, instance: Instance) -> None:
        """Ends the registration, if it is still this instance's."""
        if self.alive.get(instance.broker) is instance:
            del self.alive[instance.broker]
            self.ended_at[instance.broker] = self._world.now

    def addresses(self) -> dict[int, tuple[str, int]]:
        return {broker: (str(broker), broker) for broker in self.alive}


class KnownInstances(Instances):
    """What an instance knows of the others. Reads the registry every :data:`REGISTRY_READ_S` seconds."""

    def __init__(
        self,
        registry: Registry,
        broker: int,
        clock: Callable[[], float],
        claimant: Callable[[int], Awaitable[int | None]],
    ) -> None:
        super().__init__(_no_connection, broker, lambda: self.seen, claimant=claimant)
        self._registry, self._clock = registry, clock
        self.seen: dict[int, tuple[str, int]] = {}
        self.read_at = 0.0

    async def learn(self, highest: Mapping[str, int]) -> None:
        """There is no topic to learn about."""

    def partitions_of(self, _topic: str) -> int:
        return 1 << 31

    def told(self, log: SimulatedPartition) -> None:
        """The broker has answered a Metadata request."""
        self.leaders, self._leaders_at = {log.partition: log.leader}, math.inf  # it is told often enough
        self._advertised = {broker: (broker, str(broker), broker) for broker in log.brokers}

    async def follow(self) -> None:
        while True:
            self.seen, self.read_at = self._registry.addresses(), self._clock()
            await asyncio.sleep(REGISTRY_READ_S)


class Instance:
    """One process beside one broker."""

    def __init__(
        self,
        world: World,
        net: Network,
        log: SimulatedPartition,
        znode: Znode,
        broker: int,
        topic: SimulatedTopic,
        registry: Registry,
    ) -> None:
        self.world, self.net, self.log, self.znode, self.broker = world, net, log, znode, broker
        self.process = Process(world, f"instance-{broker}")
        self.terms_ended: list[tuple[float, float]] = []
        """When each term ended, and when the claim of another instance that ended it was sent, or infinity."""
        self.known = known = KnownInstances(registry, broker, lambda: world.now, self._claimant)
        numbers = iter(range(1 << 30))
        self.manager = GroupMetadataManager(
            lambda: Connection(self),  # type: ignore[arg-type, return-value]
            self._join,
            self._claim,
            self._check,
            str(broker),
            LIMITS,
            self._term_ended,
            lambda: WALL_START_MS + int(world.now * 1000),
            SimulatedTopics(topic, self.process),
        )
        self.coordinator = GroupCoordinator(
            self.manager,
            known,
            NoManagedGroups(),
            lambda: f"{broker}.{int(world.now * 1000)}.{next(numbers)}",
            native=NoNativeGroups(),
        )
        self.process.start(self._follow)
        self.process.start(self._expire)
        self.process.start(known.follow)

    async def answer(self, frame: bytes, line: Line) -> bytes | PassedOn:
        return await self.coordinator.answer(frame, line)

    def _term_ended(self, partition: int) -> None:
        is_claimed = self.znode.claimant not in {None, self.broker}
        self.terms_ended.append((self.world.now, self.znode.claim_began if is_claimed else math.inf))
        self.coordinator.client_assigned.end_partition(partition)

    async def _check(self, _partition: int, claimed: Claimed) -> bool:
        await asyncio.sleep(self.net.takes_s())
        if self.net.loses() or self.net.without_zookeeper:
            raise StoreUnavailable("the request was lost")
        is_current = self.znode.is_as(claimed)
        await asyncio.sleep(self.net.takes_s())
        return is_current

    async def _claimant(self, _partition: int) -> int | None:
        """Reads who claimed the znode last, as :class:`~kafka_coord.frontends.kafka.instances.Claimants` does."""
        try:
            async with asyncio.timeout(CLAIMANT_WITHIN_S):
                return await self._read_claimant()
        except TimeoutError:
            return None

    async def _read_claimant(self) -> int | None:
        await asyncio.sleep(self.net.takes_s())
        if self.net.loses() or self.net.without_zookeeper:
            return None
        claimant = self.znode.claimant
        await asyncio.sleep(self.net.takes_s())
        return claimant

    async def _join(self) -> ClusterRecord:
        await asyncio.sleep(self.net.takes_s())
        if self.net.loses() or self.net.without_zookeeper:
            raise StoreUnavailable("the request was lost")
        return self.znode.record

    async def _claim(self, _partition: int, newest: int) -> Claimed:
        """Compares and sets in two requests, whose answers may be lost."""
        began = self.world.now
        await asyncio.sleep(self.net.takes_s())
        if self.net.without_zookeeper:
            raise StoreUnavailable("there is no connection")
        seen = self.znode.version
        await asyncio.sleep(self.net.takes_s())
        if self.net.loses():
            raise StoreUnavailable("the request was lost")
        if self.znode.version != seen:
            raise StoreUnavailable("somebody was faster")
        won = self.znode.claim(self.broker, began, newest)
        await asyncio.sleep(self.net.takes_s())
        if self.net.loses():
            raise StoreUnavailable("the answer was lost")
        return won

    async def _follow(self) -> None:
        """Claims the partitions that its broker leads and gives up the others, as the listener does."""
        partition = self.log.partition
        while True:
            leads = self.log.leader == self.broker
            await asyncio.sleep(self.net.takes_s())
            self.known.told(self.log)
            if self.known.is_stopping:
                return
            if not leads:
                self.manager.resign(partition, "its broker no longer leads it")
            elif partition not in self.manager.terms:
                try:
                    await self.manager.load_groups_for_partition(partition)
                    self.coordinator.client_assigned.begin_partition(partition)
                except TreeRefused:
                    self.process.killed = True  # as serve ends
                except KafkaCoordError:
                    pass
            await asyncio.sleep(LOOK_S)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            await self.manager.delete_expired_consumer_offsets(Retention(RETENTION_MS))


def _no_connection() -> BrokerConnection:
    raise BrokerError("a simulated instance is told what its broker knows")
