"""Decides whether a client may register now, and builds its registration if so.

The users file has each user's secret (as a hash) or certificate name, and the groups that the user may join.

::

    [users.etl]
    secret_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    groups = ["delays", "etl-.*"]

    [users.worker]
    certificate = "worker.example.org"
    groups = [".*"]

Without the file, anyone may register in any group, as on a ZooKeeper without ACLs.

The rate of registrations is limited. A client over the limit gets a place: a time reserved for its retry.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.channel.messages import Code, MessageType, Register
from kafka_coord.errors import InvalidName, InvalidPattern, MalformedValue, SettingsError
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions, RegistrationWanted
from kafka_coord.frontends.members.registering import Refusal, made_id, registration_value, too_large
from kafka_coord.frontends.socket.connection import Connection
from kafka_coord.model import Subscription
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import group_pattern, legal, topic_pattern
from kafka_coord.renewed import Renewed
from kafka_coord.settings import parse_toml
from kafka_coord.zk.store import Clock

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


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Limits and intervals."""

    least_session_timeout_ms: int = 1_000
    """The shortest session timeout that a consumer may request."""
    most_session_timeout_ms: int = 300_000
    """The longest session timeout that a consumer may request."""
    most_consumers: int = 10_000
    """The maximum number of consumers that one instance accepts."""
    registrations_per_s: int = 200
    """The maximum number of registrations per second. The rest must be retried later, so that existing members do not
    have to wait and one rebalance serves many new consumers."""
    unregistered_ms: int = 10_000
    """How long a connection may stay open without an attempt to register."""
    commit_interval_ms: int = 100
    """How long the offsets in responses to pings are collected before they are written together."""
    metadata_age_ms: int = 200
    """The maximum age of metadata in a response."""


_BURST_S = 1.0
"""How many seconds' worth of unused capacity is saved up. All of it can then be used at once."""


class Admission:
    """Admits ``per_s`` registrations a second. All times are in monotonic seconds.

    Clients get places in the order of their requests, and the places are evenly spaced in time. Retrying early does not
    help: a client is admitted if it retries at its place, however many others have sent requests since.
    """

    def __init__(self, per_s: int, now: float) -> None:
        self._every_s = 1 / per_s
        self._next = now - _BURST_S

    def too_early_s(self, connection: Connection, longest_s: float, now: float) -> float:
        """Like :meth:`wait_s`, but does not reserve a place, and returns 0 if the client could get a place now. It is
        cheap enough to be called before the request is decoded."""
        if connection.place is not None:
            return max(0.0, connection.place - now)
        return longest_s if self._next - now > longest_s else 0.0

    def wait_s(self, connection: Connection, longest_s: float, now: float) -> float:
        """Returns 0 if the client may proceed. Otherwise, returns how long it must wait before it retries on this
        connection: at most ``longest_s``. If the next free place is later than that, does not reserve it."""
        if connection.place is not None:
            left_s = connection.place - now
            if left_s <= 0:
                connection.place = None
            return max(0.0, left_s)
        place = max(self._next, now - _BURST_S)
        wait_s = max(0.0, place - now)
        if wait_s > longest_s:
            return longest_s
        self._next = place + self._every_s
        if wait_s > 0:
            connection.place = place
        return wait_s


_LONGEST_WAIT = 0.3
"""The longest wait, as a fraction of the session timeout. A consumer that had to wait longer might take the instance
for dead."""

_LONGEST_REST_S = 5.0
"""The longest time that the gateway stops reading from a client that has retried too early, in seconds."""


class RegistrationCheck:
    """Checks clients that want to register. ``instance`` is the broker id. Without ``access``, anyone may register in
    any group. ``nonce`` returns a unique value for each registration."""

    def __init__(
        self,
        clock: Clock,
        instance: int,
        options: GatewayOptions,
        access: SocketAccess | UsersFile | None,
        nonce: Callable[[], str] | None = None,
    ) -> None:
        self._clock = clock
        self._instance = instance
        self._options = options
        self._access = access
        self._nonce = nonce or (lambda: secrets.token_hex(8))
        self._admission = Admission(options.registrations_per_s, clock.monotonic())

    def registration(
        self, connection: Connection, request: int, frame: fields.Json, has_room: Callable[[str, str, int], bool]
    ) -> RegistrationWanted | Refusal:
        """Returns the registration to write, or the reason for refusing it. Raises :class:`MalformedValue`."""
        early = self._too_early(connection, frame)
        if early is not None:
            return early
        try:
            _check_subscription(frame)
        except MalformedValue as error:
            return Refusal(Code.BAD_SUBSCRIPTION, str(error), (("field", error.field or "subscription"),))
        register = Register.from_json(frame)
        refusal = self._why_not(register, connection.peer.certificate, has_room) or self._not_yet(register, connection)
        if refusal is not None:
            return refusal
        now_ms, address = int(self._clock.time() * 1000), connection.peer.address
        value = registration_value(register, self._instance, address, now_ms, self._nonce())
        consumer = register.member.consumer or made_id(register.group, address, now_ms)
        options = RegistrationOptions(
            register.member.session_timeout_ms / 1000, register.auto_commit, register.resume_key
        )
        wanted = RegistrationWanted(connection.number, request, register.group, consumer, options, value)
        return too_large(value) or wanted

    def why_no_member(self, group: str, secret: str | None, certificate: str | None) -> Refusal | None:
        """Returns why a client with the given credentials is not allowed to join the group, or ``None`` if it is."""
        return self._access.why_not(group, secret, certificate) if self._access is not None else None

    def _why_not(
        self, register: Register, certificate: str | None, has_room: Callable[[str, str, int], bool]
    ) -> Refusal | None:
        options, consumer, field = self._options, register.member.consumer, "group"
        try:
            legal("group", register.group)
            if consumer:
                field = "consumer_id"
                legal("consumer", consumer)
        except InvalidName as error:
            return Refusal(Code.BAD_NAME, str(error), (("field", field),))
        refusal = self.why_no_member(register.group, register.secret, certificate)
        if refusal is not None:
            return refusal
        least, most = options.least_session_timeout_ms, options.most_session_timeout_ms
        if not least <= register.member.session_timeout_ms <= most:
            return Refusal(
                Code.TIMEOUT_OUT_OF_RANGE,
                f"session_timeout_ms must be {least} to {most}, not {register.member.session_timeout_ms}",
                (("least_ms", least), ("most_ms", most)),
            )
        if not has_room(register.group, consumer, options.most_consumers):
            return Refusal(Code.TOO_MANY_CONSUMERS, f"this instance already serves {options.most_consumers} consumers")
        return None

    def _too_early(self, connection: Connection, frame: fields.Json) -> Refusal | None:
        """Refuses a client that retries before its reserved time, or that cannot get a place yet. Does not decode its
        registration, and stops reading from its connection for a while, so a flood of registrations costs next to
        nothing. Returns ``None`` for any other client."""
        timeout_ms = frame.get("session_timeout_ms")
        longest_s = timeout_ms / 1000 * _LONGEST_WAIT if isinstance(timeout_ms, int) else 0.0
        wait_s = self._admission.too_early_s(connection, longest_s, self._clock.monotonic())
        if wait_s <= 0:
            return None
        connection.peer.rest(min(wait_s, _LONGEST_REST_S))
        return _slow_down(wait_s)

    def _not_yet(self, register: Register, connection: Connection) -> Refusal | None:
        longest_s = register.member.session_timeout_ms / 1000 * _LONGEST_WAIT
        wait_s = self._admission.wait_s(connection, longest_s, self._clock.monotonic())
        return _slow_down(wait_s) if wait_s > 0 else None


def _slow_down(wait_s: float) -> Refusal:
    message = "too many consumers are registering; retry on this connection after retry_ms"
    return Refusal(Code.SLOW_DOWN, message, (("retry_ms", math.ceil(wait_s * 1000)),))


def _check_subscription(frame: fields.Json) -> None:
    wanted = Subscription.from_json(frame, MessageType.REGISTER)
    if not wanted.is_wildcard and not wanted.topics:
        raise MalformedValue(MessageType.REGISTER, "field 'subscription' must name a topic", "subscription")
