"""Compares a tree's ACLs with the plan, and sets those that differ.

A multi cannot set ACLs, so they are set individually in a pipeline. An ACL that has changed since it was read is not
overwritten. A run may be interrupted and repeated at any time, because it skips ACLs that are already correct. It also
leaves foreign znodes alone, such as the groups that a 0.8 consumer keeps directly below ``/consumers``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kafka_coord.errors import BadVersion, NoAuth, NoNode, StoreError
from kafka_coord.zk import layout
from kafka_coord.zk.acl import LEAVES, AclOf, AclPlan, Identity, Permission, grants, open_to_change, rule_of, same
from kafka_coord.zk.options import ZkOptions
from kafka_coord.zk.store import Store

_BATCH = 1_000
_PASSES = 5

OnProgress = Callable[[int, int], None]
"""Receives the number of ACLs processed so far in the current pass, and their total number."""


@dataclass(frozen=True, slots=True)
class FoundAcl:
    """A znode's ACL, and the ACL's version (``aversion``) when it was read."""

    acl: AclOf
    version: int

    @classmethod
    def of(cls, acls: Sequence[Any], stat: Any) -> FoundAcl:
        """Converts kazoo's values."""
        pairs = ((Identity(one.id.scheme, one.id.id), Permission(one.perms & Permission.ALL)) for one in acls)
        return cls(grants(pairs), stat.aversion)


@dataclass(frozen=True, slots=True)
class AclChange:
    """An ACL to set, provided that the current ACL has not changed since it was read."""

    path: str
    acl: AclOf
    version: int


@runtime_checkable
class AclStore(Store, Protocol):
    """A store whose ACLs can be read and set. The simulated store does not support ACLs."""

    @property
    def options(self) -> ZkOptions: ...

    def read_acls(self, paths: Sequence[str]) -> tuple[FoundAcl | NoAuth | None, ...]: ...

    def write_acls(self, changes: Sequence[AclChange]) -> tuple[StoreError | None, ...]: ...


@dataclass(frozen=True, slots=True)
class TreeAcls:
    """The ACLs of a tree. ``unreadable`` lists the znodes whose ACL the session is not allowed to read, ``hidden``
    those whose children it is not allowed to list, and ``foreign`` the topmost znodes that do not belong to
    kafka-coord. ``whole`` is false if only a sample of each kind was read."""

    found: dict[str, FoundAcl]
    unreadable: tuple[str, ...]
    foreign: tuple[str, ...]
    hidden: tuple[str, ...]
    whole: bool

    @property
    def looked_at(self) -> int:
        return len(self.found) + len(self.unreadable)

    @property
    def open(self) -> tuple[str, ...]:
        """The znodes that anyone may change."""
        return tuple(path for path, one in self.found.items() if open_to_change(one.acl))


@dataclass(frozen=True, slots=True)
class Deviation:
    """A znode whose ACL differs from the plan. ``found`` is ``None`` if the session is not allowed to read the ACL."""

    path: str
    found: AclOf | None
    wanted: AclOf
    version: int = -1

    @property
    def open(self) -> bool:
        """Whether anyone may change the znode."""
        return self.found is not None and open_to_change(self.found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ACLs of a tree, compared with a plan. ``missing`` lists the znodes that the plan requires but that do not
    exist."""

    acls: TreeAcls
    deviations: tuple[Deviation, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of :func:`apply`. ``refused`` maps the paths that were left unchanged to the reasons."""

    changed: int
    made: int
    refused: tuple[tuple[str, str], ...]


def read_tree_acls(store: AclStore, most_of_a_kind: int | None = None) -> TreeAcls:
    """Reads the ACLs of all of kafka-coord's znodes. If ``most_of_a_kind`` is given, reads at most that many of each
    kind, since a large tree contains hundreds of thousands of znodes."""
    paths: list[str] = []
    foreign: list[str] = []
    hidden: list[str] = []
    cut: list[str] = []
    for path in _tree(store, hidden, cut, most_of_a_kind):
        (paths if rule_of(path) is not None else foreign).append(path)
    acls: dict[str, FoundAcl] = {}
    unreadable: list[str] = []
    for start in range(0, len(paths), _BATCH):
        chunk = paths[start : start + _BATCH]
        for path, one in zip(chunk, store.read_acls(chunk), strict=True):
            if isinstance(one, NoAuth):
                unreadable.append(path)
            elif one is not None:
                acls[path] = one
    return TreeAcls(acls, tuple(unreadable), tuple(foreign), tuple(hidden), whole=not cut)


def compare(store: AclStore, plan: AclPlan, most_of_a_kind: int | None = None) -> Comparison:
    """Compares kafka-coord's znodes (all, or at most ``most_of_a_kind`` of each kind) with the plan. Changes
    nothing."""
    acls = read_tree_acls(store, most_of_a_kind)
    deviations = [Deviation(path, None, plan.of(path)) for path in acls.unreadable]
    for path, one in acls.found.items():
        planned = plan.of(path)
        if not same(one.acl, planned):
            deviations.append(Deviation(path, one.acl, planned, one.version))
    needed = (*layout.PERSISTENT_ROOTS, *plan.prepared())
    missing = tuple(path for path, stat in zip(needed, store.exists_many(needed), strict=True) if stat is None)
    return Comparison(acls, tuple(deviations), missing)


def apply(store: AclStore, plan: AclPlan, on_progress: OnProgress | None = None) -> ApplyResult:
    """Creates missing znodes and sets every ACL that differs from the plan. Repeats this (up to :data:`_PASSES` times)
    until there is nothing left to do, because running processes may still be creating znodes according to an older
    plan. Does not affect sessions, watches or data versions."""
    changed = made = 0
    refused: dict[str, str] = {}
    for _ in range(_PASSES):
        comparison = compare(store, plan)
        for path in comparison.missing:
            store.ensure_path(path)
            made += 1
        refused |= dict.fromkeys(comparison.acls.hidden, "listing its children is not allowed")
        todo = [
            AclChange(one.path, one.wanted, one.version) for one in comparison.deviations if one.path not in refused
        ]
        if not todo:
            break
        for start in range(0, len(todo), _BATCH):
            chunk = todo[start : start + _BATCH]
            for change, error in zip(chunk, store.write_acls(chunk), strict=True):
                if isinstance(error, BadVersion):
                    continue  # another process set the ACL, so the next pass checks the result
                if error is not None:
                    refused[change.path] = str(error)
                else:
                    changed += 1
            if on_progress is not None:
                on_progress(start + len(chunk), len(todo))
    return ApplyResult(changed, made, tuple(sorted(refused.items())))


def _tree(store: AclStore, hidden: list[str], cut: list[str], most_of_a_kind: int | None) -> Iterator[str]:
    """Yields kafka-coord's znodes, with parents first, and the root of each foreign subtree. Appends to ``hidden`` the
    znodes whose children the session is not allowed to list, and to ``cut`` the znodes that are left out because there
    are more than ``most_of_a_kind``."""
    level = [layout.CONSUMERS] if store.exists(layout.CONSUMERS) is not None else []
    while level:
        kinds: Counter[str] = Counter()
        kept: list[str] = []
        parents: list[str] = []
        for path in level:
            rule = rule_of(path)
            place = rule.place if rule else ""
            kinds[place] += 1
            if most_of_a_kind is not None and kinds[place] > most_of_a_kind:
                cut.append(path)
                continue
            kept.append(path)
            if rule is not None and place not in LEAVES:
                parents.append(path)
        yield from kept
        level = [
            f"{path}/{name}"
            for path, names in zip(parents, _listings(store, parents, hidden), strict=True)
            for name in names
        ]


def _listings(store: AclStore, paths: Sequence[str], hidden: list[str]) -> list[tuple[str, ...]]:
    try:
        return [one.names if one is not None else () for one in store.children_many(paths)]
    except NoAuth:
        listings: list[tuple[str, ...]] = []
        for path in paths:
            try:
                listings.append(store.children(path))
            except NoAuth:
                hidden.append(path)
                listings.append(())
            except NoNode:
                listings.append(())
        return listings
