"""Measures the lag of all groups periodically, for the metrics of the elected instance."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from prometheus_client.core import GaugeMetricFamily, Metric

from kafka_coord.errors import KafkaCoordError
from kafka_coord.groups.client_assigned import ONLY_IN_KAFKA
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.group import AgeBy, GroupRow
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.lag import LagService
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.monitor.exposition import gauge, labelled
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. ``at`` is the time when it ended (monotonic seconds), and ``took_s`` is its duration. ``rows``
    are the groups with the largest lag. ``left_out`` counts all other groups. ``incomplete`` is set if some groups
    could not be read."""

    at: float
    took_s: float = 0.0
    rows: tuple[GroupRow, ...] = ()
    left_out: int = 0
    incomplete: bool = False


class LagSampler:
    """Measures the lag on a thread and a ZooKeeper session of its own, so that the coordinator's requests are not held
    up. Measures only while ``leads`` returns true, so that only one instance reports the lag. Reports at most ``most``
    groups, to limit the number of series, and adds their samples to ``service`` for the dashboard."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        properties: Mapping[str, str],
        leads: Callable[[], bool],
        *,
        most: int,
        interval_s: float,
        service: LagService | None = None,
    ) -> None:
        self._open_store = open_store
        self._properties = properties
        self._leads = leads
        self._most = most
        self._interval_s = interval_s
        self._service = service
        self._sample: Sample | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of the last sample, or nothing if there is none yet or this instance does not lead. While
        measurements fail, the lags are left out, and the sample's age grows."""
        sample = self._sample
        if sample is None or not self._leads():
            return

        def known(field: str) -> dict[tuple[str, str], int]:
            found = {(row.group, str(row.kind)): getattr(row, field) for row in sample.rows}
            return {group: value for group, value in found.items() if isinstance(value, int)}

        yield labelled(
            GaugeMetricFamily,
            "group_lag_records",
            "Records in the logs that the group has not committed yet, for the groups with the largest lag "
            "(serve.lag_metrics_groups).",
            "group kind",
            known("lag"),
        )
        yield labelled(
            GaugeMetricFamily,
            "group_gone_records",
            "Records that were deleted before the group read them, for the same groups.",
            "group kind",
            known("gone"),
        )
        yield labelled(
            GaugeMetricFamily,
            "group_lag_seconds",
            "Age of the oldest record that the group has not committed yet, for the same groups, by what it follows "
            "from: the record's timestamp, or the rate at which the log grew. No series while it is unknown.",
            "group kind by",
            {
                (row.group, str(row.kind), str(row.lag_s_by or AgeBy.TIMESTAMP)): row.lag_s
                for row in sample.rows
                if isinstance(row.lag_s, float)
            },
        )
        yield labelled(
            GaugeMetricFamily,
            "group_lag_unknown_partitions",
            "The group's partitions whose lag is unknown, because nothing is committed or the broker did not answer.",
            "group kind",
            known("lag_unknown"),
        )
        yield gauge(
            "group_lag_left_out_groups", "Groups without a series, because other groups lag more.", sample.left_out
        )
        yield gauge(
            "group_lag_incomplete",
            "Whether some groups, or their offsets, could not be read. kafka-coord groups list --lag names them.",
            sample.incomplete,
        )
        yield gauge(
            "group_lag_age_seconds",
            "Time since the last measurement ended. A value far above serve.lag_metrics_interval_ms means that the "
            "current measurement is slow, or that measurements fail.",
            time.monotonic() - sample.at,
        )
        yield gauge(
            "group_lag_measurement_seconds",
            "Duration of the last measurement. If it approaches serve.lag_metrics_interval_ms, measure less often.",
            sample.took_s,
        )

    def _run(self) -> None:
        store: Store | None = None
        while not self._stopping.is_set():
            leads = self._leads()
            if leads:
                try:
                    store = store or self._open_store()
                    self._sample = measure_lags(store, self._properties, most=self._most, service=self._service)
                except KafkaCoordError as error:
                    self._unmeasured()
                    log.warning("cannot measure the lag of the groups: %s", error, extra={"event": "lag_unmeasured"})
                except Exception:  # an answer that nobody thought of must not end the thread
                    self._unmeasured()
                    log.exception("cannot measure the lag of the groups", extra={"event": "lag_unmeasured"})
            else:
                self._sample = None
            self._stopping.wait(self._interval_s if leads else min(1.0, self._interval_s))
        if store is not None:
            with suppress(KafkaCoordError):
                store.close()

    def _unmeasured(self) -> None:
        last = self._sample or Sample(time.monotonic())
        self._sample = replace(last, rows=(), left_out=0, incomplete=True)


def measure_lags(
    store: Store, properties: Mapping[str, str], *, most: int, service: LagService | None = None
) -> Sample:
    """Measures and returns the lag of all groups. Adds a sample of the ``most`` groups with the largest lag to
    ``service``. Raises :class:`KafkaCoordError`."""
    began = time.monotonic()
    reader = OffsetReader(bootstrap_servers(store, properties), properties)
    directory = GroupDirectory(AskedInstances(store, properties))
    try:
        listed = (service or LagService()).listed(directory, reader.ranges, most=most, sampled=service is not None)
    finally:
        reader.close()
    now, rows = time.monotonic(), listed.rows
    incomplete = any(not note.endswith(ONLY_IN_KAFKA) for note in listed.missing)  # those have no lag
    return Sample(now, now - began, rows[:most], max(0, len(rows) - most), incomplete)
