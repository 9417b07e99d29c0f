"""A term of an elected coordinator that keeps the mirror, on a simulated ZooKeeper."""

from __future__ import annotations

from typing import Generic, TypeVar

from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.mirroring import Asker, MetadataMirror, MetadataOptions
from kafka_coord.model import TopicInfo
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import decode_topic
from kafka_coord.zk.root import ClusterRecord, Source, read_cluster_record
from kafka_coord.zk.store import Check
from tests.simulation.scheduler import VirtualClock
from tests.simulation.store import SimulatedStore, connected_store

A = TypeVar("A", bound=Asker)
TREE = ClusterRecord("t1", 1, Source.ZOOKEEPER, 1)
BOOTSTRAP = {"": [("one", 9092)]}


class Elected(Generic[A]):
    """A term of an elected coordinator on a simulated ZooKeeper."""

    def __init__(self, answers: A, setting: str = "auto", store: SimulatedStore | None = None) -> None:
        self.clock = VirtualClock()
        self.answers = answers
        self.store = store or connected_store(clock=self.clock)
        if store is None:
            self.store.ensure_path(layout.COORDINATOR_EPOCH)
            self.store.create(layout.CLUSTER, TREE.to_bytes())
        self.options = MetadataOptions(lambda: answers, setting, BOOTSTRAP, led="log")
        self.begin()

    def begin(self) -> None:
        stat = self.store.exists(layout.COORDINATOR_EPOCH)
        assert stat is not None
        executor = Executor(self.store, Check(layout.COORDINATOR_EPOCH, stat.version))
        self.mirror = MetadataMirror(self.store, executor, self.options)

    def step(self, seconds: int = 1) -> None:
        """Raises what the mirror raises."""
        for _ in range(seconds):
            self.deliver()
            try:
                self.mirror.step()
            finally:
                self.deliver()
                self.clock.now += 1.0

    def deliver(self) -> None:
        while self.store.has_notification():
            self.store.deliver()

    def source(self) -> Source | None:
        record = read_cluster_record(self.store)
        return record.source if record is not None else None

    def decoded(self, name: str) -> TopicInfo:
        return decode_topic(name, self.store.get(layout.broker_topic(name)), {})
