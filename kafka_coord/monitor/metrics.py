"""What one instance tells monitoring: Prometheus metrics, and a health answer a load balancer or a person can read."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import SettingsError
from kafka_coord.version import __version__
from kafka_coord.zk.store import SessionState, Store

log = logging.getLogger(__name__)

PREFIX = "kafka_coord"


class ServiceCollector:
    """Reads the running service at every scrape; keeps nothing. Costs no ZooKeeper request."""

    def __init__(self, service: CoordinatorService, store: Store) -> None:
        self._service = service
        self._store = store

    def collect(self) -> Iterator[Metric]:
        session, now = self._store.session, self._store.clock.monotonic()
        connected = session.state is SessionState.CONNECTED
        yield _gauge("up", "Always 1; the version is its label.", 1, {"version": __version__})
        yield _gauge("zookeeper_connected", "Whether the ZooKeeper session is connected.", int(connected))
        yield _gauge(
            "zookeeper_session_proven_seconds",
            "For how long from now the session is proven to live; 0: it may have ended.",
            max(0.0, session.mine_until() - now),
        )
        yield _gauge("elected", "Whether this instance coordinates and may decide now.", int(self._service.leads))
        coordinator = self._service.coordinator
        if coordinator is None:
            return
        handler = coordinator.handler
        yield _gauge("epoch", "The epoch this instance was elected with.", coordinator.leadership.epoch)
        yield _gauge("queued_groups", "Groups waiting to be looked at.", len(coordinator.queue))
        states = Counter(outcome.state for outcome in list(handler.outcomes.values()))
        groups = GaugeMetricFamily(f"{PREFIX}_groups", "Groups by state, as last looked at.", labels=["state"])
        for state in GroupState:
            groups.add_metric([str(state)], states[state])
        yield groups
        yield _gauge("unreadable_znodes", "Znodes left alone because they cannot be decoded.", handler.unreadable)
        passes = CounterMetricFamily(f"{PREFIX}_passes", "Looks at a group since this instance was elected.")
        passes.add_metric([], handler.passes)
        yield passes
        failed = CounterMetricFamily(f"{PREFIX}_failed_passes", "Passes that have to be repeated, since the election.")
        failed.add_metric([], handler.failed_passes)
        yield failed


def _gauge(name: str, text: str, value: float, labels: dict[str, str] | None = None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels or ()))
    family.add_metric(list((labels or {}).values()), value)
    return family


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


StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class MetricsServer:
    """Serves ``/metrics`` and ``/health`` on ``host:port`` (port 0: any free one), on threads of its own.

    Raises :class:`SettingsError` where the address cannot be bound.
    """

    def __init__(self, address: str, service: CoordinatorService, store: Store) -> None:
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ServiceCollector(service, store))
        metrics = make_wsgi_app(registry)

        def app(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "/")
            if path == "/metrics":
                found: Iterable[bytes] = metrics(environ, start)
                return found
            if path == "/health":
                healthy, said = health(service, store)
                start("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "application/json")])
                return [json.dumps(said).encode() + b"\n"]
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"Here are /metrics and /health.\n"]

        try:
            self._server = make_server(host.strip("[]"), int(port), app, _Server, _QuietHandler)
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"cannot listen on {address} for metrics ({error}): choose another --listen-http"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics-http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("broke off a request for metrics from=%s", client_address, exc_info=True)


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # a peer that never sends must not keep its thread

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)
