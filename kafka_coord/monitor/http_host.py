"""Decides which ``Host`` headers the HTTP server accepts, as a defence against DNS rebinding.

A malicious site can make its own name resolve to this server's address. A visitor's browser then lets the site's
scripts read this server's responses, but the ``Host`` header still carries the site's name. An IP address in the header
is always accepted: the request did not use a name, so the attack is not possible.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from kafka_coord.settings import host_and_port, is_address


def own_names(listen_host: str, also: Iterable[str]) -> frozenset[str]:
    """Returns the server's names: the host name, the host in the listening address, ``localhost``, and ``also``."""
    names = {"localhost", listen_host, socket.gethostname(), socket.getfqdn(), *also}
    return frozenset(name.lower().rstrip(".") for name in names if name)


def is_own(header: str, names: frozenset[str]) -> bool:
    """Returns whether a ``Host`` header names this server, with any port."""
    try:
        host, _ = host_and_port(header if header.rpartition(":")[2].isdigit() else f"{header}:0")
    except ValueError:
        return False
    return is_address(host) or host.lower().rstrip(".") in names
