"""Tests of the consumer for asyncio, with real brokers. The test acts as the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafka_coord import AsyncConsumer, ConsumerClosed, ConsumerError, MembershipLost, NoOffset, TopicPartition
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.errors import SettingsError, StoreUnavailable
from kafka_coord.model import NO_OFFSET
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of

pytestmark = pytest.mark.kafka

Make = Callable[..., "AsyncConsumer"]


@pytest.fixture
def make(kafka_cluster: KafkaCluster, group: str) -> Make:
    def make(topic: str, **settings: Any) -> AsyncConsumer:
        settings = {"auto_offset_reset": "earliest", "consumer_id": "c", **settings}
        return AsyncConsumer(kafka_cluster.zookeeper, group=group, topics=[topic], **settings)

    return make


async def started(coordinator: HandCoordinator, *partitions: TopicPartition) -> None:
    await asyncio.to_thread(coordinator.run_start, "c", partitions)


def test_an_async_consumer_reads_commits_and_leaves_like_a_consumer(
    make: Make, make_topic: Callable[..., str], produce: Callable[..., list[bytes]], coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    values = produce(topic, 0, 1_500)
    told = []

    async def on_revoke(partitions: frozenset[TopicPartition]) -> None:
        await asyncio.sleep(0)
        told.append(partitions)

    async def run() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        async with make(topic, on_revoke=on_revoke) as consumer:
            await started(coordinator, partition)
            got = [record.value for record in await consumer.consume(5, 30.0)]
            while len(got) < 10:
                record = await consumer.poll(30.0)
                assert record is not None
                got.append(record.value)
            await consumer.commit()
            assert coordinator.offset(partition) == 10
            assert await asyncio.to_thread(consumer.lag) == {partition: 1_490}
            async for record in consumer:
                got.append(record.value)
                if len(got) == 1_499:
                    break
            assert turns > 3, "other tasks must run although records are always available"
            async for record in consumer:
                got.append(record.value)
                consumer.stop()
            assert got == values
            assert (await consumer.poll(5), consumer.stopped) == (None, True)
        assert (coordinator.offset(partition), told) == (1_500, [frozenset({partition})])
        with pytest.raises(ConsumerClosed):
            await consumer.poll()
        beside.cancel()

    asyncio.run(run())


def test_errors_are_raised_in_the_task_that_reads(
    make: Make, make_topic: Callable[..., str], produce: Callable[..., list[bytes]], coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 3)

    async def run() -> None:
        async with make(topic, auto_offset_reset="error") as consumer:
            waiting = asyncio.create_task(consumer.poll(30.0))
            await asyncio.sleep(0)
            with pytest.raises(ConsumerError, match="another task is reading"):
                await consumer.poll()
            await asyncio.to_thread(coordinator.run_start, "c", {partition: NO_OFFSET})
            with pytest.raises(NoOffset):
                await waiting
            consumer.seek(partition, 1)
            assert len(await consumer.consume(5, 30.0)) == 2
            await asyncio.to_thread(coordinator.evict, "c")
            while not consumer.stats.losses:
                await asyncio.sleep(0.01)
            with pytest.raises(MembershipLost):
                await consumer.commit()

    asyncio.run(run())


def test_close_waits_for_the_record_that_another_task_has_in_hand(
    make: Make, make_topic: Callable[..., str], produce: Callable[..., list[bytes]], coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 3)

    async def run() -> None:
        async with make(topic) as consumer:
            await started(coordinator, partition)
            in_hand, done = asyncio.Event(), asyncio.Event()

            async def work() -> None:
                async for _record in consumer:
                    in_hand.set()
                    await done.wait()

            working = asyncio.create_task(work())
            await in_hand.wait()
            closing = asyncio.create_task(consumer.close(timeout_s=60))
            await asyncio.sleep(0.3)
            assert not closing.done()
            done.set()
            await asyncio.gather(closing, working)
        assert coordinator.offset(partition) == 1

    asyncio.run(run())


def test_calls_before_the_consumer_is_open_raise_an_error() -> None:
    consumer = AsyncConsumer("127.0.0.1:1", group="g", topics=["t"], consumer_id="c")
    assert repr(consumer) == "<AsyncConsumer c of group g: topics t; not open>"
    with pytest.raises(ConsumerError, match="use async with"):
        consumer.assignment()
    with pytest.raises(SettingsError, match="one stream"):
        AsyncConsumer("127.0.0.1:1", group="g", topics={"t": 2})

    async def enter() -> None:
        async with AsyncConsumer("nowhere.invalid:1", group="g", topics=["t"]):
            pass

    with pytest.raises(StoreUnavailable, match=r"cannot resolve nowhere\.invalid"):
        asyncio.run(enter())
