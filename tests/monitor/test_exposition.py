"""Tests of the HTTP server of metrics and health, and of peers that waste its threads. They need no ZooKeeper."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.core import Metric

from kafka_coord.frontends.listening import Certificate
from kafka_coord.monitor import exposition
from kafka_coord.monitor.exposition import Exposition, gauge, is_own, own_names
from tests.waiting import eventually


class Nothing:
    def collect(self) -> Iterator[Metric]:
        yield gauge("up", "Always 1.", 1)


@pytest.fixture
def served() -> Iterator[Exposition]:
    made = Exposition("127.0.0.1:0", Nothing(), lambda: (True, {}), setting="--listen-http")
    yield made
    made.close()


def healthy(served: Exposition) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/health", timeout=5) as answer:
        return answer.status == 200


def is_over(peer: socket.socket) -> bool:
    """Sends one more byte. Returns whether the server has closed the connection."""
    with suppress(BlockingIOError, TimeoutError):
        try:
            peer.send(b"x")
            return peer.recv(100) == b""
        except (ConnectionError, BrokenPipeError):
            return True
    return False


def test_the_thread_of_a_peer_whose_request_arrives_too_slowly_is_freed(
    served: Exposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "REQUEST_S", 0.5)
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", served.port)) as peer:
        peer.settimeout(0.05)
        peer.send(b"GET /")
        eventually(lambda: threading.active_count() > before)
        eventually(lambda: is_over(peer))
    eventually(lambda: threading.active_count() == before)
    assert healthy(served)


def test_a_long_response_ends_when_its_peer_stops_reading(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exposition, "_WRITE_S", 0.3)
    monkeypatch.setattr(exposition, "REQUEST_S", 0.3)
    ended = threading.Event()

    def site(environ: dict[str, Any], start: exposition.StartResponse) -> Iterator[bytes]:
        start("200 OK", [])
        environ["kafka_coord.lasts"]()
        try:
            while True:
                yield b"x" * 100_000
        finally:
            ended.set()

    made = Exposition("127.0.0.1:0", None, lambda: (True, {}), setting="--listen-http", site=site)
    try:
        with socket.create_connection(("127.0.0.1", made.port)) as peer:
            peer.send(b"GET /anything HTTP/1.1\r\n\r\n")
            taken = 0
            while taken < 5_000_000:  # the whole response has no limit
                taken += len(peer.recv(100_000))
            assert not ended.is_set()
            assert ended.wait(30)
    finally:
        made.close()
    assert capfd.readouterr().err == ""


def test_new_peers_are_answered_despite_many_slow_requests(served: Exposition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_REQUESTS", 5)
    before = threading.active_count()
    peers = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(20)]
    for peer in peers:
        peer.send(b"GET /")
    assert healthy(served)
    eventually(lambda: threading.active_count() <= before + 5)
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(
    ("header", "own"),
    [
        ("localhost:9404", True),
        ("LOCALHOST.", True),
        ("127.0.0.1:9404", True),
        ("192.0.2.7", True),
        ("[::1]:9404", True),
        ("[2001:db8::1]", True),
        ("kafka-1:1", True),
        ("ops.example.org", True),
        ("evil.example.org", False),
        ("ops.example.org.evil.example.org", False),
        ("evil.example.org@localhost", False),
        ("127.0.0.1.evil.example.org:9404", False),
        ("localhost,evil.example.org", False),
        ("[::1]evil.example.org", False),
        ("127.1", False),
        ("", False),
    ],
)
def test_a_host_header_must_be_an_address_or_one_of_the_servers_names(header: str, own: bool) -> None:
    assert is_own(header, own_names("kafka-1", ["ops.example.org", ""])) is own


def told(environ: dict[str, Any], start: exposition.StartResponse) -> list[bytes]:
    """Reads the body, and answers with the scheme and the client's certificate."""
    environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
    start("200 OK", [])
    return [f"{environ['wsgi.url_scheme']} {environ.get('kafka_coord.certificate')}".encode()]


def asked(connection: http.client.HTTPConnection, path: str, host: str) -> tuple[int, bytes]:
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_with_a_foreign_host_name_only_metrics_and_health_are_served() -> None:
    made = Exposition(
        "127.0.0.1:0", Nothing(), lambda: (True, {}), setting="--listen-http", site=told, pages={"/page": list}
    )
    try:
        connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=20)
        for path in ("/dashboard/", "/page", "/"):
            status, body = asked(connection, path, f"evil.example.org:{made.port}")
            assert status == 421
            assert b"--http-host-names" in body
            assert asked(connection, path, f"localhost:{made.port}")[0] == 200
        for path in ("/metrics", "/health"):
            assert asked(connection, path, "kafka-1.monitoring.svc")[0] == 200
        connection.close()
    finally:
        made.close()


def test_over_tls_a_certificate_is_optional_and_plain_text_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    authority = trustme.CA()
    own, ca = tmp_path / "own.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own)
    authority.cert_pem.write_to_path(ca)
    tls = Certificate(own, None, ca, optional=True).context
    made = Exposition("127.0.0.1:0", None, lambda: (True, {}), setting="--listen-http", site=told, tls=tls)
    try:
        for name, said in ((None, b"https None"), ("alice", b"https alice")):
            trusting = ssl.create_default_context(cafile=str(ca))
            if name is not None:
                authority.issue_cert("127.0.0.1", common_name=name).configure_cert(trusting)
            connection = http.client.HTTPSConnection("127.0.0.1", made.port, timeout=20, context=trusting)
            assert asked(connection, "/", "localhost") == (200, said)
            connection.close()
        plain = http.client.HTTPConnection("127.0.0.1", made.port, timeout=20)
        with pytest.raises((http.client.HTTPException, OSError)):
            asked(plain, "/", "localhost")
        plain.close()
        monkeypatch.setattr(exposition, "REQUEST_S", 0.3)
        with socket.create_connection(("127.0.0.1", made.port), timeout=20) as silent:
            assert silent.recv(1) == b"", "a peer that never completes its handshake must be disconnected"
        with suppress(OSError):  # the peer may also be disconnected during its handshake
            plain_socket = socket.create_connection(("127.0.0.1", made.port), timeout=20)
            with trusting.wrap_socket(plain_socket, server_hostname="127.0.0.1") as unfinished:
                unfinished.send(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
                assert unfinished.recv(1) == b"", "a peer that never completes its body must be disconnected"
    finally:
        made.close()
    assert capfd.readouterr().err == ""
