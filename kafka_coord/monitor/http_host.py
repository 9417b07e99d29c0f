"""Which ``Host`` headers the HTTP server accepts: a defence against DNS rebinding.

A site can make its own name point to this server's address. The visitor's browser then treats what this server answers
as the site's own, and lets its scripts read it. The browser still sends the site's name. A request for an IP address
was not sent for a name, so it is always accepted.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from kafka_coord.settings import host_and_port, is_address


def own_names(listen_host: str, also: Iterable[str]) -> frozenset[str]:
    """The names of this server: the host's name, the host in the listening address, ``localhost``, and ``also``."""
    names = {"localhost", listen_host, socket.gethostname(), socket.getfqdn(), *also}
    return frozenset(name.lower().rstrip(".") for name in names if name)


def is_own(header: str, names: frozenset[str]) -> bool:
    """Whether a ``Host`` header names this server, at any port."""
    try:
        host, _ = host_and_port(header if header.rpartition(":")[2].isdigit() else f"{header}:0")
    except ValueError:
        return False
    return is_address(host) or host.lower().rstrip(".") in names
