"""The HTTP server of metrics and health, and peers that waste its threads. No ZooKeeper."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client.core import Metric

from kafka_coord.monitor import exposition
from kafka_coord.monitor.exposition import Exposition, gauge
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
    """Sends one more byte. Returns whether the other end has closed."""
    with suppress(BlockingIOError, TimeoutError):
        try:
            peer.send(b"x")
            return peer.recv(100) == b""
        except (ConnectionError, BrokenPipeError):
            return True
    return False


def test_a_peer_that_drips_its_request_loses_its_thread(served: Exposition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "REQUEST_S", 0.5)
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", served.port)) as peer:
        peer.settimeout(0.05)
        peer.send(b"GET /")
        eventually(lambda: threading.active_count() > before)
        eventually(lambda: is_over(peer))
    eventually(lambda: threading.active_count() == before)
    assert healthy(served)


def test_however_many_drip_whoever_comes_is_answered(served: Exposition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_REQUESTS", 5)
    before = threading.active_count()
    peers = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(20)]
    for peer in peers:
        peer.send(b"GET /")
    assert healthy(served)
    eventually(lambda: threading.active_count() <= before + 5)
    for peer in peers:
        peer.close()
