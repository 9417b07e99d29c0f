"""A server that accepts connections, as a broker does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening() -> Iterator[int]:
    """The port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
