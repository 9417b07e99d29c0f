"""Reads the users file: each user's secret (as a hash) or certificate name, and the groups that the user may join.

::

    [users.etl]
    secret_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    groups = ["delays", "etl-.*"]

    [users.worker]
    certificate = "worker.example.org"
    groups = [".*"]

Without the file, anyone may register in any group, as on a ZooKeeper without ACLs.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.channel.messages import Code
from kafka_coord.errors import InvalidPattern, SettingsError
from kafka_coord.frontends.members.registering import Refusal
from kafka_coord.model.pattern import group_pattern, topic_pattern
from kafka_coord.renewed import Renewed
from kafka_coord.settings import parse_toml

log = logging.getLogger(__name__)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = frozenset({"secret_sha256", "certificate", "groups"})


@dataclass(frozen=True, slots=True)
class User:
    """A user's credentials, and regular expressions (RE2) for the groups that the user may join. An expression must
    match the group's entire name."""

    name: str
    secret_sha256: str | None
    certificate: str | None
    groups: tuple[str, ...]

    def is_proven(self, secret: str | None, certificate: str | None) -> bool:
        """Returns whether the secret or the certificate authenticates the client as the user."""
        if self.certificate is not None and certificate == self.certificate:
            return True
        if self.secret_sha256 is None or secret is None:
            return False
        return hmac.compare_digest(hashlib.sha256(secret.encode()).hexdigest(), self.secret_sha256)

    def may(self, group: str) -> bool:
        """Returns whether the user may join the group."""
        return any(topic_pattern(pattern).fits(group) for pattern in self.groups)


class SocketAccess:
    """The users listed in a file."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = dict(users)

    @classmethod
    def load(cls, path: Path, table: str = "users") -> SocketAccess:
        """Reads the users from the tables ``[<table>.<name>]`` of a file. Raises :class:`SettingsError`."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise SettingsError(f"{path}: cannot read the {table} file: {error}") from None
        written = parse_toml(raw, f"{table} file {path}")
        users = written.get(table)
        if set(written) != {table} or not isinstance(users, dict) or not users:
            raise SettingsError(f"{path} must contain one or more tables [{table}.NAME] and nothing else")
        return cls({name: _user(name, value, f"{path}: {table}.{name}") for name, value in users.items()})

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def proven(self, secret: str | None, certificate: str | None) -> list[User]:
        """Returns the users that a client with this secret, or with this common name in its certificate, may act as."""
        return [user for user in self._users.values() if user.is_proven(secret, certificate)]

    def why_not(self, group: str, secret: str | None, certificate: str | None) -> Refusal | None:
        """Returns why a client is not allowed to join the group, or ``None`` if it is. ``certificate`` is the common
        name in the client's certificate."""
        proven = self.proven(secret, certificate)
        if not proven:
            return Refusal(Code.NOT_AUTHENTICATED, "no user has this secret or certificate")
        if not any(user.may(group) for user in proven):
            names = ", ".join(user.name for user in proven)
            return Refusal(Code.NOT_AUTHORISED, f"user {names} is not allowed to join group {group!r}")
        return None


class UsersFile(Renewed[SocketAccess]):
    """The users in a file, read again when it changes. The constructor raises :class:`SettingsError`."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"users file {path}", (path,), lambda: SocketAccess.load(path))

    def why_not(self, group: str, secret: str | None, certificate: str | None) -> Refusal | None:
        """See :meth:`SocketAccess.why_not`."""
        return self.newest().why_not(group, secret, certificate)


class DenialLog:
    """Logs denials with the address and the reason, but never a secret. Logs at most ``MOST`` of them in ``PERIOD_S``
    seconds, and only counts the rest."""

    MOST, PERIOD_S = 10, 60.0

    def __init__(self, who: str = "socket consumer") -> None:
        self._who = who
        self._since = float("-inf")
        self._count = 0

    def note(self, address: str, code: str, reason: str, now: float) -> None:
        """Logs or counts one denial. ``now`` is in monotonic seconds."""
        if now >= self._since + self.PERIOD_S:
            if self._count > self.MOST:
                log.warning("denied access to %d more %ss in the last period", self._count - self.MOST, self._who)
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= self.MOST:
            log.warning(
                "denied access to %s address=%s code=%s reason=%r",
                *(self._who, address, code, reason),
                extra={"event": "access_denied"},
            )


def _user(name: str, value: Any, where: str) -> User:
    if not isinstance(value, dict) or set(value) - _FIELDS:
        raise SettingsError(f"{where} must be a table with no keys other than {', '.join(sorted(_FIELDS))}")
    secret, certificate, groups = value.get("secret_sha256"), value.get("certificate"), value.get("groups")
    if secret is None and certificate is None:
        raise SettingsError(
            f"{where}: add secret_sha256 or certificate; without either, no one can authenticate as this user"
        )
    if secret is not None and not (isinstance(secret, str) and _SHA256.fullmatch(secret)):
        raise SettingsError(f"{where}.secret_sha256 must be 64 hexadecimal digits, from printf %s SECRET | sha256sum")
    if certificate is not None and not (isinstance(certificate, str) and certificate):
        raise SettingsError(f"{where}.certificate must be the common name of the user's certificate")
    if not isinstance(groups, list) or not groups or not all(isinstance(group, str) for group in groups):
        raise SettingsError(f"{where}.groups must be an array of regular expressions for group names")
    try:
        for group in groups:
            group_pattern(group, f"an expression in {where}.groups")
    except InvalidPattern as error:
        raise SettingsError(f"{where}.groups: {error}") from None
    return User(name, secret, certificate, tuple(groups))
