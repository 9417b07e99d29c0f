"""Many handovers under load: no duplicates, no gaps, and offsets never go back (docs/design.md, invariants 5 and 8)."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from kafka_coord import Consumer, ConsumerClosed, TopicPartition
from kafka_coord.dev.cluster.kafka import KafkaCluster
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.waiting import beside, eventually

pytestmark = pytest.mark.kafka


class Worker:
    """Reads one consumer in batches of varying size, on a thread."""

    def __init__(self, consumer: Consumer, seed: int) -> None:
        self.consumer = consumer
        self.seen: list[tuple[TopicPartition, int]] = []
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                if self._random.random() < 0.5:
                    record = self.consumer.poll(0.2)
                    batch = [record] if record is not None else []
                else:
                    batch = self.consumer.consume(self._random.choice([2, 50, 1_000]), 0.2)
                self.seen += [(TopicPartition(r.topic, r.partition), r.offset) for r in batch]
        except ConsumerClosed:
            return

    def stop(self) -> None:
        self.consumer.close()
        self._thread.join(20)


@contextmanager
def producing(cluster: KafkaCluster, partitions: list[TopicPartition]) -> Iterator[dict[TopicPartition, int]]:
    """Writes to all partitions in turn until the block ends. Yields the number of records by partition."""
    exactly = {"enable.idempotence": True}  # a request that a busy broker answers late is sent again
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 2, "log_level": 0, **exactly})
    written = dict.fromkeys(partitions, 0)

    def run(over: threading.Event) -> None:
        for partition in itertools.cycle(partitions):
            if over.is_set():
                return
            producer.produce(partition.topic, b"x" * 50, partition=partition.partition)
            written[partition] += 1
            if partition == partitions[0]:
                producer.poll(0)
                over.wait(0.002)

    try:
        with beside(run):
            yield written
    finally:
        assert producer.flush(90) == 0


def test_every_record_is_delivered_exactly_once_while_partitions_move_under_load(
    kafka_cluster: KafkaCluster,
    make_consumer: Callable[..., Consumer],
    make_topic: Callable[..., str],
    coordinator: HandCoordinator,
) -> None:
    chosen = random.Random(7)
    topic = make_topic(6)
    partitions = partitions_of(topic, *range(6))
    workers = [Worker(make_consumer(topics=[topic], auto_commit_interval_ms=20), seed) for seed in range(3)]
    owner = {partition: chosen.choice(workers) for partition in partitions}
    for partition, worker in owner.items():
        coordinator.run_start(worker.consumer.consumer_id, [partition])
    committed = dict.fromkeys(partitions, 0)

    with producing(kafka_cluster, partitions) as written:
        for _ in range(40):
            moving = chosen.sample(partitions, chosen.randint(1, 3))
            stops = [coordinator.stop(owner[p].consumer.consumer_id, [p]) for p in moving]
            for stop in stops:
                coordinator.await_acknowledged(stop)
            for partition in moving:
                offset = max(0, coordinator.offset(partition))
                assert offset >= committed[partition]
                committed[partition] = offset
                owner[partition] = chosen.choice(workers)
            starts = [coordinator.start(owner[p].consumer.consumer_id, [p]) for p in moving]
            for start in starts:
                coordinator.await_acknowledged(start)
    total = sum(written.values())
    eventually(lambda: sum(len(worker.seen) for worker in workers) >= total, within_s=30)
    for worker in workers:
        worker.stop()

    seen = sorted(item for worker in workers for item in worker.seen)
    assert seen == sorted((partition, offset) for partition in partitions for offset in range(written[partition]))
    assert {partition: coordinator.offset(partition) for partition in partitions} == written
