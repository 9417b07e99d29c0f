"""Injects further faults for groups of stock clients: the groups log moves or accepts no writes, or all of ZooKeeper is
unreachable.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

from kafka_coord.errors import KafkaCoordError, NodeExists, StoreUnavailable
from kafka_coord.grouplog.term import TOPIC
from tests.chaos.clients.log_settings import set_of_log
from tests.chaos.faults import Faults
from tests.chaos.journal import Kind, Phase
from tests.chaos.schedule import Planned

_REASSIGN, _ELECT = "/admin/reassign_partitions", "/admin/preferred_replica_election"
"""The znodes with orders for Kafka's controller, which deletes a znode when it has executed the order."""
_EXECUTED_S = 20.0
_MIN_IN_SYNC, _MORE_THAN_THERE_ARE = "2", "4"
_UNDONE_WITHIN_S = 60.0


class ClientsFaults(Faults):
    """:class:`Faults` with the faults of this module."""

    def _operate(self, planned: Planned) -> None:
        match planned.kind:
            case Kind.LEADERS_MOVED:
                self._move_leaders(planned.pick)
            case Kind.FEW_REPLICAS:
                self._refuse_writes(planned.duration_s)
            case Kind.FREEZE if planned.role == "ensemble":
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
        with self.zookeeper_frozen() as frozen:
            if frozen:
                time.sleep(lasts_s)
            else:
                self.skipped += 1
