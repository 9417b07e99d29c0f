"""A server that accepts connections, like a broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening() -> Iterator[int]:
    """Runs the server, and yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
