"""The ACL plan: what each role may do with each znode, as a pure function of the path.

An ACL belongs to one znode and is not inherited. To create or delete a znode, a session needs CREATE or DELETE on its
*parent*, so ``DELETE`` on ``channel/<consumer>`` is the permission to acknowledge, and ``DELETE`` on ``ids`` is the
permission to evict. :data:`RULES` is the whole plan. docs/threat-model.md shows the plan and lists the attacks that it
does not prevent.

The identities file defines the role of each ZooKeeper identity. It does not contain passwords.

::

    coordinators = ["digest:coordinator:3zpCJSEkTHOmpyrRJKDsoGyH1Ao="]
    operators    = ["sasl:alice", "x509:CN=ops,O=Example"]
    readers      = ["world:anyone"]            # who may read; [] means no one else

    [consumers]
    delays = ["digest:delays:1ZVDWOp9QMyKQQeVQMn5SFnWnb8="]
    "*"    = ["digest:others:R8V0yvn9cJqN6b1J5iFVs6h4JpA="]   # all groups that are not named here
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from typing import Any

from kafka_coord.errors import SettingsError
from kafka_coord.model.names import is_legal
from kafka_coord.settings import parse_toml

ANY_GROUP = "*"
"""Stands for every group that the identities file does not name."""

MAX_IDENTITIES = 64
"""The maximum number of identities in one role. Every create carries all of them."""
_SCHEMES = ("digest", "sasl", "x509", "ip", "world", "auth")
_MASKED = "x"
"""A server shows this instead of a digest's hash to sessions that are not allowed to change the ACL."""


class Permission(IntFlag):
    """ZooKeeper's permissions and their numeric values."""

    NONE = 0
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31

    @classmethod
    def of(cls, letters: str) -> Permission:
        """Parses permissions as ``zkCli.sh`` writes them, such as ``"crd"``."""
        permissions = cls.NONE
        for letter in letters:
            permissions |= _LETTERS[letter]
        return permissions

    @property
    def letters(self) -> str:
        return "".join(letter for letter, permission in _LETTERS.items() if permission & self)


_LETTERS = {
    "c": Permission.CREATE,
    "d": Permission.DELETE,
    "r": Permission.READ,
    "w": Permission.WRITE,
    "a": Permission.ADMIN,
}
CHANGING = Permission.WRITE | Permission.CREATE | Permission.DELETE | Permission.ADMIN


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """How ZooKeeper identifies a session, for example ``digest:user:<hash>``, ``sasl:user``, ``x509:CN=…`` or
    ``world:anyone``."""

    scheme: str
    name: str

    @classmethod
    def parse(cls, written: object, where: str) -> Identity:
        """Parses an identity. Raises :class:`SettingsError`, with ``where`` in the message."""
        scheme, colon, name = written.partition(":") if isinstance(written, str) else ("", "", "")
        if not (colon and name and scheme in _SCHEMES and len(name) <= 1_000 and name.isprintable()):
            raise SettingsError(
                f"{where}: {str(written)[:60]!r} is not an identity: use digest:USER:HASH"
                " (see 'kafka-coord acl identity'), sasl:USER, x509:DISTINGUISHED-NAME, ip:ADDRESS or world:anyone"
            )
        if scheme == "digest" and (name.count(":") != 1 or not all(name.split(":"))):
            raise SettingsError(f"{where}: {written!r} lacks the hash; 'kafka-coord acl identity' prints it")
        if scheme == "world" and name != "anyone":
            raise SettingsError(f"{where}: {written!r} is not an identity: in the world scheme, use world:anyone")
        return cls(scheme, name)

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}"

    @property
    def shown(self) -> str:
        """The identity, without the hash if the scheme is ``digest``."""
        return f"digest:{self.user}" if self.scheme == "digest" else str(self)

    @property
    def user(self) -> str:
        return self.name.partition(":")[0] if self.scheme == "digest" else self.name

    def is_shown_as(self, other: Identity) -> bool:
        """Returns whether a server may show this identity as ``other``. A server hides a digest's hash from other
        sessions."""
        if self == other:
            return True
        return self.scheme == other.scheme == "digest" and other.name == f"{self.user}:{_MASKED}"


ANYONE = Identity("world", "anyone")


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """The permissions of one identity."""

    identity: Identity
    permissions: Permission

    def __str__(self) -> str:
        return f"{self.identity.shown}={self.permissions.letters}"


AclOf = tuple[Grant, ...]
"""The ACL of one znode, sorted, with each identity only once."""


def grants(found: Iterable[tuple[Identity, Permission]]) -> AclOf:
    """Combines the given grants into a sorted ACL that contains each identity once. Leaves out identities without
    permissions."""
    together: dict[Identity, Permission] = {}
    for identity, permissions in found:
        if permissions:
            together[identity] = together.get(identity, Permission.NONE) | permissions
    return tuple(sorted(Grant(*one) for one in together.items()))


def same(found: AclOf, wanted: AclOf) -> bool:
    """Returns whether the ACL that a server shows matches the wanted ACL."""
    return len(found) == len(wanted) and all(
        any(one.permissions == other.permissions and one.identity.is_shown_as(other.identity) for other in found)
        for one in wanted
    )


def open_to_change(found: AclOf) -> bool:
    """Returns whether anyone may change the znode or its children."""
    return any(one.identity == ANYONE and one.permissions & CHANGING for one in found)


@dataclass(frozen=True, slots=True)
class AclRule:
    """The permissions of each role for the znodes at ``place``, as letters. Coordinators have all permissions
    everywhere.

    ``consumers`` applies to the consumers of the znode's own group. ``any_group`` lists further permissions for
    :data:`ANY_GROUP` consumers, which create the znodes of their groups themselves.
    """

    place: str
    operators: str
    consumers: str
    any_group: str = ""
    why: str = ""


_GROUP = "/consumers/groups/<group>"
RULES = (
    AclRule("/consumers", "crd", "", why="operators create and delete `paused`"),
    AclRule("/consumers/coordinator", "r", ""),
    AclRule("/consumers/coordinator_epoch", "r", ""),
    AclRule("/consumers/coordinators", "r", ""),
    AclRule("/consumers/coordinators/<instance>", "r", ""),
    AclRule("/consumers/requests", "crd", "", why="operators create requests, and delete answered requests"),
    AclRule("/consumers/requests/<request>", "r", "", why="only the coordinator answers"),
    AclRule("/consumers/paused", "rw", ""),
    AclRule("/consumers/history", "r", ""),
    AclRule("/consumers/successor", "r", ""),
    AclRule("/consumers/retention", "r", ""),
    AclRule("/consumers/heard", "r", ""),
    AclRule("/consumers/kinds", "r", ""),
    AclRule("/consumers/kinds/<partition>", "rw", "", why="operators delete groups"),
    AclRule("/consumers/kinds/<partition>/<instance>", "r", ""),
    AclRule("/consumers/cluster", "r", "", why="only the elected coordinator says where the metadata is"),
    AclRule("/consumers/cluster/changed", "r", ""),
    AclRule("/consumers/cluster/trouble", "r", ""),
    AclRule("/consumers/cluster/brokers", "r", ""),
    AclRule("/consumers/cluster/brokers/<broker>", "r", ""),
    AclRule("/consumers/cluster/topics", "r", ""),
    AclRule("/consumers/cluster/topics/<topic>", "r", ""),
    AclRule("/consumers/cluster/topics/<topic>/partitions", "r", ""),
    AclRule("/consumers/cluster/topics/<topic>/partitions/<partition>", "r", ""),
    AclRule("/consumers/cluster/topics/<topic>/partitions/<partition>/state", "r", ""),
    AclRule("/consumers/restored", "r", "", why="restore writes it, as a coordinator"),
    AclRule("/consumers/rights", "r", ""),
    AclRule("/consumers/rights/<instance>", "r", ""),
    AclRule("/consumers/groups", "cr", "", "cr", why="operators prepare groups; the coordinator creates named groups"),
    AclRule(_GROUP, "cdrw", "r", "c", why="its data is the group's settings; operators create and delete `paused`"),
    AclRule(f"{_GROUP}/paused", "rw", ""),
    AclRule(f"{_GROUP}/assignment", "r", ""),
    AclRule(f"{_GROUP}/history", "r", ""),
    AclRule(f"{_GROUP}/settled", "r", ""),
    AclRule(f"{_GROUP}/owners", "r", ""),
    AclRule(f"{_GROUP}/owners/<consumer>", "r", ""),
    AclRule(f"{_GROUP}/held", "r", ""),
    AclRule(f"{_GROUP}/ids", "r", "cdr", why="consumers register and leave"),
    AclRule(f"{_GROUP}/ids/<consumer>", "r", "r", why="a registration is never changed"),
    AclRule(f"{_GROUP}/channel", "r", "cr", why="a consumer creates its channel"),
    AclRule(f"{_GROUP}/channel/<consumer>", "r", "drw", why="WRITE takes the token, and DELETE acknowledges"),
    AclRule(f"{_GROUP}/channel/<consumer>/<command>", "r", "r"),
    AclRule(f"{_GROUP}/offsets", "r", "r"),
    AclRule(f"{_GROUP}/offsets/<topic>", "r", "cr", why="its data is the topic's identity; the coordinator writes it"),
    AclRule(f"{_GROUP}/offsets/<topic>/<partition>", "r", "rw"),
    AclRule(f"{_GROUP}/unresolved", "r", "cdr", why="consumers say what they cannot resolve, and take it back"),
    AclRule(f"{_GROUP}/unresolved/<what>", "r", "rw"),
    AclRule(f"{_GROUP}/details", "r", ""),
    AclRule(f"{_GROUP}/details/<topic>", "r", ""),
    AclRule(f"{_GROUP}/details/<topic>/<partition>", "r", "", why="instances write it for Kafka clients"),
)
"""Where no rule applies (to a scratch znode created by ``doctor``, or to a foreign znode), operators may read but not
delete."""

LEAVES = frozenset(rule.place for rule in RULES if not any(other.place.startswith(f"{rule.place}/") for other in RULES))
"""The places below which kafka-coord does not create any znodes."""

_ELSEWHERE = AclRule("", "r", "")
_RULES: dict[int, list[tuple[tuple[str, ...], AclRule]]] = {}
"""The rules, keyed by the number of path segments in their place."""
for _rule in RULES:
    _place = tuple(_rule.place.split("/"))
    _RULES.setdefault(len(_place), []).append((_place, _rule))


def rule_of(path: str) -> AclRule | None:
    """Returns the rule for a znode (below the chroot), or ``None``."""
    segments = path.split("/")
    for place, rule in _RULES.get(len(segments), ()):
        if all(
            bool(found) if wanted.startswith("<") else found == wanted
            for wanted, found in zip(place, segments, strict=True)
        ):
            return rule
    return None


@dataclass(frozen=True, slots=True)
class AclPlan:
    """The identities of each role. ``consumers`` maps a group's name, or :data:`ANY_GROUP`, to its identities."""

    coordinators: tuple[Identity, ...]
    operators: tuple[Identity, ...] = ()
    readers: tuple[Identity, ...] = (ANYONE,)
    consumers: Mapping[str, tuple[Identity, ...]] = field(default_factory=dict)

    def of(self, path: str) -> AclOf:
        """Returns the ACL of the znode ``path`` (below the chroot)."""
        rule = rule_of(path) or _ELSEWHERE
        segments = path.split("/")
        group = segments[3] if rule.place.startswith(_GROUP) else None
        own = Permission.of(rule.consumers)
        if group is not None and group in self.consumers and group != ANY_GROUP:
            consumers = [(one, own) for one in self.consumers[group]]
        else:
            more = own | Permission.of(rule.any_group)
            consumers = [(one, more) for one in self.consumers.get(ANY_GROUP, ())]
        return grants(
            [
                *((one, Permission.ALL) for one in self.coordinators),
                *((one, Permission.of(rule.operators)) for one in self.operators),
                *((one, Permission.READ) for one in self.readers),
                *consumers,
            ]
        )

    def everyone(self) -> frozenset[Identity]:
        """Returns every identity in any role."""
        named = (one for group in self.consumers.values() for one in group)
        return frozenset((*self.coordinators, *self.operators, *self.readers, *named))

    def named_groups(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.consumers if name != ANY_GROUP))

    def prepared(self) -> tuple[str, ...]:
        """Returns the znodes that the consumers of named groups need but are not allowed to create, with parents
        first."""
        return tuple(
            path
            for group in self.named_groups()
            for path in (f"/consumers/groups/{group}", *(f"/consumers/groups/{group}/{part}" for part in _PARTS))
        )


_PARTS = ("ids", "channel", "owners", "offsets", "unresolved")


_MAX_FILE_BYTES = 1_000_000
_ROLES = ("coordinators", "operators", "readers", "consumers")


def digest_identity(user: str, password: str) -> Identity:
    """Returns the identity that ZooKeeper's ``digest`` scheme derives from a user name and password."""
    hashed = base64.b64encode(hashlib.sha1(f"{user}:{password}".encode()).digest())  # noqa: S324 - ZooKeeper's choice
    return Identity("digest", f"{user}:{hashed.decode()}")


def read_identities(file: Path) -> AclPlan:
    """Reads the identities file. Raises :class:`SettingsError`, which names the file, the key and the legal values."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"identities file {file} cannot be read: {error.strerror}") from None
    return parse_identities(raw, str(file))


def parse_identities(raw: bytes, where: str) -> AclPlan:
    """Like :func:`read_identities`, for a file that has already been read."""
    table = parse_toml(raw, f"identities file {where}")
    unknown = sorted(set(table) - set(_ROLES))
    if unknown:
        raise SettingsError(f"{unknown[0][:60]!r} in {where} is not a role; the roles are {', '.join(_ROLES)}")
    coordinators = _role(table, "coordinators", where)
    if not coordinators:
        raise SettingsError(
            f"{where} must name at least one coordinator: otherwise, no one can change the protected znodes"
        )
    for role, found in (("coordinators", coordinators), ("operators", _role(table, "operators", where))):
        _none_of_the_world(found, role, where)
    groups = table.get("consumers", {})
    if not isinstance(groups, dict):
        raise SettingsError(f"consumers in {where} must be a table: [consumers] with one line for each group")
    consumers: dict[str, tuple[Identity, ...]] = {}
    for group in groups:
        if group != ANY_GROUP and not is_legal(group):
            raise SettingsError(f"consumers in {where}: {group[:60]!r} is neither a legal group name nor {ANY_GROUP!r}")
        consumers[group] = _role(groups, group, f"{where} [consumers]")
        _none_of_the_world(consumers[group], group, where)
    return AclPlan(
        coordinators=coordinators,
        operators=_role(table, "operators", where),
        readers=_role(table, "readers", where) if "readers" in table else (ANYONE,),
        consumers=consumers,
    )


def _role(table: Mapping[str, Any], role: str, where: str) -> tuple[Identity, ...]:
    written = table.get(role, [])
    if not isinstance(written, list):
        raise SettingsError(f"{role[:60]!r} in {where} must be a list of identities")
    if len(written) > MAX_IDENTITIES:
        raise SettingsError(f"{role[:60]!r} in {where} lists {len(written)} identities; the limit is {MAX_IDENTITIES}")
    return tuple(dict.fromkeys(Identity.parse(one, f"{role[:60]} in {where}") for one in written))


def _none_of_the_world(found: tuple[Identity, ...], role: str, where: str) -> None:
    if ANYONE in found:
        raise SettingsError(
            f"{role[:60]!r} in {where} names world:anyone; to let anyone write, do not set any identities at all"
        )
