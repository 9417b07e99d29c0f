"""How to reach a ZooKeeper that asks for more than a host and a port: TLS, credentials, ACLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Any

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id

from kafka_coord.errors import SettingsError
from kafka_coord.zk.acl import RULES, AclOf, AclPlan, Identity
from kafka_coord.zk.acl_identities import digest_identity

DEFAULT_MAX_REQUEST_BYTES = 0xFFFFF
"""``jute.maxbuffer`` of a server nobody configured: a longer request makes it drop the connection."""


class Acl(StrEnum):
    """Who may do what with the znodes this project creates."""

    OPEN = "open"
    """Everyone everything, as Kafka does without ``zookeeper.set.acl``."""
    CREATOR_WORLD_READ = "creator-world-read"
    """The authenticated creator everything, everyone else may read: as Kafka does with ``zookeeper.set.acl``."""
    CREATOR_ONLY = "creator-only"
    """The authenticated creator everything, nobody else anything."""


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
    """SASL, as ``DIGEST-MD5`` (user name and password) or ``GSSAPI`` (Kerberos). Needs the ``pure-sasl`` package."""

    mechanism: str = "DIGEST-MD5"
    username: str | None = None
    password: str | None = None
    service: str = "zookeeper"
    principal: str | None = None

    def __repr__(self) -> str:
        return f"Sasl(mechanism={self.mechanism!r}, username={self.username!r})"


@dataclass(frozen=True, slots=True)
class ZkOptions:
    """All there is to set about a ZooKeeper connection besides where and how long."""

    tls: Tls | None = None
    digest: Digest | None = None
    sasl: Sasl | None = None
    acl: Acl = Acl.OPEN
    plan: AclPlan | None = None
    """Separate identities: each znode below ``/consumers`` is made with the ACL this says, in place of ``acl``."""
    max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES
    """The servers' ``jute.maxbuffer`` where it was changed."""
    multi_read: bool = True
    """Use ZooKeeper 3.6's multi-read where the server knows it; it is found out by itself, so rarely set."""

    def acls_of(self, path: str) -> Sequence[Any]:
        """The kazoo ACLs of the znode ``path`` (below the chroot) when it is created."""
        return self.acls() if self.plan is None else to_kazoo(self.plan.of(path))

    def longest_acls(self) -> Sequence[Any]:
        """The longest ACL a znode may get, for estimates of sizes."""
        if self.plan is None:
            return self.acls()
        groups = (*self.plan.consumers, "*")
        paths = (rule.place.replace("<group>", group) for rule in RULES for group in groups)
        return max((to_kazoo(self.plan.of(path)) for path in paths), key=len)

    def whoami(self) -> Identity | None:
        """Whom ZooKeeper will know this client by, where that can be told without asking it."""
        if self.digest is not None:
            return digest_identity(self.digest.username, self.digest.password)
        if self.sasl is not None and self.sasl.mechanism == "DIGEST-MD5" and self.sasl.username:
            return Identity("sasl", self.sasl.username)
        return None

    def _check_plan(self, plan: AclPlan) -> None:
        if self.acl is not Acl.OPEN:
            raise SettingsError(f"ZooKeeper ACL {self.acl.value!r} and identities are both given: leave one out")
        if not (self.digest or self.sasl or (self.tls and self.tls.cert)):
            raise SettingsError(
                "identities are given, but this client proves none to ZooKeeper: "
                "give digest or SASL credentials or a TLS client certificate"
            )
        if self.digest is not None and not (self.sasl or (self.tls and self.tls.cert)):
            mine = digest_identity(self.digest.username, self.digest.password)
            if mine not in plan.everyone():
                known = any(one.scheme == "digest" and one.user == mine.user for one in plan.everyone())
                raise SettingsError(
                    f"wrong ZooKeeper password for {mine.user!r}: the identities hold another hash for that user; "
                    "correct zookeeper.digest, or the identities if the password was changed"
                    if known
                    else f"ZooKeeper user {mine.user!r} has no role among the identities: "
                    "correct zookeeper.digest, or add what 'kafka-coord acl identity' prints"
                )

    def acls(self) -> Sequence[Any]:
        """The kazoo ACLs of what is created where there is no plan."""
        if self.acl is Acl.OPEN:
            return list(OPEN_ACL_UNSAFE)
        if self.acl is Acl.CREATOR_ONLY:
            return list(CREATOR_ALL_ACL)
        return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]

    def client_arguments(self) -> Mapping[str, Any]:
        """What of this goes to ``KazooClient``; raises :class:`SettingsError` for what cannot work."""
        if self.plan is not None:
            self._check_plan(self.plan)
        if self.acl is not Acl.OPEN and not (self.digest or self.sasl or (self.tls and self.tls.cert)):
            raise SettingsError(
                f"ZooKeeper ACL {self.acl.value!r} needs somebody to be the creator: "
                f"give digest or SASL credentials or a TLS client certificate, or use {Acl.OPEN.value!r}"
            )
        arguments: dict[str, Any] = {"default_acl": self.acls(), "read_only": False}
        if self.tls is not None:
            arguments |= {
                "use_ssl": True,
                "ca": self.tls.ca,
                "certfile": self.tls.cert,
                "keyfile": self.tls.key,
                "keyfile_password": self.tls.key_password,
                "verify_certs": self.tls.verify,
            }
        if self.digest is not None:
            arguments["auth_data"] = [("digest", f"{self.digest.username}:{self.digest.password}")]
        if self.sasl is not None:
            arguments["sasl_options"] = self._sasl_options(self.sasl)
        return arguments

    @staticmethod
    def _sasl_options(sasl: Sasl) -> Mapping[str, str]:
        if find_spec("puresasl") is None:
            raise SettingsError(f"SASL {sasl.mechanism} to ZooKeeper needs a package: run 'pip install pure-sasl'")
        given = {
            "mechanism": sasl.mechanism,
            "service": sasl.service,
            "username": sasl.username,
            "password": sasl.password,
            "principal": sasl.principal,
        }
        return {name: value for name, value in given.items() if value is not None}


def to_kazoo(acl: AclOf) -> list[Any]:
    """The plan's values as kazoo takes them."""
    return [ACL(int(one.permissions), Id(one.identity.scheme, one.identity.name)) for one in acl]
