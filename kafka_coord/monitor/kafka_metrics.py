"""Metrics of the listener for Kafka clients, and of the partitions of the groups log it coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.frontends.kafka.statistics import BOUNDS_S
from kafka_coord.grouplog.term import LogTerm
from kafka_coord.monitor.exposition import PREFIX, counter, gauge


def of_kafka(listener: KafkaListener) -> Iterator[Metric]:
    """Read at each scrape."""
    statistics = listener.clients.statistics
    yield gauge("kafka_connections", "Open connections of Kafka clients.", len(listener.clients))
    yield gauge("kafka_kept_bytes", "Half requests and unread answers, of all clients.", listener.clients.kept_bytes)
    yield counter("kafka_accepted_connections", "Connections of Kafka clients that were accepted.", statistics.accepted)
    yield counter("kafka_refused_connections", "Connections that there was no room for.", statistics.refused)
    yield counter("kafka_closed_connections", "Connections closed for a reason, which the log has.", statistics.closed)
    yield counter("kafka_received_bytes", "Bytes that came from Kafka clients.", statistics.received_bytes)
    yield counter("kafka_sent_bytes", "Bytes that were sent to Kafka clients.", statistics.sent_bytes)
    times = HistogramMetricFamily(
        f"{PREFIX}_kafka_request_seconds",
        "From reading a request to sending the end of its answer, held JoinGroups and waiting Fetches included.",
        labels=["request"],
    )
    for name, taken in list(statistics.answered.items()):
        below = accumulate(taken.buckets)
        buckets = [(str(bound), count) for bound, count in zip((*BOUNDS_S, "+Inf"), below, strict=True)]
        times.add_metric([name], buckets=buckets, sum_value=taken.total_s)
    yield times
    errors = CounterMetricFamily(
        f"{PREFIX}_kafka_errors", "Answers of this instance that told an error.", labels=["request", "error"]
    )
    for (name, error), count in list(statistics.errors.items()):
        errors.add_metric([name, error], count)
    yield errors
    yield from _of_log(listener)


def _of_log(listener: KafkaListener) -> Iterator[Metric]:
    """By partition of the log; one without a term here is coordinated elsewhere, or by nobody. Counts begin anew with
    each term."""
    manager = listener.manager
    families: list[tuple[Metric, Callable[[LogTerm], float]]] = [
        (_gauge("term", "The term in which this instance coordinates the partition."), lambda one: one.term),
        (_gauge("load_seconds", "Until it was claimed and loaded."), lambda one: one.figures.load_s),
        (_gauge("loaded_records", "Records that were loaded then."), lambda one: one.figures.loaded_records),
        (_counter("appends", "Batches written in this term."), lambda one: one.figures.appends),
        (_counter("appended_records", "Records of these batches."), lambda one: one.figures.records),
        (_counter("append_seconds", "Time until they were durable, summed up."), lambda one: one.figures.append_s),
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
