"""Metrics of the listener for Kafka clients, and of the groups log partitions that the instance coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.frontends.kafka.statistics import BOUNDS_S
from kafka_coord.grouplog.term import LogTerm
from kafka_coord.monitor.exposition import PREFIX, counter, gauge


def of_kafka(listener: KafkaListener) -> Iterator[Metric]:
    """Collects the listener's metrics at each scrape."""
    statistics = listener.clients.statistics
    yield gauge("kafka_connections", "Open connections of Kafka clients.", len(listener.clients))
    yield gauge("kafka_kept_bytes", "Half requests and unread answers, of all clients.", listener.clients.kept_bytes)
    yield counter("kafka_accepted_connections", "Accepted connections of Kafka clients.", statistics.accepted)
    yield counter("kafka_refused_connections", "Connections refused because of the limits.", statistics.refused)
    yield counter("kafka_closed_connections", "Connections closed for a reason; see the log.", statistics.closed)
    yield counter("kafka_received_bytes", "Bytes received from Kafka clients.", statistics.received_bytes)
    yield counter("kafka_sent_bytes", "Bytes sent to Kafka clients.", statistics.sent_bytes)
    times = HistogramMetricFamily(
        f"{PREFIX}_kafka_request_seconds",
        "Time from reading a request to sending its answer, held JoinGroups and waiting Fetches included.",
        labels=["request"],
    )
    for name, taken in list(statistics.answered.items()):
        below = accumulate(taken.buckets)
        buckets = [(str(bound), count) for bound, count in zip((*BOUNDS_S, "+Inf"), below, strict=True)]
        times.add_metric([name], buckets=buckets, sum_value=taken.total_s)
    yield times
    errors = CounterMetricFamily(
        f"{PREFIX}_kafka_errors", "Error responses of this instance.", labels=["request", "error"]
    )
    for (name, error), count in list(statistics.errors.items()):
        errors.add_metric([name, error], count)
    yield errors
    yield from _of_log(listener)


def _of_log(listener: KafkaListener) -> Iterator[Metric]:
    """Metrics by partition of the log. A partition without a term here is coordinated by another instance or by none.
    Counts restart with each term."""
    manager = listener.manager
    families: list[tuple[Metric, Callable[[LogTerm], float]]] = [
        (_gauge("term", "The term in which this instance coordinates the partition."), lambda one: one.term),
        (_gauge("load_seconds", "Time until the partition was claimed and loaded."), lambda one: one.figures.load_s),
        (_gauge("loaded_records", "Records loaded at the start of this term."), lambda one: one.figures.loaded_records),
        (_counter("appends", "Batches written in this term."), lambda one: one.figures.appends),
        (_counter("appended_records", "Records written in this term."), lambda one: one.figures.records),
        (_counter("append_seconds", "Total time until batches were durable."), lambda one: one.figures.append_s),
    ]
    terms = sorted(dict(manager.terms).items())
    for family, value in families:
        for partition, one in terms:
            family.add_metric([str(partition)], value(one))  # type: ignore[attr-defined]
        yield family
    yield gauge("kafka_log_loading_partitions", "Partitions being claimed or loaded.", len(manager.loading))
    yield gauge("kafka_groups", "Client-assigned groups that this instance coordinates.", len(manager.groups_cache))


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_kafka_log_{name}", text, labels=["partition"])


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_kafka_log_{name}", text, labels=["partition"])
