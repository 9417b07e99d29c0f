"""Tests links that can be cut, between real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from kafka_coord.dev.cluster.ports import LOOPBACK
from tests.chaos.links import Direction, Link, Network
from tests.waiting import eventually


@contextmanager
def echo() -> Iterator[int]:
    """Runs a server that echoes its input."""
    server = socket.create_server((LOOPBACK, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=[connection], daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while got := connection.recv(1000):
                    connection.sendall(got)
            except OSError:
                return

    accepting = threading.Thread(target=serve, daemon=True)
    accepting.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        accepting.join(5)
        server.close()


@pytest.fixture
def link() -> Iterator[Link]:
    with echo() as port, Network() as network:
        yield network.link([port])


def dial(link: Link) -> closing[socket.socket]:
    connection = socket.create_connection((LOOPBACK, link.ports[0]), timeout=5)
    return closing(connection)


def nothing_comes(connection: socket.socket) -> bool:
    connection.settimeout(0.3)
    try:
        return not connection.recv(10)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)


def test_a_link_passes_both_ways(link: Link) -> None:
    with dial(link) as connection:
        connection.sendall(b"hello")
        assert connection.recv(10) == b"hello"


@pytest.mark.parametrize("direction", list(Direction))
def test_a_cut_link_delivers_its_data_only_after_the_repair(link: Link, direction: Direction) -> None:
    with dial(link) as connection:
        connection.sendall(b"1")
        assert connection.recv(10) == b"1"
        link.cut(direction)
        connection.sendall(b"2")
        assert nothing_comes(connection)
        link.mend()
        assert connection.recv(10) == b"2"


def test_a_connection_opened_while_the_link_is_cut_works_after_the_repair(link: Link) -> None:
    link.cut()
    with dial(link) as connection:
        connection.sendall(b"late")
        assert nothing_comes(connection)
        link.mend()
        assert connection.recv(10) == b"late"


def test_a_reset_breaks_open_connections_but_no_later_ones(link: Link) -> None:
    with dial(link) as before:
        before.sendall(b"1")
        assert before.recv(10) == b"1"
        link.reset()
        assert _ended(before)
    with dial(link) as after:
        after.sendall(b"2")
        assert after.recv(10) == b"2"


def test_when_one_side_closes_the_other_is_closed_too() -> None:
    server = socket.create_server((LOOPBACK, 0))
    with closing(server), Network() as network:
        link = network.link([server.getsockname()[1]])
        with dial(link) as client:
            client.sendall(b"x")
            accepted, _ = server.accept()
            accepted.settimeout(5)
            assert accepted.recv(1) == b"x"
        eventually(lambda: _ended(accepted))
        accepted.close()


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True
