"""Chooses TCP ports on loopback for servers that must restart on the same port."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from kafka_coord.errors import DevClusterError

LOOPBACK = "127.0.0.1"

_LOWEST = 15_000
_BLOCK = 400
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

_given_out: set[int] = set()
_own_blocks: set[int] = set()
"""The first port of each block that this process owns. The process holds a file lock for each block until it exits."""
_lock = threading.Lock()


def free_port() -> int:
    """Returns a free port below the kernel's range for outgoing connections, and never the same port twice.

    Binding to port 0 would choose a port from that range. While a killed server is down, any outgoing connection could
    take its port, and a client that retries the port on loopback might even connect to itself. Each process locks a
    block of ports, so no other process of this user takes the port of a server that is down.
    """
    end = _first_ephemeral_port()
    with _lock:
        for first in (*_own_blocks, *_shuffled(range(_LOWEST, end, _BLOCK))):
            if not _owns(first):
                continue
            for port in _shuffled(range(first, min(first + _BLOCK, end))):
                if port not in _given_out and port_is_free(port):
                    _given_out.add(port)
                    return port
    raise DevClusterError(f"no free TCP port between {_LOWEST} and {end - 1} on {LOOPBACK}; stop a server there")


def _owns(first: int) -> bool:
    """Returns whether this process owns the block that begins with this port. Takes the block if nobody owns it."""
    if first in _own_blocks:
        return True
    directory = Path(tempfile.gettempdir(), f"kafka-coord-ports-{os.getuid()}")
    directory.mkdir(exist_ok=True)
    file = os.open(directory / str(first), os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _own_blocks.add(first)
    return True


def port_is_free(port: int) -> bool:
    """Returns whether a server could bind ``port`` on loopback now. Connections in TIME_WAIT do not matter."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def require_free(port: int, what: str) -> None:
    """Raises :class:`DevClusterError` if ``port``, which the user chose for ``what``, is taken."""
    if not port_is_free(port):
        raise DevClusterError(
            f"{what}: port {port} on {LOOPBACK} is taken; stop the process that listens there, or choose another port"
        )


def _first_ephemeral_port() -> int:
    try:
        first = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
    # If the machine uses nearly all ports for outgoing connections, assume the usual range.
    return first if first >= _LOWEST + 1_000 else 32_768


def _shuffled(ports: range) -> Iterator[int]:
    return iter(random.sample(ports, len(ports)))
