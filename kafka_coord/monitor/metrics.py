"""Exports Prometheus metrics of one instance, and a health answer for load balancers and people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from kafka_coord.coordinator.reporting import StuckGroup
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.frontends.socket.gateway import Gateway
from kafka_coord.frontends.socket.statistics import ROUND_TRIP_BOUNDS_S
from kafka_coord.monitor.exposition import PREFIX, Exposition, counter, gauge
from kafka_coord.monitor.presence import PRESENCES
from kafka_coord.version import __version__
from kafka_coord.zk.store import SessionState, Store

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.listener import KafkaListener


class ServiceCollector:
    """Reads the running service at each scrape. It keeps no state and sends no request to ZooKeeper."""

    def __init__(
        self,
        service: CoordinatorService,
        store: Store,
        gateway: Gateway | None = None,
        kafka: KafkaListener | None = None,
    ) -> None:
        self._service = service
        self._store = store
        self._gateway = gateway
        self._kafka = kafka

    def collect(self) -> Iterator[Metric]:
        session, now = self._store.session, self._store.clock.monotonic()
        connected = session.state is SessionState.CONNECTED
        yield gauge("up", "Always 1; the label has the version.", 1, {"version": __version__})
        yield gauge("zookeeper_connected", "Whether the ZooKeeper session is connected.", int(connected))
        lease_s = max(0.0, session.lease_deadline() - now)
        yield gauge(
            "zookeeper_session_lease_seconds",
            "Time left in which the session cannot expire; 0: it may have expired.",
            lease_s,
        )
        yield gauge(
            "zookeeper_session_proven_seconds",
            "Deprecated: use zookeeper_session_lease_seconds. Removed in the next release.",
            lease_s,
        )
        yield gauge("elected", "Whether this instance is the coordinator and may decide now.", int(self._service.leads))
        yield gauge(
            "election_obstructed",
            "Whether an obstacle keeps every instance from being elected; the log and /health name it.",
            int(bool(self._service.obstacle)),
        )
        if self._gateway is not None:
            yield from _of_gateway(self._gateway)
        if self._kafka is not None:
            from kafka_coord.monitor.kafka_metrics import of_kafka

            yield from of_kafka(self._kafka)
        coordinator = self._service.coordinator
        if coordinator is None:
            return
        handler = coordinator.handler
        yield gauge("epoch", "The epoch this instance was elected with.", coordinator.leadership.epoch)
        yield gauge(
            "handler_step_age_seconds",
            "Time since the rebalance request handler completed a step.",
            handler.age_s(),
        )
        stuck = handler.stuck_groups()
        yield gauge("stuck_groups", "Groups that have not reached their target for 30 s.", len(stuck))
        yield gauge(
            "undecided_groups", "Stuck groups about which nothing can be decided.", sum(one.undecided for one in stuck)
        )
        yield gauge(
            "ownerless_partitions",
            "Partitions of stuck groups that have no owner.",
            sum(one.ownerless for one in stuck),
        )
        yield gauge("queued_groups", "Groups waiting to be looked at.", len(coordinator.queue))
        states = Counter(outcome.state for outcome in list(handler.outcomes.values()))
        groups = GaugeMetricFamily(f"{PREFIX}_groups", "Groups by state, as of the last look.", labels=["state"])
        for state in GroupState:
            groups.add_metric([str(state)], states[state])
        yield groups
        yield gauge("unreadable_znodes", "Znodes left alone because they cannot be decoded.", handler.unreadable)
        yield counter("passes", "Looks at a group since this instance was elected.", handler.passes)
        yield counter(
            "failed_passes", "Passes that failed and must be repeated, since the election.", handler.failed_passes
        )


def _of_gateway(gateway: Gateway) -> Iterator[Metric]:
    """Metrics of consumers without ZooKeeper."""
    statistics = gateway.statistics
    yield gauge("socket_consumers", "Registered consumers without ZooKeeper.", gateway.consumers)
    yield gauge("gateway_step_age_seconds", "Time since the gateway completed a step.", gateway.step_age_s)
    yield gauge("socket_connections", "Open connections of consumers without ZooKeeper.", gateway.connections)
    yield counter("socket_registrations", "Registrations over sockets.", statistics.registered)
    yield counter("socket_resumptions", "Memberships continued on another connection.", statistics.resumed)
    yield counter("socket_expirations", "Consumers without ZooKeeper that were expired.", statistics.expired)
    yield counter("socket_refusals", "Registrations over sockets that were refused.", statistics.refused)
    below = accumulate(statistics.round_trips)
    buckets = [(str(bound), count) for bound, count in zip((*ROUND_TRIP_BOUNDS_S, "+Inf"), below, strict=True)]
    times = HistogramMetricFamily(f"{PREFIX}_socket_ping_seconds", "Round trip of a ping.")
    times.add_metric([], buckets=buckets, sum_value=statistics.round_trips_s)
    yield times


def _presences(gateway: Gateway | None, kafka: KafkaListener | None) -> list[dict[str, Any]]:
    sockets = gateway.presences() if gateway is not None else ()
    clients = kafka.managed.presences() if kafka is not None else ()
    return [asdict(presence) for presence in (*sockets, *clients)]


MOST_TOLD = 20
"""The most groups named in one health response."""
STUCK_S = 30.0
"""A thread without a completed step for this long hangs. An idle thread completes one each second, and the longest
steps (a plan for a hundred thousand partitions, a request that ZooKeeper does not answer) take half of that."""


def health(service: CoordinatorService, store: Store, gateway: Gateway | None = None) -> tuple[bool, dict[str, Any]]:
    """Healthy means registered, connected to ZooKeeper, and without ``problems``. An instance need not be elected to be
    healthy."""
    session = store.session
    connected = session.state is SessionState.CONNECTED and service.wait_registered(0.0)
    coordinator = service.coordinator
    handler_age_s = service.handler_age_s()
    gateway_age_s = gateway.step_age_s if gateway is not None else None
    problems = [service.obstacle] if service.obstacle else []
    stuck = coordinator.handler.stuck_groups() if coordinator is not None else []
    problems += [_told(one) for one in [one for one in stuck if one.is_loud][:MOST_TOLD]]
    for what, age_s in (("handler", handler_age_s), ("gateway", gateway_age_s)):
        if age_s is not None and age_s > STUCK_S:
            problems.append(f"the {what} has completed no step for {age_s:.0f} s")
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


def _told(stuck: StuckGroup) -> str:
    return (
        f"group {stuck.group} has not settled for {stuck.for_s:.0f} s, {stuck.ownerless} partitions without an owner:"
        f" {stuck.reason}"
    )


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else round(age_s, 3)


class MetricsServer(Exposition):
    """Serves ``/metrics`` and ``/health`` of one instance. Raises :class:`SettingsError` if it cannot listen."""

    def __init__(
        self,
        address: str,
        service: CoordinatorService,
        store: Store,
        gateway: Gateway | None = None,
        kafka: KafkaListener | None = None,
    ) -> None:
        collector = ServiceCollector(service, store, gateway, kafka)
        serves_members = gateway is not None or kafka is not None
        pages = {PRESENCES: partial(_presences, gateway, kafka)} if serves_members else None
        super().__init__(
            address, collector, lambda: health(service, store, gateway), setting="--listen-http", pages=pages
        )
