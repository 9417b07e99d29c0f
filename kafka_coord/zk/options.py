"""The options of a ZooKeeper connection, apart from host and port: TLS, credentials and ACLs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id

from kafka_coord.errors import SettingsError
from kafka_coord.zk.acl import RULES, AclOf, AclPlan
from kafka_coord.zk.acl_identities import digest_identity

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
