"""Yields metrics about the connections and requests of Kafka clients, and about the partitions of the groups log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.frontends.kafka.managed import classic, heartbeats
from kafka_coord.monitor.exposition import counter, gauge, histogram, labelled


def of_kafka(listener: KafkaListener) -> Iterator[Metric]:
    """Yields the metrics of the listener for Kafka clients, and those of the groups log."""
    statistics = listener.clients.statistics
    yield gauge("kafka_connections", "Open Kafka client connections.", len(listener.clients))
    yield gauge(
        "kafka_kept_bytes",
        "Memory for incomplete requests and unsent responses of all Kafka clients. Above serve.kafka_queued_max_bytes, "
        "the instance closes connections.",
        listener.clients.kept_bytes,
    )
    yield counter("kafka_accepted_connections", "Accepted Kafka client connections.", statistics.accepted)
    yield counter(
        "kafka_refused_connections",
        "Connections refused because there were too many (serve.kafka_max_connections).",
        statistics.refused,
    )
    yield counter(
        "kafka_closed_connections",
        "Connections that this instance closed. The log says why.",
        statistics.closed,
    )
    yield counter("kafka_received_bytes", "Bytes received from Kafka clients.", statistics.received_bytes)
    yield counter("kafka_sent_bytes", "Bytes sent to Kafka clients.", statistics.sent_bytes)
    yield histogram(
        "kafka_request_seconds",
        "Time from the complete request to the complete response, including waits, like Kafka's TotalTimeMs: Fetch "
        "waits for records, JoinGroup for the group, Heartbeat and ConsumerGroupHeartbeat for changes. To judge the "
        "instance, use requests that do not wait, such as OffsetCommit.",
        statistics.answered,
        "request",
    )
    yield labelled(
        CounterMetricFamily,
        "kafka_errors",
        "Error codes in this instance's own responses (not the broker's). Some are normal while a group rebalances "
        "(REBALANCE_IN_PROGRESS) or moves to another instance (NOT_COORDINATOR).",
        "request error",
        dict(statistics.errors),
    )
    presences = listener.managed.presences()
    members = Counter(one.protocol for one in presences)
    yield labelled(
        GaugeMetricFamily,
        "kafka_managed_members",
        "Members of managed groups that connect to this instance with a Kafka client.",
        "protocol",
        {(protocol,): members[protocol] for protocol in (heartbeats.PROTOCOL, classic.PROTOCOL)},
    )
    held = sum(one.held_ms is not None for one in presences)
    yield gauge(
        "kafka_held_requests",
        "Requests from members of managed groups that this instance holds until it has news for the member. "
        "An idle member has one held request.",
        held,
    )
    yield from _of_log(listener)


_LOG_GAUGES = (
    (
        "term",
        "term",
        "The term in which this instance coordinates the partition. All instances together export one series for each "
        "partition.",
    ),
    ("load_seconds", "figures.load_s", "Time to claim and load the partition, during which its groups had to wait."),
    ("loaded_records", "figures.loaded_records", "Records loaded at the start of this term."),
)
_LOG_COUNTERS = (
    (
        "appends",
        "figures.appends",
        "Batches written in this term. To get averages, divide the records and the seconds by this.",
    ),
    ("appended_records", "figures.records", "Records written in this term."),
    ("append_seconds", "figures.append_s", "Total time that batches took to reach all in-sync replicas."),
)
"""For each metric by log partition: its name, the attribute of :class:`LogTerm`, and the help text."""


def _of_log(listener: KafkaListener) -> Iterator[Metric]:
    """Yields metrics by log partition. A partition without a term here is coordinated by a different instance or by
    none. The counters restart with each term."""
    manager = listener.manager
    terms = sorted(dict(manager.terms).items())
    for kind, metrics in ((GaugeMetricFamily, _LOG_GAUGES), (CounterMetricFamily, _LOG_COUNTERS)):
        for name, attribute, text in metrics:
            values = {(str(partition),): attrgetter(attribute)(one) for partition, one in terms}
            yield labelled(kind, f"kafka_log_{name}", text, "partition", values)
    yield gauge(
        "kafka_log_loading_partitions",
        "Partitions being claimed or loaded. Meanwhile, their groups have to wait.",
        len(manager.loading),
    )
    yield gauge("kafka_groups", "Client-assigned groups that this instance coordinates.", len(manager.groups()))
