"""Injects further faults for groups of stock clients: the groups log moves or accepts no writes, or all of ZooKeeper is
unreachable.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafka_coord.errors import KafkaCoordError, NodeExists, StoreUnavailable
from kafka_coord.grouplog.term import TOPIC
from tests.chaos.faults import Faults
from tests.chaos.journal import Kind, Phase
from tests.chaos.schedule import Planned

_REASSIGN, _ELECT = "/admin/reassign_partitions", "/admin/preferred_replica_election"
"""The znodes with orders for Kafka's controller, which deletes a znode when it has executed the order."""
_EXECUTED_S = 20.0
_MIN_IN_SYNC, _MORE_THAN_THERE_ARE = "2", "4"
_UNDONE_WITHIN_S = 60.0
SMALL_SEGMENTS = {
    "segment.bytes": "65536",
    "segment.ms": "5000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    "min.compaction.lag.ms": "10000",
}
"""Compacts the groups log continuously, but not before the run's reader has read it."""


class ClientsFaults(Faults):
    """:class:`Faults` with the faults of this module."""

    def _operate(self, planned: Planned) -> None:
        match planned.kind:
            case Kind.LEADERS_MOVED:
                self._move_leaders(planned.pick)
            case Kind.FEW_REPLICAS:
                self._refuse_writes(planned.duration_s)
            case Kind.FREEZE:
                self._take_zookeeper_away(planned.duration_s)
            case _:
                super()._operate(planned)

    def _move_leaders(self, pick: float) -> None:
        """Makes another broker the preferred leader of a third of the log's partitions, and has it elected."""
        store = self._testbed.store
        try:
            replicas = json.loads(store.get(f"/brokers/topics/{TOPIC}").data)["partitions"]
            chosen = random.Random(pick).sample(sorted(replicas, key=int), len(replicas) // 3)
            turned = [(int(n), [*replicas[n][1:], replicas[n][0]]) for n in chosen]
            self._order(_REASSIGN, [{"topic": TOPIC, "partition": n, "replicas": order} for n, order in turned])
            self._order(_ELECT, [{"topic": TOPIC, "partition": n} for n, _ in turned])
        except (StoreUnavailable, NodeExists):
            self.skipped += 1  # ZooKeeper is unreachable, or the controller has not executed an earlier order
            return
        self.note(Kind.LEADERS_MOVED, "log", partitions=sorted(n for n, _ in turned))

    def _order(self, path: str, partitions: list[dict[str, Any]]) -> None:
        """Gives the controller an order, and waits until it has executed it."""
        store = self._testbed.store
        store.create(path, json.dumps({"version": 1, "partitions": partitions}).encode())
        deadline = time.monotonic() + _EXECUTED_S
        while store.exists(path) is not None and time.monotonic() < deadline:
            time.sleep(0.1)

    def _refuse_writes(self, lasts_s: float) -> None:
        """Causes NOT_ENOUGH_REPLICAS, as a full disk does."""
        if not self._require(_MORE_THAN_THERE_ARE):
            self.skipped += 1
            return
        self.note(Kind.FEW_REPLICAS, "log", Phase.BEGIN)
        time.sleep(lasts_s)
        deadline = time.monotonic() + _UNDONE_WITHIN_S
        while not self._require(_MIN_IN_SYNC):
            if time.monotonic() >= deadline:
                raise KafkaCoordError(f"{TOPIC} still refuses writes, because min.insync.replicas could not be reset")
            time.sleep(0.5)
        self.note(Kind.FEW_REPLICAS, "log", Phase.END)

    def _require(self, in_sync: str) -> bool:
        return set_of_log(self._testbed.bootstrap, {"min.insync.replicas": in_sync})

    def _take_zookeeper_away(self, lasts_s: float) -> None:
        """Freezes all ZooKeeper servers at once."""
        testbed = self._testbed
        with testbed.lock:
            servers = [actor for actor in testbed.actors if actor.role == "zookeeper"]
            if any(actor.busy for actor in servers):
                self.skipped += 1
                return
            for actor in servers:
                actor.busy = True
        try:
            for actor in servers:
                actor.process.pause()
            self.note(Kind.FREEZE, "zookeeper:*", Phase.BEGIN)
            time.sleep(lasts_s)
        finally:
            self.note(Kind.FREEZE, "zookeeper:*", Phase.END)
            for actor in servers:
                actor.process.resume()
                actor.busy = False


def set_of_log(bootstrap: str, settings: dict[str, str]) -> bool:
    """Changes these settings of the groups log's topic. Tells whether the brokers accepted them."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (asked,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)], request_timeout=10.0
    ).values()
    try:
        asked.result(15.0)
    except (KafkaException, TimeoutError):
        return False
    return True
