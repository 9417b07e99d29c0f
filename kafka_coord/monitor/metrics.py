"""Exports one instance's Prometheus metrics, and its health for load balancers and humans. For these, the elected
instance measures the lag of all groups periodically."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from ssl import SSLContext
from threading import Thread
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_coord import __version__
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.reporting import StuckGroup
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import KafkaCoordError
from kafka_coord.frontends.socket.gateway import Gateway
from kafka_coord.groups.client_assigned import ONLY_IN_KAFKA
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.group import AgeBy, GroupRow
from kafka_coord.groups.instances import PRESENCES, AskedInstances
from kafka_coord.groups.lag import LagService
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import Cause
from kafka_coord.monitor.exposition import Exposition, Site, counter, gauge, histogram, labelled
from kafka_coord.zk.store import SessionState, Store

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.listener import KafkaListener
    from kafka_coord.renewed import Renewed


MOST_TOLD = 20
"""The maximum number of stuck groups that a health response names."""
STUCK_S = 30.0
"""A thread that has not completed a step for this many seconds counts as hung. An idle thread completes a step at least
once a second. The longest steps (a plan for 100,000 partitions, or a request that ZooKeeper does not answer) take half
this time."""


class ServiceCollector:
    """Collects the metrics of the running service at each scrape. Keeps no state and does not query ZooKeeper."""

    def __init__(
        self,
        service: CoordinatorService,
        store: Store,
        gateway: Gateway | None = None,
        kafka: KafkaListener | None = None,
        lags: LagSampler | None = None,
        renewed: Mapping[str, Renewed[Any]] | None = None,
    ) -> None:
        self._lags = lags
        self._renewed = dict(renewed or {})
        self._service = service
        self._store = store
        self._gateway = gateway
        self._kafka = kafka

    def collect(self) -> Iterator[Metric]:
        session, now = self._store.session, self._store.clock.monotonic()
        connected = session.state is SessionState.CONNECTED
        about = "Always 1. The label is the running version."
        yield labelled(GaugeMetricFamily, "build_info", about, "version", {(__version__,): 1})
        yield gauge("zookeeper_connected", "1 while the ZooKeeper session is connected.", int(connected))
        yield gauge(
            "zookeeper_session_lease_seconds",
            "Guaranteed remaining time of the ZooKeeper session. At 0, the elected instance makes no decisions.",
            max(0.0, session.lease_deadline() - now),
        )
        yield gauge(
            "elected",
            "1 if this instance is elected and may make decisions now. The sum over all instances must be 1.",
            int(self._service.leads),
        )
        yield gauge(
            "election_obstructed",
            "1 if something prevents every election. The log and /health name the cause and the remedy.",
            int(bool(self._service.obstacle)),
        )
        if self._renewed:
            yield from _of_renewed(self._renewed)
        if self._gateway is not None:
            yield from _of_gateway(self._gateway)
        if self._kafka is not None:
            yield from of_kafka(self._kafka)
        if self._lags is not None:
            yield from self._lags.collect()
        coordinator = self._service.coordinator
        if coordinator is not None:
            yield from _of_coordinator(coordinator)


def _of_renewed(renewed: Mapping[str, Renewed[Any]]) -> Iterator[Metric]:
    for one in renewed.values():
        one.newest()  # a connection may last for months
    ends = {(of,): ends_at for of, one in renewed.items() if (ends_at := one.ends_at) is not None}
    about = "When each certificate of the instance ends, in seconds since 1970."
    yield labelled(GaugeMetricFamily, "certificate_ends_seconds", about, "of", ends)
    unusable = {(of,): int(bool(one.problem)) for of, one in renewed.items()}
    about = "1 if files have changed, but cannot be used, so what they contained before stays. The log says why."
    yield labelled(GaugeMetricFamily, "renewal_unusable", about, "of", unusable)


def _of_coordinator(coordinator: ConsumerCoordinator) -> Iterator[Metric]:
    """Yields the metrics that only the elected instance exports. Each election resets the counters to zero."""
    handler = coordinator.handler
    yield gauge(
        "epoch",
        "The epoch of this instance's election. Grows with each election.",
        coordinator.leadership.epoch,
    )
    age_s = coordinator.mirror.age_s() if coordinator.mirror is not None else None
    if age_s is not None:
        about = "Time since a broker last told all topics. Only while the metadata comes from the brokers."
        yield gauge("mirror_age_seconds", about, age_s)
    yield gauge(
        "handler_step_age_seconds",
        "Time since the rebalance handler last completed a step. An idle handler completes one every half second. "
        "A value above 30 means that it is stuck.",
        handler.age_s(),
    )
    stuck = handler.stuck_groups()
    yield gauge(
        "stuck_groups",
        "Groups that have not reached their targets within 30 s, for example because a consumer does not respond.",
        len(stuck),
    )
    yield gauge(
        "undecided_groups",
        "Stuck groups about which the coordinator cannot make decisions. Each needs an operator. The log says why.",
        sum(one.undecided for one in stuck),
    )
    yield gauge(
        "ownerless_partitions",
        "Partitions of stuck groups that have no owner, so no consumer reads them.",
        sum(one.ownerless for one in stuck),
    )
    yield gauge("queued_groups", "Groups waiting for a pass. Stays high if decisions are slow.", len(coordinator.queue))
    states = Counter(outcome.state for outcome in list(handler.outcomes.values()))
    yield labelled(
        GaugeMetricFamily,
        "groups",
        "Groups by state, as of their last pass.",
        "state",
        {(state,): states[state] for state in GroupState},
    )
    yield gauge(
        "unreadable_znodes",
        "Znodes that the coordinator cannot read, and therefore leaves unchanged. kafka-coord doctor names them.",
        handler.unreadable,
    )
    yield counter("passes", "Passes over groups.", handler.passes)
    yield counter(
        "failed_passes",
        "Failed passes over groups; each is retried. A few are normal while consumers come and go.",
        handler.failed_passes,
    )
    found = handler.rebalances
    yield labelled(
        CounterMetricFamily,
        "rebalances",
        "New targets, by their most important cause (see History in docs/operations.md).",
        "cause",
        {(cause,): found.decided[cause] for cause in Cause if cause is not Cause.TAKEN_OVER},
    )
    yield counter(
        "moved_partitions", "Partitions moved from one consumer to another by rebalances.", found.moved_partitions
    )
    yield histogram(
        "rebalance_seconds",
        "Time from the decision until every partition has its new owner, for rebalances that need commands.",
        {"": found.settled},
    )


def _of_gateway(gateway: Gateway) -> Iterator[Metric]:
    statistics = gateway.statistics
    yield gauge(
        "socket_consumers",
        "Registered consumers without ZooKeeper. All are connected to the elected instance.",
        gateway.consumers,
    )
    yield gauge(
        "gateway_step_age_seconds",
        "Time since the gateway for consumers without ZooKeeper last completed a step. A value above 30 means that it "
        "is stuck.",
        gateway.step_age_s,
    )
    yield gauge("socket_connections", "Open connections of consumers without ZooKeeper.", gateway.connections)
    yield counter("socket_registrations", "New members that registered over sockets.", statistics.registered)
    yield counter("socket_resumptions", "Members that resumed over a new connection.", statistics.resumed)
    yield counter("socket_expirations", "Expired sessions of consumers without ZooKeeper.", statistics.expired)
    yield counter("socket_refusals", "Refused registrations over sockets. The log says why.", statistics.refused)
    yield histogram(
        "socket_ping_seconds",
        "Time until a consumer without ZooKeeper answers a ping. Includes delays in the network, and in a busy "
        "consumer or instance.",
        {"": statistics.round_trips},
    )


def _presences(gateway: Gateway | None, kafka: KafkaListener | None) -> list[dict[str, Any]]:
    sockets = gateway.presences() if gateway is not None else ()
    clients = kafka.managed.presences() if kafka is not None else ()
    return [asdict(presence) for presence in (*sockets, *clients)]


def health(
    service: CoordinatorService, store: Store, gateway: Gateway | None = None, threads: Sequence[Thread] = ()
) -> tuple[bool, dict[str, Any]]:
    """Returns whether the instance is healthy, and the body of the response. A healthy instance is registered, is
    connected to ZooKeeper, and has no ``problems``. It need not be elected. ``threads`` are the listeners' threads,
    which must be alive."""
    session = store.session
    connected = session.state is SessionState.CONNECTED and service.registered
    coordinator = service.coordinator
    handler_age_s = service.handler_age_s()
    gateway_age_s = gateway.step_age_s if gateway is not None else None
    problems = [service.obstacle] if service.obstacle else []
    stuck = coordinator.handler.stuck_groups() if coordinator is not None else []
    problems += [_told(one) for one in [one for one in stuck if one.is_loud][:MOST_TOLD]]
    for what, age_s in (("handler", handler_age_s), ("gateway", gateway_age_s)):
        if age_s is not None and age_s > STUCK_S:
            problems.append(f"the {what} has not completed a step for {age_s:.0f} s")
    problems += [
        f"the listener thread {one.name} has ended; restart this instance. Its log says why"
        for one in threads
        if not one.is_alive()
    ]
    healthy = connected and not problems
    return healthy, {
        "healthy": healthy,
        "elected": service.leads,
        "epoch": coordinator.leadership.epoch if coordinator is not None else None,
        "zookeeper": session.state.value,
        "problems": problems,
        "handler_step_age_s": _rounded(handler_age_s),
        "gateway_step_age_s": _rounded(gateway_age_s),
        "version": __version__,
    }


def readiness(service: CoordinatorService, kafka: KafkaListener | None = None) -> tuple[bool, dict[str, Any]]:
    """Returns whether the instance is ready, and the body of the response. An instance is ready once it is registered
    and its listener for Kafka clients, if there is one, is ready. It then stays ready while it is registered."""
    ready, waiting_for = state(service, kafka)
    return ready, {"ready": ready, "waiting_for": waiting_for or None}


def state(service: CoordinatorService, kafka: KafkaListener | None) -> tuple[bool, str]:
    """Returns whether the instance is ready, and what a rolling restart must wait for, if anything."""
    ready = service.registered and (kafka is None or kafka.readiness.is_ready)
    if not service.registered:
        return ready, "its registration in ZooKeeper"
    return ready, kafka.waiting_for() if kafka is not None else ""


def _told(stuck: StuckGroup) -> str:
    return (
        f"group {stuck.group} has not settled for {stuck.for_s:.0f} s and has {stuck.ownerless} partitions without an"
        f" owner: {stuck.reason}"
    )


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else round(age_s, 3)


class MetricsServer(Exposition):
    """Serves metrics, health and the ``site`` of one instance. Raises :class:`SettingsError` if it cannot listen."""

    def __init__(
        self,
        address: str,
        service: CoordinatorService,
        store: Store,
        gateway: Gateway | None = None,
        kafka: KafkaListener | None = None,
        lags: LagSampler | None = None,
        site: Site | None = None,
        tls: SSLContext | None = None,
        host_names: Iterable[str] = (),
        threads: Sequence[Thread] = (),
        renewed: Mapping[str, Renewed[Any]] | None = None,
    ) -> None:
        collector = ServiceCollector(service, store, gateway, kafka, lags, renewed)
        serves_members = gateway is not None or kafka is not None
        pages = {PRESENCES: partial(_presences, gateway, kafka)} if serves_members else None
        super().__init__(
            address,
            collector,
            lambda: health(service, store, gateway, threads),
            ready=lambda: readiness(service, kafka),
            setting="--listen-http",
            pages=pages,
            site=site,
            tls=tls,
            host_names=host_names,
        )


def of_kafka(listener: KafkaListener) -> Iterator[Metric]:
    """Yields the metrics of the listener for Kafka clients, and those of the groups log."""
    from kafka_coord.frontends.kafka.managed import classic, heartbeats  # loaded only where there is a listener

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
