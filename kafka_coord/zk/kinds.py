"""The recorded kinds of groups, which alone decide who coordinates a group (ADR 59).

The groups of each partition of the groups log share one znode, ``/consumers/kinds/<n>``, so 50 watches follow any
number of groups, and a group may have any name. Every change is a compare-and-set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import field, structs

from kafka_coord.errors import BadVersion, MalformedValue, MultiFailed, NodeExists, NoNode, StoreError
from kafka_coord.model import GroupKind
from kafka_coord.model.codec import JsonObject
from kafka_coord.model.names import LOG_PARTITIONS, is_legal, partition_of
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import multi_fenced
from kafka_coord.zk.store import Check, Create, Delete, GetData, Node, Op, SetData, Store

log = logging.getLogger(__name__)

_TRIES = 20


class GroupRecord(JsonObject, frozen=True, omit_defaults=True):
    """What is recorded of one group. ``moving`` names a take-over, or the undoing of one, that is under way: until it
    ends, every instance answers requests about the group as while it loads. ``fenced`` names the stay of a member of
    the instances in the brokers' group of the same name (ADR 60): it keeps everybody else out or, if the group
    :attr:`is_returning`, waits for those who come back."""

    kind: GroupKind
    moving: str = ""
    fenced: str = ""

    @property
    def is_returning(self) -> bool:
        """Whether the group is given back, and the fence waits for its members."""
        return bool(self.fenced) and structs.replace(self, fenced="") == AT_REST

    @property
    def is_taken_over(self) -> bool:
        """Whether the fence keeps everybody else out."""
        return bool(self.fenced) and not self.is_returning


AT_REST = GroupRecord(GroupKind.NATIVE)
"""The group is native, and nothing is done about it."""


Records = Mapping[str, GroupRecord]
"""The records of the groups of one partition, by name."""


class Recorded(NamedTuple):
    """The records of one partition, and their znode's version, which is -1 if there is no znode. ``czxid`` is the
    znode's, or 0 if there is none."""

    version: int = -1
    groups: Records = MappingProxyType({})
    czxid: int = 0

    @property
    def returning(self) -> dict[str, str]:
        """The groups whose members the fence waits for, and the stay of the fence."""
        return {name: one.fenced for name, one in self.groups.items() if one.is_returning}


class _KindsValue(JsonObject, frozen=True, tag_field="version", tag=1):
    groups: Mapping[str, GroupRecord] = field(default_factory=dict)


def decode_kinds(partition: int, node: Node | None) -> Recorded:
    """Raises :class:`~kafka_coord.errors.MalformedValue`."""
    if node is None:
        return Recorded()
    path = layout.kinds(partition)
    return Recorded(node.stat.version, _KindsValue.from_bytes(node.data, path).groups, node.stat.czxid)


def read_kinds(
    store: Store, groups: Iterable[str] | None = None, unreadable: list[MalformedValue] | None = None
) -> dict[str, GroupRecord]:
    """Returns the records of those of the groups that have one, or of all groups by default. Raises
    :class:`~kafka_coord.errors.StoreError` and :class:`~kafka_coord.errors.MalformedValue`, which is collected in
    ``unreadable`` instead if that is given."""
    wanted = None if groups is None else set(groups)
    numbers = range(LOG_PARTITIONS) if wanted is None else sorted(set(map(partition_of, wanted)))
    found: dict[str, GroupRecord] = {}
    for number, node in zip(numbers, store.read_many([GetData(layout.kinds(one)) for one in numbers]), strict=True):
        try:
            records = decode_kinds(number, node if isinstance(node, Node) else None).groups
        except MalformedValue as error:
            if unreadable is None:
                raise
            unreadable.append(error)
            continue
        found |= {name: one for name, one in records.items() if wanted is None or name in wanted}
    return found


def change_kinds(
    store: Store,
    partition: int,
    change: Callable[[Records], Records],
    fence: Check | None = None,
    ops: Callable[[Records], Iterable[Op]] = lambda _changed: (),
    *,
    known: Records = MappingProxyType({}),
    always: bool = False,
) -> Recorded:
    """Applies ``change`` to the records of a partition, without losing concurrent changes, and returns them as they are
    then. If somebody has deleted the znode, applies it to those that were ``known``. ``ops`` become part of the same
    multi; if one of them fails, raises :class:`MultiFailed`. If ``always`` is set, writes even if nothing changes, so
    that no earlier write whose outcome is unknown can still take effect. Raises :class:`~kafka_coord.errors.Fenced` and
    other :class:`~kafka_coord.errors.StoreError`, and :class:`~kafka_coord.errors.MalformedValue`."""
    path = layout.kinds(partition)
    for is_last in (*[False] * _TRIES, True):
        try:
            node: Node | None = store.get(path)
        except NoNode:
            node = None
        before = decode_kinds(partition, node)
        after = change(known if node is None else before.groups)
        if after == before.groups and not always:
            return before
        if node is None:
            store.ensure_path(layout.KINDS)
        data = _KindsValue(after).to_bytes()
        own = Create(path, data) if node is None else SetData(path, data, node.stat.version)
        rest = tuple(ops(after))
        try:
            if fence is None:
                store.multi((own, *rest))
            else:
                multi_fenced(store, fence, (own, *rest))
        except MultiFailed as error:
            if error.index == 0 and isinstance(error.cause, BadVersion | NodeExists | NoNode) and not is_last:
                continue
            raise
        made = store.exists(path) if node is None else node.stat
        return Recorded(before.version + 1, after, made.czxid if made is not None else 0)
    raise AssertionError  # the last try returns or raises


def record_new(
    store: Store,
    partition: int,
    wanted: Mapping[str, GroupKind],
    fence: Check,
    *,
    known: Records = MappingProxyType({}),
    are_stored: bool = False,
) -> Recorded:
    """Records the groups in ``wanted`` that have no record, and returns the partition's records. Unless they
    ``are_stored`` somewhere already, a group that is not to be managed, but exists in ZooKeeper by now, is recorded as
    managed. ``known`` and the errors are as of :func:`change_kinds`."""
    kinds = dict(wanted)
    store.ensure_path(layout.GROUPS)
    while True:

        def added(before: Records) -> Records:
            return {**{name: GroupRecord(kind) for name, kind in kinds.items()}, **before}

        def absent(after: Records) -> Iterable[Op]:
            """Nobody has created the group meanwhile: see the elected coordinator's reading of records."""
            for name, kind in kinds.items():
                if not are_stored and kind is not GroupKind.MANAGED and is_legal(name) and after[name].kind is kind:
                    yield from (Create(layout.group(name)), Delete(layout.group(name)))

        try:
            return change_kinds(store, partition, added, fence, absent, known=known)
        except MultiFailed as error:
            if not isinstance(error.cause, NodeExists) or error.path == layout.kinds(partition):
                raise
            name = error.path.rpartition("/")[2]
            log.info("a group was created in ZooKeeper meanwhile, so it is managed group=%s", name)
            kinds[name] = GroupKind.MANAGED


class RecordChanged(StoreError):
    """The group's record is not the expected one, so nothing was recorded."""


def record_kind(
    store: Store,
    group: str,
    fence: Check,
    expected: GroupRecord | None = None,
    ops: Sequence[Op] = (),
    *,
    known: Records = MappingProxyType({}),
    **changes: Any,
) -> Recorded:
    """Records another kind of a group, or another of its fields, together with ``ops``. Raises :class:`RecordChanged`
    unless its record is the ``expected`` one, if that is given. ``known`` and other errors are as of
    :func:`change_kinds`."""

    def changed(before: Records) -> Records:
        record = before.get(group)
        if expected is not None and record != expected:
            raise RecordChanged(f"group {group} is recorded as {record}, not as {expected}")
        return {**before, group: structs.replace(record or GroupRecord(changes["kind"]), **changes)}

    return change_kinds(store, partition_of(group), changed, fence, lambda _changed: ops, known=known)


def forget_kind(
    store: Store, group: str, fence: Check | None = None, *, known: Records = MappingProxyType({})
) -> Recorded:
    """Removes the record of a group that does not exist any more, unless the group is moving, or is fenced: what the
    brokers keep under its name must not come back. ``known`` and the errors are as of :func:`change_kinds`."""

    def without(before: Records) -> Records:
        record = before.get(group)
        stays = record is not None and (record.moving or record.fenced)
        return {name: one for name, one in before.items() if name != group or stays}

    return change_kinds(store, partition_of(group), without, fence, known=known)


class Seen(JsonObject, frozen=True, array_like=True):
    """What an instance has seen of a native member: its generation, and its timeouts in ms, which are 0 if unknown."""

    generation: int = -1
    session_ms: int = 0
    rebalance_ms: int = 0

    @property
    def timeouts_s(self) -> list[float]:
        """Those that are known, in seconds."""
        return [one / 1000 for one in (self.session_ms, self.rebalance_ms) if one]


class Acknowledged(JsonObject, frozen=True, tag_field="version", tag=1):
    """An instance knows the records of a partition in the version ``seen``, and nothing that it passed on before is in
    flight. ``members`` are those that it has seen of the groups that are moving, and ``transactional`` are those of
    these groups whose offsets are committed in transactions."""

    seen: int
    members: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict)
    transactional: tuple[str, ...] = ()


class GivenUp(JsonObject, frozen=True, tag_field="version", tag=1):
    """The ids of members by the stay of the fence that waits for them: of those that hold nothing any more and, with a
    suffix, of others."""

    stays: Mapping[str, frozenset[str]] = field(default_factory=dict)


def give_up(store: Store, partition: int, broker_id: int, known: Mapping[str, Collection[str]]) -> None:
    """Adds what an instance knows of these stays to what it has told of them before, maybe in an earlier life, and
    forgets all others. Raises :class:`~kafka_coord.errors.StoreError` and
    :class:`~kafka_coord.errors.MalformedValue`."""
    path = layout.given_up(partition, broker_id)
    before = store.read_many([GetData(path)])[0]
    told = GivenUp.from_bytes(before.data, path).stays if isinstance(before, Node) else {}
    after = {name: frozenset(ids) | told.get(name, frozenset()) for name, ids in known.items()}
    if not known:
        with suppress(NoNode):
            store.delete(path)
    elif isinstance(before, Node):
        store.set(path, GivenUp(after).to_bytes(), before.stat.version)
    else:
        store.create(path, GivenUp(after).to_bytes())


def read_given_up(store: Store, partition: int, *stays: str) -> list[frozenset[str]]:
    """Returns for each stay the member ids that any instance has told of. Raises as :func:`give_up`."""
    listing = store.children_many([layout.kinds(partition)])[0]
    names = [one for one in (listing.names if listing is not None else ()) if one.endswith("-given-up")]
    paths = [f"{layout.kinds(partition)}/{one}" for one in names]
    nodes = store.read_many([GetData(path) for path in paths])
    found = [
        GivenUp.from_bytes(node.data, path) for path, node in zip(paths, nodes, strict=True) if isinstance(node, Node)
    ]
    return [frozenset().union(*(one.stays.get(stay, ()) for one in found)) for stay in stays]


def acknowledge(store: Store, partition: int, broker_id: int, heard: Acknowledged) -> None:
    """Writes what an instance has heard of the records. Raises :class:`~kafka_coord.errors.StoreError`."""
    path, data = layout.kinds_heard(partition, broker_id), heard.to_bytes()
    with suppress(NoNode):
        store.delete(path)  # it is ephemeral: that of an earlier session would go with it
    store.create(path, data, ephemeral=True)


def read_acknowledged(store: Store, partition: int, brokers: Iterable[int]) -> dict[int, Acknowledged]:
    """Returns what the instances have heard. Raises as :func:`read_kinds`."""
    wanted = [(one, layout.kinds_heard(partition, one)) for one in brokers]
    nodes = store.read_many([GetData(path) for _, path in wanted])
    return {
        broker_id: Acknowledged.from_bytes(node.data, path)
        for (broker_id, path), node in zip(wanted, nodes, strict=True)
        if isinstance(node, Node)
    }
