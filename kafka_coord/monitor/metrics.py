"""What one instance tells monitoring: Prometheus metrics, and a health answer a load balancer or a person can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.frontends.socket.gateway import Gateway
from kafka_coord.frontends.socket.statistics import ROUND_TRIP_BOUNDS_S
from kafka_coord.monitor.exposition import PREFIX, Exposition, counter, gauge
from kafka_coord.monitor.presence import PRESENCES
from kafka_coord.version import __version__
from kafka_coord.zk.store import SessionState, Store


class ServiceCollector:
    """Reads the running service at every scrape; keeps nothing. Costs no ZooKeeper request."""

    def __init__(self, service: CoordinatorService, store: Store, gateway: Gateway | None = None) -> None:
        self._service = service
        self._store = store
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        session, now = self._store.session, self._store.clock.monotonic()
        connected = session.state is SessionState.CONNECTED
        yield gauge("up", "Always 1; the version is its label.", 1, {"version": __version__})
        yield gauge("zookeeper_connected", "Whether the ZooKeeper session is connected.", int(connected))
        yield gauge(
            "zookeeper_session_proven_seconds",
            "For how long from now the session is proven to live; 0: it may have ended.",
            max(0.0, session.lease_deadline() - now),
        )
        yield gauge("elected", "Whether this instance coordinates and may decide now.", int(self._service.leads))
        if self._gateway is not None:
            yield from _of_gateway(self._gateway)
        coordinator = self._service.coordinator
        if coordinator is None:
            return
        handler = coordinator.handler
        yield gauge("epoch", "The epoch this instance was elected with.", coordinator.leadership.epoch)
        yield gauge("queued_groups", "Groups waiting to be looked at.", len(coordinator.queue))
        states = Counter(outcome.state for outcome in list(handler.outcomes.values()))
        groups = GaugeMetricFamily(f"{PREFIX}_groups", "Groups by state, as last looked at.", labels=["state"])
        for state in GroupState:
            groups.add_metric([str(state)], states[state])
        yield groups
        yield gauge("unreadable_znodes", "Znodes left alone because they cannot be decoded.", handler.unreadable)
        yield counter("passes", "Looks at a group since this instance was elected.", handler.passes)
        yield counter("failed_passes", "Passes that have to be repeated, since the election.", handler.failed_passes)


def _of_gateway(gateway: Gateway) -> Iterator[Metric]:
    """What there is to tell of consumers without ZooKeeper."""
    statistics = gateway.statistics
    yield gauge("socket_consumers", "Registered consumers without ZooKeeper.", gateway.consumers)
    yield gauge("socket_connections", "Open connections of such consumers.", gateway.connections)
    yield counter("socket_registrations", "Registrations over sockets.", statistics.registered)
    yield counter("socket_resumptions", "Memberships that went on over another connection.", statistics.resumed)
    yield counter("socket_expirations", "Consumers without ZooKeeper that were expired.", statistics.expired)
    yield counter("socket_refusals", "Registrations over sockets that were refused.", statistics.refused)
    below = accumulate(statistics.round_trips)
    buckets = [(str(bound), count) for bound, count in zip((*ROUND_TRIP_BOUNDS_S, "+Inf"), below, strict=True)]
    times = HistogramMetricFamily(f"{PREFIX}_socket_ping_seconds", "From sending a ping to having its answer.")
    times.add_metric([], buckets=buckets, sum_value=statistics.round_trips_s)
    yield times


def _presences(gateway: Gateway) -> list[dict[str, Any]]:
    return [asdict(presence) for presence in gateway.presences()]


def health(service: CoordinatorService, store: Store) -> tuple[bool, dict[str, Any]]:
    """Healthy means: registered, and connected to ZooKeeper. Elected or not is no matter of health."""
    session = store.session
    healthy = session.state is SessionState.CONNECTED and service.wait_registered(0.0)
    coordinator = service.coordinator
    return healthy, {
        "healthy": healthy,
        "elected": service.leads,
        "epoch": coordinator.leadership.epoch if coordinator is not None else None,
        "zookeeper": session.state.value,
        "version": __version__,
    }


class MetricsServer(Exposition):
    """Serves ``/metrics`` and ``/health`` of one instance. Raises :class:`SettingsError` where it cannot listen."""

    def __init__(self, address: str, service: CoordinatorService, store: Store, gateway: Gateway | None = None) -> None:
        collector = ServiceCollector(service, store, gateway)
        pages = {PRESENCES: partial(_presences, gateway)} if gateway is not None else None
        super().__init__(address, collector, lambda: health(service, store), setting="--listen-http", pages=pages)
