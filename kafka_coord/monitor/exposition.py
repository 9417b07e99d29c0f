"""Serves Prometheus metrics and a health check over HTTP."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Protocol, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kafka_coord.errors import SettingsError
from kafka_coord.frontends.listening import common_name
from kafka_coord.model.sequences import Durations
from kafka_coord.settings import host_and_port, is_address

log = logging.getLogger(__name__)

PREFIX = "kafka_coord"
"""The prefix of all metric names."""

REQUEST_S = 10.0
"""The time limit for a request and its response together, in seconds."""
MAX_REQUESTS = 32
"""The maximum number of concurrent requests. If there are more, the oldest request is aborted. Requests with a
long-lived response do not count."""
_WRITE_S = 10.0
"""A long-lived response is aborted if its client reads nothing for this many seconds."""


class Collector(Protocol):
    """The interface that prometheus_client calls on every scrape."""

    def collect(self) -> Iterator[Metric]:
        """Yields the current metrics."""


Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Returns whether the instance is healthy, and the response's body."""

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Site = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]
"""A WSGI application."""

Values = TypeVar("Values", bound=tuple[str, ...])


def gauge(name: str, text: str, value: float) -> Metric:
    """Returns a gauge with one value."""
    return labelled(GaugeMetricFamily, name, text, "", {(): value})


def counter(name: str, text: str, value: float) -> Metric:
    """Returns a counter with one value."""
    return labelled(CounterMetricFamily, name, text, "", {(): value})


def histogram(name: str, text: str, found: Mapping[str, Durations], label: str = "") -> HistogramMetricFamily:
    """Returns a histogram with one series per value of ``label``. Without a label, ``found`` has the one key ``""``."""
    family = HistogramMetricFamily(f"{PREFIX}_{name}", text, labels=[label] if label else [])
    for value, durations in list(found.items()):
        family.add_metric([value] if label else [], list(durations.cumulative()), durations.total_s)
    return family


def labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    labels: str,
    found: Mapping[Values, float],
) -> Metric:
    """Returns a gauge or counter with one sample per key of ``found``, which holds the values of the labels. ``labels``
    are their names, separated by spaces."""
    family = kind(f"{PREFIX}_{name}", text, labels=labels.split())
    for values, number in found.items():
        family.add_metric(values, number)
    return family


class Exposition:
    """Serves ``/metrics``, ``/health``, ``/ready`` (if ``ready`` is given) and the JSON ``pages`` (by path) at
    ``address`` (``host:port``; port 0 means any free port) on its own threads.

    Raises :class:`SettingsError` if the address is unusable; the message names ``setting``, the option for the address.
    ``site`` is the WSGI application for all other paths. Its ``environ`` has three more items:

    - ``REQUEST_URI``: the path as the client sent it
    - ``kafka_coord.certificate``: the common name in the client's certificate
    - ``kafka_coord.lasts``: a function that the application must call before a long-lived response

    ``/metrics``, ``/health`` and ``/ready`` accept every ``Host``. All other paths accept only the server's own names
    and ``host_names``.
    """

    def __init__(
        self,
        address: str,
        collector: Collector | None,
        health: Health,
        *,
        setting: str,
        pages: Mapping[str, Callable[[], Any]] | None = None,
        site: Site | None = None,
        tls: ssl.SSLContext | None = None,
        host_names: Iterable[str] = (),
        ready: Health | None = None,
    ) -> None:
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        if collector is not None:
            registry.register(collector)
        metrics = make_wsgi_app(registry)
        also = dict(pages or {})
        probes = {"/health": health} | ({"/ready": ready} if ready is not None else {})
        names: frozenset[str] = frozenset()

        def app(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "/")
            if path == "/metrics":
                found: Iterable[bytes] = metrics(environ, start)
                return found
            if path in probes:
                passes, body = probes[path]()
                start("200 OK" if passes else "503 Service Unavailable", [("Content-Type", "application/json")])
                return [json.dumps(body).encode() + b"\n"]
            called = environ.get("HTTP_HOST")  # every browser sends one
            if names and called is not None and not is_own(called, names):
                start(
                    "421 Misdirected Request", [("Content-Type", "text/plain"), ("X-Content-Type-Options", "nosniff")]
                )
                return [f"{called[:100]!a} is not a name of this server; add it with --http-host-names.\n".encode()]
            if path in also:
                start("200 OK", [("Content-Type", "application/json")])
                return [json.dumps(also[path]()).encode() + b"\n"]
            if site is not None:
                return site(environ, start)
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [f"This server serves {', '.join(['/metrics', *also, *list(probes)[1:]])} and /health.\n".encode()]

        try:
            host, port = host_and_port(address)
            if also or site is not None:
                names = own_names(host, host_names)
            self._server = make_server(host, port, app, _Server, _QuietHandler)
            self._server.tls = tls
        except (OSError, OverflowError, ValueError) as error:
            raise SettingsError(f"cannot listen on {address} ({error}); choose another {setting}") from None
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
    """Handles each request on its own thread. Limits the number of threads and the total time of each request, so that
    a slow peer cannot keep a thread busy."""

    daemon_threads = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._began: dict[Any, float] = {}
        self.tls: ssl.SSLContext | None = None
        super().__init__(*args, **options)

    def get_request(self) -> tuple[Any, Any]:
        """Defers the TLS handshake to the first read, which happens on the request's thread."""
        request, address = super().get_request()
        if self.tls is not None:
            request = self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

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

    def lasts(self, request: Any) -> None:
        """Replaces the request's time limit with a limit on each write of its response."""
        self._began.pop(request, None)
        request.settimeout(_WRITE_S)

    def shutdown_request(self, request: Any) -> None:
        self._began.pop(request, None)
        if isinstance(request, ssl.SSLSocket):
            with suppress(OSError, ValueError):
                request.setblocking(False)  # send close_notify, but do not wait for the peer's
                request.unwrap()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("aborted a request for metrics from=%s", client_address, exc_info=True)


def _cut_off(request: Any) -> None:
    with suppress(OSError):
        socket.socket.shutdown(request, socket.SHUT_RDWR)  # SSLSocket.shutdown lets another thread write plain text


class _QuietHandler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        write = self.wfile.write

        def send(data: bytes) -> int:
            try:
                return write(data)
            except (TimeoutError, ssl.SSLError) as error:  # wsgiref would print a traceback for these, but not
                raise BrokenPipeError("the client is gone or is not reading") from error  # for BrokenPipeError

        setattr(self.wfile, "write", send)  # noqa: B010  a method, for mypy

    def get_environ(self) -> dict[str, Any]:
        server: Any = self.server
        environ = super().get_environ() | {
            "REQUEST_URI": self.path,
            "kafka_coord.lasts": lambda: server.lasts(self.request),
        }
        if isinstance(self.request, ssl.SSLSocket):
            environ |= {"HTTPS": "on", "kafka_coord.certificate": common_name(self.request.getpeercert())}
        return environ

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug(format, *args)


def own_names(listen_host: str, also: Iterable[str]) -> frozenset[str]:
    """Returns the server's names: the host name, the host in the listening address, ``localhost``, and ``also``.

    They defend against DNS rebinding. A malicious site can make its own name resolve to this server's address. A
    visitor's browser then lets the site's scripts read this server's responses, but the ``Host`` header still carries
    the site's name.
    """
    names = {"localhost", listen_host, socket.gethostname(), socket.getfqdn(), *also}
    return frozenset(name.lower().rstrip(".") for name in names if name)


def is_own(header: str, names: frozenset[str]) -> bool:
    """Returns whether a ``Host`` header names this server, with any port. An IP address always does: the request did
    not use a name."""
    try:
        host, _ = host_and_port(header if header.rpartition(":")[2].isdigit() else f"{header}:0")
    except ValueError:
        return False
    return is_address(host) or host.lower().rstrip(".") in names
