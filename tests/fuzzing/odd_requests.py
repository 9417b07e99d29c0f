"""Odd requests to the dashboard's server: odd methods, paths, headers and bodies, and requests that end early."""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from wsgiref.handlers import BaseHandler

from kafka_coord.monitor.dashboard.live import Live
from kafka_coord.monitor.dashboard.logins import Logins, OperatorsFile
from kafka_coord.monitor.dashboard.operating import ACTIONS, OF_MANY, Operating
from kafka_coord.monitor.dashboard.routes import PREFIX, ROUTES
from kafka_coord.monitor.dashboard.site import PAGE, Site
from kafka_coord.monitor.exposition import Exposition, _Server
from tests.fuzzing.odd_cluster import OddCluster
from tests.fuzzing.odd_values import odd_json
from tests.monitor.dashboard.served import operators_file

TOKEN = "a long token"  # noqa: S105
_ODD = (
    "", "..", "%", "%00", "%ff", "%ud800", "%0d%0aX: y", "/", "//", "?", "??", "#", "{group}", "\xff", "\x00",
    "a" * 70_000, "http://other/", "*", "%2e%2e%2f", ";", "&&path=", "path=/cluster&" * 20, "\u00e9",
    "?format=csv", "?format=csv&table=offsets", "?table=offsets.lag", "&format=%00&table=groups.offsets",
)  # fmt: skip
_HEADERS = (
    "Host: {h}", "Host: ", "Host: other", "Host: [", "Host: [::1", "Content-Length: 5", "Content-Length: -1",
    "Content-Length: 99999999999999999999", "Content-Length: \u0663", "Content-Type: application/json",
    "Content-Type: ;;=", "Cookie: =;;,", "Cookie: a=\"\\", "Cookie: {c}", "Authorization: Bearer",
    "Authorization: Bearer {t}", "Authorization: \xff\xfe", "X-Csrf-Token: \xff", "Origin: null", "Origin: http://{h}",
    "Accept-Encoding: gzip;q=x",
    "Accept: */*;q=", "Transfer-Encoding: chunked", "Connection: keep-alive", "Expect: 100-continue", ": ", "no colon",
    "X: " + "y" * 70_000, "Last-Event-ID: \x00", "Range: bytes=9-1",
)  # fmt: skip
_WAIT_S, _MOST_READ = 10.0, 1_000


def odd_request(chance: Random, host: str) -> bytes:
    """One request, which is at least a little odd."""
    paths = [f"{PREFIX}{one.path}" for one in ROUTES] + [
        "/metrics",
        "/health",
        "/",
        PAGE,
        f"{PREFIX}/events?path=/cluster",
    ]
    paths += [f"{PREFIX}/groups/{group}/{action}" for action in (*ACTIONS, "") for group in ("delays", "orders")]
    paths += [f"{PREFIX}/actions/{action}" for action in OF_MANY] + [f"{PREFIX}/{one}" for one in ("login", "logout")]
    path = chance.choice(paths).replace("{group}", "delays").replace("{topic}", "flights").replace("{partition}", "0")
    is_post = chance.random() < 0.5
    for _ in range(chance.choice((0, 1, 1, 2))):
        at = chance.randrange(len(path) + 1)
        path = path[:at] + chance.choice(_ODD) + path[at + chance.choice((0, 0, 1, 5)) :]
    body = b""
    headers = [f"Host: {host}"] if chance.random() < 0.8 else []
    if is_post:
        value: dict[str, Any] = {
            "reason": "x",
            "token": TOKEN,
            "rule": "to-earliest",
            "topics": ["flights"],
            "consumers": ["c1"],
        }
        value |= {"groups": ["delays"], "dry_run": True, "confirm": "", "name": "delays", "assignor": "range"}
        value |= {"to": "native"}
        sent = odd_json(value, chance) if chance.random() < 0.8 else value
        body = json.dumps(sent).encode() if chance.random() < 0.9 else chance.randbytes(30)
        headers += ["Content-Type: application/json", f"Content-Length: {len(body)}", f"Authorization: Bearer {TOKEN}"]
    odd = chance.sample(_HEADERS, chance.choice((0, 1, 2)))
    headers += [one.format(h=host, c="kafka_coord=" + "x" * 40, t=TOKEN) if "{" in one else one for one in odd]
    method = (
        chance.choice(("GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "", "\xff", "G" * 9_000))
        if not is_post
        else "POST"
    )
    version = chance.choice(("HTTP/1.1",) * 9 + ("HTTP/9.9", "HTTP/1.0", "", "x"))
    raw = "\r\n".join((f"{method} {path} {version}", *headers, "", "")).encode("utf-8", "replace") + body
    return raw[: chance.randrange(len(raw))] if chance.random() < 0.1 else raw


@contextmanager
def served(cluster: OddCluster) -> Iterator[tuple[int, list[str]]]:
    """Serves the dashboard of the cluster. Yields its port, and a list to which unexpected errors are added."""
    faults: list[str] = []

    def noted(_handler: BaseHandler, found: Any) -> None:
        faults.append("".join(traceback.format_exception(*found))[-3_000:])

    def of_connection(_server: _Server, _request: Any, _address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client may be gone
            faults.append(traceback.format_exc()[-3_000:])

    live = Live(cluster.sources)
    with (
        TemporaryDirectory(prefix="fuzz-") as folder,
        mock.patch.object(BaseHandler, "log_exception", noted),
        mock.patch.object(_Server, "handle_error", of_connection),
    ):
        logins = Logins(OperatorsFile(operators_file(Path(folder), alice=TOKEN)).newest)
        operating = Operating(logins, lambda: closing(cluster.connected()), {})
        server = Exposition("127.0.0.1:0", None, lambda: (True, {}), setting="--listen", site=Site(live, operating))
        try:
            yield server.port, faults
        finally:
            live.close()
            server.close()


def odd_requests(cluster: OddCluster, many: int) -> Iterator[tuple[str, str]]:
    """Sends odd requests, and yields each with its fault or ``""``. After each, the server must answer as usual."""
    with served(cluster) as (port, faults):
        for _ in range(many):
            raw = odd_request(cluster.chance, f"127.0.0.1:{port}")
            answered = _answer(port, raw)
            fault = "\n".join(faults) or ("an unexpected error" if b"an unexpected error" in answered else "")
            faults.clear()
            if not fault and b" 200 " not in _answer(port, b"GET /health HTTP/1.0\r\n\r\n"):
                fault = "after it, /health did not answer"
            yield f"request {raw[:300]!r}", fault


def _answer(port: int, raw: bytes) -> bytes:
    """Sends the request and returns the beginning of the response."""
    with socket.create_connection(("127.0.0.1", port), _WAIT_S) as connection:
        with suppress(OSError):  # the server may refuse the rest
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        try:
            return connection.makefile("rb").read(_MOST_READ)
        except (ConnectionError, TimeoutError):
            return b""
