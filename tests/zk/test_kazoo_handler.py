"""Tests of Ctrl-C while requests are being sent, and of waiting for sockets."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from kafka_coord.errors import SessionLost
from kafka_coord.zk import connect
from kafka_coord.zk.kazoo_private import KazooHandler
from kafka_coord.zk.store import Store


def ask_until_interrupted(store: Store, timer: threading.Timer) -> None:
    timer.start()
    for _ in range(20_000):
        store.exists("/")


def test_an_interrupt_ends_a_program_that_sends_requests_continuously(zk_hosts: str) -> None:
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


class Signal(BaseException):
    """An exception that a signal handler might raise."""


class RaisedAt:
    """A trace function that raises at a given step of the interpreter while a request is passed to kazoo."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, frame: FrameType, event: str, _argument: object) -> RaisedAt | None:
        if event == "call":
            inside = frame.f_code is _SENDING or (frame.f_back is not None and frame.f_back.f_trace is not None)
            frame.f_trace_opcodes = inside
            return self if inside else None
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                raise Signal
        return self


_SENDING = KazooHandler.sent.__code__


def interrupted_at(store: Store, step: int) -> bool:
    """Sends a request that is interrupted at that step. Returns ``False`` if there are fewer steps."""
    gc.disable()  # an exception in a callback of the collector, such as Hypothesis's, would only be printed
    sys.settrace(RaisedAt(step))
    try:
        store.exists("/")
    except Signal:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


def test_an_interrupt_at_any_step_of_a_request_is_not_lost(store: Store) -> None:
    steps = itertools.count(1)
    last = next(step for step in steps if not interrupted_at(store, step))
    assert last > 100, "every step of the request must be interrupted once"
    assert store.exists("/") is not None


def test_requests_work_while_an_interrupt_is_handled(store: Store) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        assert store.exists("/") is not None
        store.close()
        with pytest.raises(SessionLost):
            store.exists("/")


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that does not even refuse connections, because its queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        address = server.getsockname()
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield address


def test_a_server_that_does_not_answer_leaves_time_to_reach_another(
    silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = []
    connect_within = SequentialThreadingHandler.create_connection

    def noted(handler: KazooHandler, address: tuple[str, int], timeout: float) -> socket.socket:
        granted.append(timeout)
        return connect_within(handler, address, timeout=timeout)

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", noted)
    with pytest.raises(TimeoutError):
        KazooHandler(servers=60).create_connection(silent, timeout=30.0)
    assert granted == [0.5], "each server must get only its share of the session timeout"


def test_select_returns_sockets_that_are_readable_or_writable() -> None:
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
        assert handler.select([near], [], [], 1.0) == ([near], [], []), "a closed socket must count as readable"
        with pytest.raises(ValueError, match="negative"):
            handler.select([far], [], [], 0.0)
