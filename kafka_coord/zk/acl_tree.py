"""A tree's ACLs compared with the plan, and brought to it.

A multi cannot set ACLs, so they are set one by one, pipelined, each only if nobody changed it since it was read. It may
be broken off and run again at any time: what is right already is left alone. Foreign znodes (the groups a 0.8
consumer keeps right below ``/consumers``) are left alone, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kafka_coord.errors import BadVersion, NoAuth, NoNode, StoreError
from kafka_coord.zk import layout
from kafka_coord.zk.acl import AclOf, AclPlan, Identity, Permission, grants, open_to_change, rule_of, same
from kafka_coord.zk.store import Store

_BATCH = 1_000
_PASSES = 5


@dataclass(frozen=True, slots=True)
class FoundAcl:
    """A znode's ACL and the version (``aversion``) it was read at."""

    acl: AclOf
    version: int

    @classmethod
    def of(cls, acls: Sequence[Any], stat: Any) -> FoundAcl:
        """From what kazoo gives."""
        pairs = ((Identity(one.id.scheme, one.id.id), Permission(one.perms & Permission.ALL)) for one in acls)
        return cls(grants(pairs), stat.aversion)


@dataclass(frozen=True, slots=True)
class AclChange:
    """An ACL to set, if it is still the one that was read."""

    path: str
    acl: AclOf
    version: int


@runtime_checkable
class AclStore(Store, Protocol):
    """A store whose ACLs can be read and set (a simulated one has none)."""

    def read_acls(self, paths: Sequence[str]) -> tuple[FoundAcl | NoAuth | None, ...]: ...

    def write_acls(self, changes: Sequence[AclChange]) -> tuple[StoreError | None, ...]: ...


@dataclass(frozen=True, slots=True)
class Deviation:
    """A znode whose ACL is not the plan's. ``found`` is ``None`` where it may not even be read."""

    path: str
    found: AclOf | None
    wanted: AclOf
    version: int = -1

    @property
    def open(self) -> bool:
        """Whether anybody may change it."""
        return self.found is not None and open_to_change(self.found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One look at a whole tree. ``missing`` is what the plan wants to be there and is not; ``foreign`` is not ours."""

    looked_at: int
    deviations: tuple[Deviation, ...]
    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """What an application did. ``refused`` are paths with the reason, which were left as they are."""

    changed: int
    made: int
    refused: tuple[tuple[str, str], ...]


def compare(store: AclStore, plan: AclPlan) -> Comparison:
    """Every znode of ours against the plan; changes nothing."""
    paths: list[str] = []
    foreign: list[str] = []
    hidden: list[str] = []
    for path in _tree(store, hidden):
        (paths if rule_of(path) is not None else foreign).append(path)
    deviations: list[Deviation] = []
    for start in range(0, len(paths), _BATCH):
        chunk = paths[start : start + _BATCH]
        for path, found in zip(chunk, store.read_acls(chunk), strict=True):
            wanted = plan.of(path)
            if isinstance(found, NoAuth):
                deviations.append(Deviation(path, None, wanted))
            elif found is not None and not same(found.acl, wanted):
                deviations.append(Deviation(path, found.acl, wanted, found.version))
    there = set(paths)
    needed = (*layout.PERSISTENT_ROOTS, *plan.prepared())
    missing = tuple(path for path in needed if path not in there) if not hidden else ()
    return Comparison(len(paths), tuple(deviations), missing, tuple(foreign), tuple(hidden))


def apply(store: AclStore, plan: AclPlan) -> Applied:
    """Makes what is missing and sets every ACL that deviates, again and again until a look finds nothing to do: those
    who run meanwhile may be making znodes by an older plan. Nobody's session, watch or version is touched by it."""
    changed = made = 0
    refused: dict[str, str] = {}
    for _ in range(_PASSES):
        seen = compare(store, plan)
        for path in seen.missing:
            store.ensure_path(path)
            made += 1
        todo = [AclChange(one.path, one.wanted, one.version) for one in seen.deviations if one.path not in refused]
        refused |= dict.fromkeys(seen.hidden, "its children may not be listed")
        if not todo:
            break
        for start in range(0, len(todo), _BATCH):
            chunk = todo[start : start + _BATCH]
            for change, answer in zip(chunk, store.write_acls(chunk), strict=True):
                if isinstance(answer, BadVersion):
                    continue  # somebody else set it: the next look tells whether that is right
                if answer is not None:
                    refused[change.path] = str(answer)
                else:
                    changed += 1
    return Applied(changed, made, tuple(sorted(refused.items())))


def _tree(store: AclStore, hidden: list[str]) -> Iterator[str]:
    """Our znodes, parents first; of what is foreign only the topmost. ``hidden`` gets what may not be listed."""
    level = [layout.CONSUMERS] if store.exists(layout.CONSUMERS) is not None else []
    while level:
        yield from level
        below: list[str] = []
        ours = [path for path in level if rule_of(path) is not None]
        for path, names in zip(ours, _listings(store, ours, hidden), strict=True):
            below += [f"{path}/{name}" for name in names]
        level = below


def _listings(store: AclStore, paths: Sequence[str], hidden: list[str]) -> list[tuple[str, ...]]:
    try:
        return [one.names if one is not None else () for one in store.children_many(paths)]
    except NoAuth:
        found: list[tuple[str, ...]] = []
        for path in paths:
            try:
                found.append(store.children(path))
            except NoAuth:
                hidden.append(path)
                found.append(())
            except NoNode:
                found.append(())
        return found
