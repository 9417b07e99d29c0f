"""Runs an instance: the real coordinator and its terms, on a simulated broker connection and a simulated znode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.errors import BrokerError, KafkaCoordError, StoreUnavailable
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.wire.batches import LogRecord
from tests.simulation.groups.log import Sent, SimulatedPartition
from tests.simulation.groups.loop import Process, World
from tests.simulation.groups.topics import SimulatedTopic, SimulatedTopics

LOOK_S = 0.5
RETENTION_MS = 20_000
EXPIRY_CHECK_S = 4.0
WALL_START_MS = 1_700_000_000_000
LIMITS = GroupLimits(min_session_timeout_s=1.0, initial_rebalance_delay_s=0)


def sent(
    records: Sequence[LogRecord], *, now_ms: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> Sent:
    """Replaces :func:`~kafka_coord.wire.batches.encode_batch`. Passes a batch on without encoding."""
    return Sent(tuple(records), producer_id, producer_epoch, base_sequence)


class Network:
    """The network between all processes. Some messages take long, and some are lost with their connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loss = self.delay = 0.0

    def loses(self) -> bool:
        return self.world.rng.random() < self.loss

    def takes_s(self) -> float:
        rng = self.world.rng
        return rng.uniform(0.5, 12.0) if rng.random() < self.delay else rng.uniform(0.0002, 0.004)


class Connection:
    """Replaces :class:`~kafka_coord.grouplog.broker.BrokerConnection`. Messages sent before it is closed may still
    arrive."""

    def __init__(self, instance: Instance) -> None:
        self._instance, self._net = instance, instance.net
        self._loop = instance.process
        self.closed = False
        self._waiting: set[asyncio.Future[Any]] = set()

    async def ask(self, name: str, version: int, value: Any, timeout_s: float = 30.0) -> Any:
        if self.closed:
            raise BrokerError(f"{name}: the connection was closed")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(answer)
        lost, lost_back = self._net.loses(), self._net.loses()

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
            self.close()
            raise BrokerError(f"{name}: no answer") from None
        finally:
            self._waiting.discard(answer)

    def _told(self, found: Any, answer: asyncio.Future[Any]) -> None:
        def tell() -> None:
            if answer.done():
                return
            if found is None:
                self.close()
            else:
                answer.set_result(found)

        self._loop.call_soon(tell)

    def _at_broker(self, name: str, value: Any, reply: Any) -> None:
        log, broker = self._instance.log, self._instance.broker
        if name == "Produce":
            log.produce(broker, value.topic_data[0].partition_data[0].records, reply)
        elif name == "ListOffsets":
            reply(log.first_offset(broker))
        else:
            reply(log.fetch(broker, value.topics[0].partitions[0].fetch_offset))

    def close(self) -> None:
        self.closed = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(BrokerError("the connection was lost"))


class Znode:
    """The znode whose version is the term."""

    def __init__(self, version: int) -> None:
        self.version = version


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
    ) -> None:
        self.world, self.net, self.log, self.znode, self.broker = world, net, log, znode, broker
        self.process = Process(world, f"instance-{broker}")
        known = SimpleNamespace(learn=_learn, partitions_of=lambda _topic: 1 << 31)
        numbers = iter(range(1 << 30))
        self.manager = GroupMetadataManager(
            lambda: Connection(self),  # type: ignore[arg-type, return-value]
            self._claim,
            str(broker),
            LIMITS,
            self._term_ended,
            lambda: WALL_START_MS + int(world.now * 1000),
            SimulatedTopics(topic, self.process),
        )
        self.coordinator = GroupCoordinator(
            self.manager,
            known,  # type: ignore[arg-type]
            lambda: f"{broker}.{int(world.now * 1000)}.{next(numbers)}",
        )
        self.process.start(self._follow)
        self.process.start(self._expire)

    def _term_ended(self, partition: int) -> None:
        self.coordinator.end_partition(partition)

    async def _claim(self, partition: int) -> int:
        """Compares and sets in two requests, whose answers may be lost."""
        await asyncio.sleep(self.net.takes_s())
        seen = self.znode.version
        await asyncio.sleep(self.net.takes_s())
        if self.net.loses():
            raise StoreUnavailable("the request was lost")
        if self.znode.version != seen:
            raise StoreUnavailable("somebody was faster")
        self.znode.version = won = seen + 1
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
            if not leads:
                self.manager.resign(partition, "its broker no longer leads it")
            elif partition not in self.manager.terms:
                try:
                    await self.manager.load_groups_for_partition(partition)
                    self.coordinator.begin_partition(partition)
                except KafkaCoordError:
                    pass
            await asyncio.sleep(LOOK_S)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            await self.manager.delete_expired_consumer_offsets(RETENTION_MS)


async def _learn(_topics: Any) -> None:
    return
