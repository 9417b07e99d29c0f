"""Ctrl-C while requests are being sent, and waiting for sockets."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kafka_coord.zk import connect
from kafka_coord.zk.kazoo_handler import KazooHandler
from kafka_coord.zk.store import Store


def ask_until_interrupted(store: Store, timer: threading.Timer) -> None:
    timer.start()
    for _ in range(20_000):
        store.exists("/")


def test_an_interrupt_ends_a_program_that_is_busy_asking_zookeeper(zk_hosts: str) -> None:
    delays = random.Random(1)
    main = threading.main_thread().ident
    assert main is not None
    with contextlib.closing(connect(zk_hosts)) as store:
        for _ in range(150):
            timer = threading.Timer(delays.uniform(0, 0.01), signal.pthread_kill, (main, signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                ask_until_interrupted(store, timer)
            timer.join()
        assert store.exists("/") is not None


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address where nothing answers, not even a refusal: its queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        address = server.getsockname()
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield address


def test_a_server_that_does_not_answer_leaves_time_to_reach_another(silent: tuple[str, int]) -> None:
    session_timeout_s = 60.0
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        KazooHandler(servers=60).create_connection(silent, timeout=session_timeout_s)
    assert time.monotonic() - begun < session_timeout_s / 2


def test_sockets_are_waited_for_until_one_may_be_read_or_written() -> None:
    handler = KazooHandler()
    near, far = socket.socketpair()
    with near, far:
        assert handler.select([near], [], [], 0.01) == ([], [], [])
        assert handler.select([near], [near], [], 1.0) == ([], [near], [])
        far.send(b"x")
        assert handler.select([near, far], [], []) == ([near], [], [])
        assert handler.select([near], [near, far], [], 1.0) == ([near], [near, far], [])
        far.close()
        near.recv(1)
        assert handler.select([near], [], [], 1.0) == ([near], [], []), "the end is read too"
        with pytest.raises(ValueError, match="negative"):
            handler.select([far], [], [], 0.0)
