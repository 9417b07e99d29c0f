"""Parses the connect string ``host:port,host:port/chroot``."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from kafka_coord.errors import SettingsError

DEFAULT_PORT = 2181
MAX_CHARS = 10_000
EXAMPLE = "zk1:2181,zk2:2181/kafka"


@dataclass(frozen=True, slots=True)
class ConnectString:
    """The servers as ``host:port``, and the chroot under which everything is stored (empty for the root)."""

    servers: tuple[str, ...]
    chroot: str = ""

    def __str__(self) -> str:
        return ",".join(self.servers) + self.chroot

    def unknown_hosts(self) -> tuple[str, ...]:
        """Returns the host names that do not currently resolve."""
        return tuple(host for server in self.servers if not _resolves(host := server.rpartition(":")[0].strip("[]")))

    def absolute(self, path: str) -> str:
        """Converts a path below the chroot to a path on the server."""
        if not self.chroot:
            return path
        return self.chroot if path == "/" else self.chroot + path

    def relative(self, path: str) -> str:
        """Converts a path on the server to a path below the chroot."""
        if not self.chroot:
            return path
        return path[len(self.chroot) :] or "/"


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def parse_connect_string(hosts: str) -> ConnectString:
    """Parses a connect string. Raises :class:`SettingsError`, which names the faulty part."""
    if len(hosts) > MAX_CHARS:
        raise SettingsError(f"the ZooKeeper connect string is {len(hosts)} characters long; the limit is {MAX_CHARS}")
    shown = repr(hosts[:200])
    written, slash, rest = hosts.strip().partition("/")
    servers = []
    for server in written.split(","):
        try:
            parts = urlsplit(f"//{server.strip()}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise SettingsError(
                f"ZooKeeper server {server[:100]!r} in {shown}: {str(error)[:100]}; expected something like {EXAMPLE!r}"
            ) from None
        if not host or parts.username is not None:
            raise SettingsError(
                f"ZooKeeper server {server[:100]!r} in {shown} is not host:port; expected something like {EXAMPLE!r}"
            )
        servers.append(f"[{host}]:{port or DEFAULT_PORT}" if ":" in host else f"{host}:{port or DEFAULT_PORT}")
    chroot = (slash + rest).rstrip("/")
    if any(segment in {"", ".", ".."} or "\0" in segment for segment in chroot.split("/")[1:]):
        raise SettingsError(
            f"chroot {chroot[:100]!r} in {shown} is not a ZooKeeper path; expected something like {EXAMPLE!r}"
        )
    return ConnectString(tuple(servers), chroot)
