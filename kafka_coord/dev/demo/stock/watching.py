"""Watches a running group of stock clients, by asking its coordinator over Kafka's protocol."""

from __future__ import annotations

from dataclasses import replace

from kafka_coord.dev.demo.journal import now_ms
from kafka_coord.dev.demo.timeline import Reign
from kafka_coord.dev.demo.watching import GroupNow, Watcher
from kafka_coord.errors import BrokerError
from kafka_coord.groups.client_assigned import described, read_client_group
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.group import GroupDescription, LogRanges
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.model import CoordinatorInfo, Decision


class StockWatcher(Watcher):
    """A :class:`~kafka_coord.dev.demo.watching.Watcher` that names consumers by their ``client.id``. An *epoch* is one
    instance's time as the group's coordinator, counted from 1.
    """

    _ended_ms = 0

    def ended(self) -> None:
        """Records that the coordinator was killed. The next instance that answers begins a new epoch, even beside the
        same broker.
        """
        with self._lock:
            self._ended_ms = now_ms()
            self._view = replace(self._view, coordinator=None)

    def now(self) -> GroupNow:
        """Reads the group. It is not stable while its coordinator does not answer."""
        try:
            return super().now()
        except BrokerError as error:
            return GroupNow(stable=False, words=f"not known: {error}")

    def history(self) -> tuple[Decision, ...]:
        """Returns no decisions: in these groups, a member assigns the partitions."""
        return ()

    def _described(self, log_ranges: LogRanges | None) -> GroupDescription:
        topics = read_cluster(self._store).topics
        group = read_client_group(AskedInstances(self._store, {}), self._group)
        return described([group], topics, log_ranges)[0]

    def _look_at_coordinator(self) -> None:
        """Does nothing, because every sample already includes the coordinator."""

    def _take_sample(self) -> None:
        asked_ms = now_ms()
        super()._take_sample()
        with self._lock:
            found = self._view.group
            if found is None or found.coordinator is None or asked_ms <= self._ended_ms:
                return
            self._count_reign(found.coordinator, now_ms())
            reign = self._reigns[-1]
            info = CoordinatorInfo(reign.broker_id, reign.epoch, str(reign.from_ms))
            self._view = replace(self._view, coordinator=info)

    def _count_reign(self, broker_id: int, at_ms: int) -> None:
        before = self._reigns[-1] if self._reigns else None
        if before is None or before.broker_id != broker_id or self._view.coordinator is None:
            self._reigns.append(Reign(broker_id, before.epoch + 1 if before else 1, at_ms, at_ms))
        else:
            self._reigns[-1] = replace(before, to_ms=at_ms)
