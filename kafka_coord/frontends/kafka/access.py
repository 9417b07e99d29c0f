"""Says who sent a request, and asks the broker what a client may do, on the client's own connection to the broker.

This way, the broker's ACLs remain the only source of permissions. Each question is a request that changes nothing, and
that every broker authorizes before it does anything else:

==========================  ==================================================
permission                  request
==========================  ==================================================
everything (no authorizer)  DescribeAcls, which then returns SECURITY_DISABLED
READ a group                Heartbeat from an unknown member
DESCRIBE groups             DescribeGroups
DELETE a group              OffsetDelete without topics
READ or DESCRIBE topics     Metadata with authorized operations
DESCRIBE the cluster        Metadata with authorized operations
==========================  ==================================================

DescribeGroups with authorized operations would return all permissions for a group at once, but only the group's native
coordinator fills them in.

The groups' histories name the principal, the client id and the address of who sent a request. The broker authenticates
the client, and does not say as whom. The name is therefore the one with which the client logs in; a request reaches
this instance only after the broker has accepted the login. The broker may map it to another name
(``principal.builder.class``, ``sasl.kerberos.principal.to.local.rules``).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.kafka.connection import Versions, newest_common, told_versions
from kafka_coord.wire.frames import peek, read_header
from kafka_coord.wire.messages import BadMessage, message

KNOWN_S = 30.0
"""How long a client's permissions are cached, in seconds."""
MOST_KNOWN = 100_000
_METADATA = 8
"""The first version of Metadata with authorized operations. All other requests but DescribeAcls are sent in version 0,
which every broker from 0.11 to 4.3 supports."""
_RELEASES = "Kafka 2.4 to 4.3 where the brokers have an authorizer"
_DESCRIBE_ACLS = 0, 1
"""Kafka 4 has no version 0, and Kafka before 2.0 no version 1."""
_SECURITY_DISABLED = 54
_CLUSTER_RESOURCE, _ANY = 4, 1
_NO_NAMES: frozenset[str] = frozenset()

Asking = Callable[[str, int, Any], Awaitable[Any]]
"""Sends the broker a request, given by name, version and message, and returns the response."""
ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that has not logged in."""
UNKNOWN = "User:?"
"""A client that has logged in with a mechanism that does not show its name, such as GSSAPI."""
MAX_CHARS = 100
"""The length to which each part of a description is cut."""
_GS2 = re.compile(rb"[ny](?:,|=[^,]*,)(?:a=[^,]*)?,")
"""The header with which a SCRAM or OAUTHBEARER message begins (RFC 5801)."""


class Operation(IntEnum):
    """ACL operations, with Kafka's codes."""

    READ = 3
    DELETE = 6
    DESCRIBE = 8

    def within(self, bits: int) -> bool:
        """Returns whether the authorized operations in ``bits`` include this one. If ``bits`` is negative, the
        broker did not return any operations, and none is allowed."""
        return bits >= 0 and bool(bits >> self & 1)


_HARMLESS: dict[Operation, tuple[str, dict[str, Any]]] = {
    Operation.READ: ("Heartbeat", {"generation_id": -1, "member_id": ""}),
    Operation.DELETE: ("OffsetDelete", {"topics": ()}),
}


class BrokerAccess:
    """What this instance knows about the broker, shared by all clients."""

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self.has_authorizer = False
        """Whether the broker is known to have an authorizer. A broker without one allows everything."""
        self.versions: Mapping[int, Versions] | None = None
        """The versions that it supports, by API key, or ``None`` until it has been asked."""

    @property
    def known_s(self) -> float:
        """How long a permission counts as known, in seconds. Asking again also keeps the broker from closing the idle
        connection of a client that has logged in, whom this instance could not log in again."""
        return min(KNOWN_S, self._limits.idle_s / 3)


class Access:
    """The permissions of one client. Every method that asks the broker may raise :class:`OSError` and
    :class:`BadMessage`, as ``ask`` does. A client that has not authenticated learns nothing: the broker closes its
    connection instead of answering."""

    def __init__(self, ask: Asking, broker: BrokerAccess) -> None:
        self._ask, self._broker = ask, broker
        self._allowed: dict[tuple[Operation, bool, str], bool] = {}
        self._is_open = False
        self._until = 0.0

    def forget(self) -> None:
        """Drops the client's cached permissions. Call it whenever the client re-authenticates."""
        self._until = 0.0

    def denied_groups(self, operation: Operation, groups: Iterable[str]) -> Awaitable[frozenset[str]]:
        """Returns the groups for which the client lacks the permission."""
        return self._denied(operation, True, groups)

    def denied_topics(self, operation: Operation, topics: Iterable[str]) -> Awaitable[frozenset[str]]:
        return self._denied(operation, False, topics)

    async def operations(self, groups: Iterable[str]) -> dict[str, int]:
        """Returns the operations that the client may perform on each group, as bits (KIP-430)."""
        bits = dict.fromkeys(groups, 0)
        for operation in Operation:
            for group in bits.keys() - await self.denied_groups(operation, bits):
                bits[group] |= 1 << operation
        return bits

    async def may_describe_cluster(self) -> bool:
        if await self._everything():
            return True
        form = message("MetadataRequest")
        asked = form(topics=(), include_cluster_authorized_operations=True)
        response = await self._ask("Metadata", await self._newest("Metadata", _METADATA), asked)
        return Operation.DESCRIBE.within(response.cluster_authorized_operations)

    async def _denied(self, operation: Operation, of_group: bool, names: Iterable[str]) -> frozenset[str]:
        if self._is_open and time.monotonic() < self._until:  # spares most requests another coroutine
            return _NO_NAMES
        if await self._everything():
            return _NO_NAMES
        requested = set(names)
        unknown = sorted(name for name in requested if (operation, of_group, name) not in self._allowed)
        if unknown:
            asked = self._ask_groups if of_group else self._ask_topics
            if len(self._allowed) + len(unknown) > MOST_KNOWN:
                self._allowed.clear()
                unknown = sorted(requested)
            await asked(operation, unknown)
        return frozenset(name for name in requested if not self._allowed.get((operation, of_group, name)))

    async def _everything(self) -> bool:
        """Returns whether everything is allowed, because the broker has no authorizer."""
        now = time.monotonic()
        if now < self._until:
            return self._is_open
        self._allowed.clear()
        self._is_open = False
        if not self._broker.has_authorizer:
            form = message("DescribeAclsRequest")
            filters = {"resource_name_filter": "kafka-cluster", "principal_filter": "User:", "host_filter": None}
            kinds = {"resource_type_filter": _CLUSTER_RESOURCE, "operation": _ANY, "permission_type": _ANY}
            version = await self._newest("DescribeAcls", _DESCRIBE_ACLS)
            response = await self._ask("DescribeAcls", version, form(**filters, **kinds))
            self._is_open = response.error_code == _SECURITY_DISABLED
            self._broker.has_authorizer = not self._is_open
        self._until = now + self._broker.known_s
        return self._is_open

    async def _newest(self, name: str, spoken: int | Versions) -> int:
        """Raises :class:`~kafka_coord.kafka.connection.NoCommonVersion`."""
        if self._broker.versions is None:
            self._broker.versions = told_versions(await self._ask("ApiVersions", 0, message("ApiVersionsRequest")()))
        return newest_common(name, spoken, self._broker.versions, _RELEASES)

    async def _ask_groups(self, operation: Operation, groups: list[str]) -> None:
        if operation is Operation.DESCRIBE:
            response = await self._ask("DescribeGroups", 0, message("DescribeGroupsRequest")(groups=groups))
            errors = {one.group_id: one.error_code for one in response.groups}
        else:
            name, fields = _HARMLESS[operation]
            form = message(f"{name}Request")
            version = await self._newest(name, 0)
            errors = {one: (await self._ask(name, version, form(group_id=one, **fields))).error_code for one in groups}
        for group, error in errors.items():
            self._allowed[operation, True, group] = error != Error.GROUP_AUTHORIZATION_FAILED

    async def _ask_topics(self, operation: Operation, topics: list[str]) -> None:
        form = message("MetadataRequest")
        of_topic = form.struct("MetadataRequestTopic")
        asked = form(
            topics=tuple(of_topic(name=topic) for topic in topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        for topic in (await self._ask("Metadata", await self._newest("Metadata", _METADATA), asked)).topics:
            self._allowed[operation, False, topic.name] = operation.within(topic.topic_authorized_operations)


def principal_of_login(frame: bytes) -> str | None:
    """Returns the principal that a SaslAuthenticate request logs in as, or ``None`` if the request does not contain it,
    such as a later message of the same login."""
    form = message("SaslAuthenticateRequest")
    _, version = peek(frame)
    try:
        _, at = read_header(frame, flexible=version in form.flexible)
        name = _name_in(form.decode(frame, version, at).auth_bytes)
    except (BadMessage, UnicodeDecodeError):
        return UNKNOWN
    return f"User:{name}" if name else None


def _name_in(login: bytes) -> str:
    header = _GS2.match(login)
    if header is None:  # PLAIN: [authzid] NUL authcid NUL password
        parts = login.split(b"\0")
        return parts[1].decode() if len(parts) == 3 else ""
    rest = login[header.end() :]
    if rest.startswith(b"n="):  # SCRAM
        return rest[2:].partition(b",")[0].decode().replace("=2C", ",").replace("=3D", "=")
    token = re.search(rb"\x01auth=Bearer ([^\x01]+)\x01", b"\x01" + rest.lstrip(b"\x01"))
    return _subject_of(token[1]) if token is not None else ""


def _subject_of(token: bytes) -> str:
    """Returns the subject of a JSON web token, or ``?`` if it is not one."""
    try:
        claims = json.loads(base64.urlsafe_b64decode(token.split(b".")[1] + b"=="))
        return str(claims["sub"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error, RecursionError):
        return "?"


def described(principal: str, client_id: str | None, address: str) -> str:
    """Returns one line such as ``User:alice (client id admin-1, 10.0.0.5:40112)``."""
    return f"{_cut(principal)} (client id {_cut(client_id or 'none')}, {address})"


def _cut(text: str) -> str:
    if text.isprintable() and len(text) <= MAX_CHARS:
        return text
    plain = "".join(char if char.isprintable() else "�" for char in text)
    return plain if len(plain) <= MAX_CHARS else f"{plain[: MAX_CHARS - 1]}…"
