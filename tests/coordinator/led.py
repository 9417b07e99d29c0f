"""The handler of an elected instance, with a simulated ZooKeeper. The test steps it."""

from __future__ import annotations

from kafka_coord.channel.operations import register_ops
from kafka_coord.coordinator.assignors import built_in_assignors
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.decision_writer import ActiveLeadership
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.handler import RebalanceRequestHandler
from kafka_coord.coordinator.memory import GroupRegistry, TopicCatalog
from kafka_coord.coordinator.pending_requests import PendingRequests
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.dev.bench.group import plain_member
from kafka_coord.model import TopicInfo
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check
from tests.simulation.scheduler import VirtualClock
from tests.simulation.store import Quiet, connected_store


class Led:
    """A handler that the test steps. ``leads`` tells it whether it leads. ``around`` is called with every request to
    ZooKeeper."""

    def __init__(self, topic: str, partitions: int, around: Quiet | None = None) -> None:
        self.clock = VirtualClock()
        self.topic = topic
        self.store = connected_store(clock=self.clock, around=around)
        for path in (*layout.PERSISTENT_ROOTS, layout.COORDINATOR_EPOCH):
            self.store.ensure_path(path)
        self.queue = RebalanceRequestQueue(self.clock)
        self.registry = GroupRegistry()
        self.catalog = TopicCatalog()
        self.catalog.put(TopicInfo(topic, frozenset(range(partitions)), "id-1"))
        self.leads = True
        self.requests = PendingRequests(self.store)
        self.handler = RebalanceRequestHandler(
            self.store,
            ActiveLeadership(1, Executor(self.store, Check(layout.COORDINATOR_EPOCH)), lambda: self.leads),
            self.queue,
            self.registry,
            self.catalog,
            self.requests,
            built_in_assignors(),
            CoordinatorOptions(),
        )

    def join(self, group: str, consumer: str) -> None:
        """Registers the consumer and tells the handler."""
        for path in (layout.ids(group), layout.channel(group, consumer)):
            self.store.ensure_path(path)
        value = plain_member(group, self.topic, consumer).registration_value(self.store)
        self.store.multi(register_ops(group, consumer, value))
        self.queue.request(group)
