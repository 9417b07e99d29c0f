"""Serves Prometheus metrics and a health answer over HTTP."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_coord.errors import SettingsError

log = logging.getLogger(__name__)

PREFIX = "kafka_coord"
"""The prefix of all metric names."""

REQUEST_S = 10.0
"""The limit for one request and its response together."""
MAX_REQUESTS = 32
"""The most concurrent requests; above it the oldest one is cut off."""


class Collector(Protocol):
    """The interface that prometheus_client calls at every scrape."""

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""


Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether the instance is healthy, and the response's body."""

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


def gauge(name: str, text: str, value: float, labels: dict[str, str] | None = None) -> GaugeMetricFamily:
    """A gauge with one value."""
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels or ()))
    family.add_metric(list((labels or {}).values()), value)
    return family


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter with one value."""
    family = CounterMetricFamily(f"{PREFIX}_{name}", text)
    family.add_metric([], value)
    return family


class Exposition:
    """Serves ``/metrics``, ``/health`` and the JSON of ``pages`` by path on ``host:port`` (port 0: any free one), on
    threads of its own.

    ``setting`` is the setting with the address; the :class:`SettingsError` for an unusable address names it.
    """

    def __init__(
        self,
        address: str,
        collector: Collector,
        health: Health,
        *,
        setting: str,
        pages: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        metrics = make_wsgi_app(registry)
        also = dict(pages or {})

        def app(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "/")
            if path == "/metrics":
                found: Iterable[bytes] = metrics(environ, start)
                return found
            if path == "/health":
                healthy, said = health()
                start("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "application/json")])
                return [json.dumps(said).encode() + b"\n"]
            if path in also:
                start("200 OK", [("Content-Type", "application/json")])
                return [json.dumps(also[path]()).encode() + b"\n"]
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [f"Here are {', '.join(['/metrics', *also])} and /health.\n".encode()]

        try:
            self._server = make_server(host.strip("[]"), int(port), app, _Server, _QuietHandler)
        except (OSError, OverflowError, ValueError) as error:
            raise SettingsError(f"cannot listen on {address} for metrics ({error}): choose another {setting}") from None
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
    """Handles each request on a thread. Limits the number of threads and the total time of a request, so that a slow
    peer cannot keep a thread."""

    daemon_threads = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._began: dict[Any, float] = {}
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        under_way = sorted(self._began.items(), key=lambda one: one[1])
        for oldest, _ in under_way[: len(under_way) - MAX_REQUESTS + 1]:
            _cut_off(oldest)
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        super().service_actions()
        for request, began in list(self._began.items()):
            if time.monotonic() > began + REQUEST_S:
                _cut_off(request)

    def shutdown_request(self, request: Any) -> None:
        self._began.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("aborted a request for metrics from=%s", client_address, exc_info=True)


def _cut_off(request: Any) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)
