"""Reads the identities file, which defines the role of each ZooKeeper identity. The file does not contain passwords.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka_coord.errors import SettingsError
from kafka_coord.model.names import is_legal
from kafka_coord.settings import parse_toml
from kafka_coord.zk.acl import ANY_GROUP, ANYONE, MAX_IDENTITIES, AclPlan, Identity

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
