"""The options of a ZooKeeper connection: the connect string ``host:port,host:port/chroot``, TLS, ACLs, and the
credentials, which are read again for each new connection.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id

from kafka_coord.errors import SettingsError
from kafka_coord.renewed import Lifetime, Renewed
from kafka_coord.zk.acl import RULES, AclOf, AclPlan, digest_identity

DEFAULT_MAX_REQUEST_BYTES = 0xFFFFF
"""A server's default ``jute.maxbuffer``. If a request is longer, the server drops the connection."""


class Acl(StrEnum):
    """The kind of ACL that kafka-coord gives to the znodes it creates."""

    OPEN = "open"
    """Everyone may do everything, as in Kafka without ``zookeeper.set.acl``."""
    CREATOR_WORLD_READ = "creator-world-read"
    """The authenticated creator may do everything, and everyone else may read, as in Kafka with
    ``zookeeper.set.acl``."""
    CREATOR_ONLY = "creator-only"
    """The authenticated creator may do everything, and no one else may do anything."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to ZooKeeper's secure port. ``ca``, ``cert`` and ``key`` are PEM files."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Digest:
    """ZooKeeper's own ``digest`` scheme."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Digest(username={self.username!r})"


@dataclass(frozen=True, slots=True)
class Sasl:
    """SASL, with ``DIGEST-MD5`` (user name and password) or ``GSSAPI`` (Kerberos). Needs the extra ``sasl``."""

    mechanism: str = "DIGEST-MD5"
    username: str | None = None
    password: str | None = None
    service: str = "zookeeper"
    principal: str | None = None

    def __repr__(self) -> str:
        return f"Sasl(mechanism={self.mechanism!r}, username={self.username!r})"


@dataclass(frozen=True, slots=True)
class ZkOptions:
    """All settings of a ZooKeeper connection except the servers and the timeouts."""

    tls: Tls | None = None
    digest: Digest | None = None
    sasl: Sasl | None = None
    acl: Acl = Acl.OPEN
    plan: AclPlan | None = None
    """With separate identities, each znode below ``/consumers`` gets its ACL from this plan instead of ``acl``."""
    max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES
    """The servers' ``jute.maxbuffer``. Set this if the servers do not use the default."""
    multi_read: bool = True
    """Whether to use ZooKeeper 3.6's multi-read. The client detects whether the server supports it."""
    settings_file: Path | None = field(default=None, compare=False)
    """The file that the credentials were read from. When it has changed, the next connection calls ``reread``."""
    reread: Callable[[], ZkOptions] | None = field(default=None, compare=False, repr=False)
    """Returns the options as they are now, of which only the credentials count."""

    def acls_of(self, path: str) -> Sequence[Any]:
        """Returns the ACLs, in kazoo's format, for creating the znode ``path`` (below the chroot)."""
        return self.acls() if self.plan is None else to_kazoo(self.plan.of(path))

    def longest_acls(self) -> Sequence[Any]:
        """Returns the longest ACL that a znode may get, for size estimates."""
        if self.plan is None:
            return self.acls()
        groups = (*self.plan.consumers, "*")
        paths = (rule.place.replace("<group>", group) for rule in RULES for group in groups)
        return max((to_kazoo(self.plan.of(path)) for path in paths), key=len)

    def _check_plan(self, plan: AclPlan) -> None:
        if self.acl is not Acl.OPEN:
            raise SettingsError(f"ZooKeeper ACL {self.acl.value!r} and identities are both given; leave one out")
        if not (self.digest or self.sasl or (self.tls and self.tls.cert)):
            raise SettingsError(
                "identities are given, but this client has no credentials for any of them: "
                "provide digest or SASL credentials or a TLS client certificate"
            )
        if self.digest is not None and not (self.sasl or (self.tls and self.tls.cert)):
            mine = digest_identity(self.digest.username, self.digest.password)
            if mine not in plan.everyone():
                known = any(one.scheme == "digest" and one.user == mine.user for one in plan.everyone())
                raise SettingsError(
                    f"wrong ZooKeeper password for {mine.user!r}: the identities list a different hash for that user; "
                    "correct zookeeper.digest, or the identities if the password was changed"
                    if known
                    else f"ZooKeeper user {mine.user!r} has no role among the identities: "
                    "correct zookeeper.digest, or add the output of 'kafka-coord acl identity'"
                )

    def acls(self) -> Sequence[Any]:
        """Returns :attr:`acl` in kazoo's format. New znodes get these ACLs unless :attr:`plan` is set."""
        if self.acl is Acl.OPEN:
            return list(OPEN_ACL_UNSAFE)
        if self.acl is Acl.CREATOR_ONLY:
            return list(CREATOR_ALL_ACL)
        return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]

    def client_arguments(self) -> Mapping[str, Any]:
        """Returns the arguments for ``KazooClient``. Raises :class:`SettingsError` for options that cannot work."""
        if self.plan is not None:
            self._check_plan(self.plan)
        if self.acl is not Acl.OPEN and not (self.digest or self.sasl or (self.tls and self.tls.cert)):
            raise SettingsError(
                f"ZooKeeper ACL {self.acl.value!r} needs an authenticated creator: "
                f"provide digest or SASL credentials or a TLS client certificate, or use {Acl.OPEN.value!r}"
            )
        arguments: dict[str, Any] = {"default_acl": self.acls(), "read_only": False, "use_ssl": self.tls is not None}
        if self.digest is not None:
            arguments["auth_data"] = [("digest", f"{self.digest.username}:{self.digest.password}")]
        if self.sasl is not None:
            arguments["sasl_options"] = self._sasl_options(self.sasl)
        return arguments

    @staticmethod
    def _sasl_options(sasl: Sasl) -> Mapping[str, str]:
        if find_spec("puresasl") is None:
            raise SettingsError(f"SASL {sasl.mechanism} to ZooKeeper needs a package: pip install 'kafka-coord[sasl]'")
        given = {
            "mechanism": sasl.mechanism,
            "service": sasl.service,
            "username": sasl.username,
            "password": sasl.password,
            "principal": sasl.principal,
        }
        return {name: value for name, value in given.items() if value is not None}


def to_kazoo(acl: AclOf) -> list[Any]:
    """Converts a planned ACL to kazoo's format."""
    return [ACL(int(one.permissions), Id(one.identity.scheme, one.identity.name)) for one in acl]


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


@dataclass(frozen=True, slots=True)
class Credentials:
    """The TLS context, the time in which the client's certificate and its CA are valid, the digest credentials as
    ``user:password``, and the arguments for SASL."""

    tls: ssl.SSLContext | None
    lifetime: Lifetime | None
    digest: str | None
    sasl: Mapping[str, str] | None

    @classmethod
    def of(cls, options: ZkOptions) -> Credentials:
        """Reads the files of the options. Raises :class:`SettingsError`."""
        arguments = options.client_arguments()
        tls, lifetime = (None, None) if options.tls is None else _context(options.tls)
        digest = options.digest
        written = None if digest is None else f"{digest.username}:{digest.password}"
        return cls(tls, lifetime, written, arguments.get("sasl_options"))


def renewed_credentials(options: ZkOptions) -> Renewed[Credentials]:
    """Raises :class:`SettingsError`."""
    tls = options.tls
    files = [] if tls is None else [Path(file) for file in (tls.ca, tls.cert, tls.key) if file]
    reread = options.reread or (lambda: options)
    return Renewed(
        "credentials for ZooKeeper",
        (*files, options.settings_file),
        lambda: Credentials.of(reread()),
        lifetime=lambda found: found.lifetime,
    )


def _context(tls: Tls) -> tuple[ssl.SSLContext, Lifetime | None]:
    """Like kazoo's, the context does not compare the server's name with its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    try:
        if tls.ca:
            context.load_verify_locations(tls.ca)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key, tls.key_password or "")  # otherwise OpenSSL may ask for one
        return context, Lifetime.of(tls.cert or None, tls.ca or None)
    except OSError as error:  # which includes ssl.SSLError
        raise SettingsError(f"cannot set up TLS to ZooKeeper with {tls.cert or tls.ca}: {error}") from None
