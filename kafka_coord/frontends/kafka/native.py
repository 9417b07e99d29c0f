"""Native groups: the brokers coordinate them, and the instances pass their requests through (ADR 59). Also finds out
which kind a group without a record is of.

A request about native groups alone goes to the broker as it came, on the client's own connection. Only what names
several groups, or has a version that the broker does not know, is taken apart here.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn

from msgspec import structs

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import CONSUMER
from kafka_coord.errors import BrokerError, Fenced, MalformedValue, StoreError
from kafka_coord.frontends.kafka import answers
from kafka_coord.frontends.kafka.access import Operation
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.group import LOOKS, GroupError, Listed, Loading, Why
from kafka_coord.frontends.kafka.instances import Address, Instances, Node
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.kafka.connection import (
    CLIENT_ID,
    BrokerConnection,
    NoCommonVersion,
    RightMissing,
    Versions,
    of_group,
    only,
)
from kafka_coord.kafka.coordinators import Moving, require_no_error, unless_moving
from kafka_coord.model import GroupKind
from kafka_coord.model.names import LOG_PARTITIONS, partition_of
from kafka_coord.wire.frames import answer_start
from kafka_coord.wire.messages import Record, message
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import (
    AT_REST,
    Acknowledged,
    GroupRecord,
    RecordChanged,
    Recorded,
    Seen,
    acknowledge,
    change_kinds,
    decode_kinds,
    forget_kind,
    give_up,
    read_acknowledged,
    read_given_up,
    read_kinds,
    record_kind,
    record_new,
)
from kafka_coord.zk.store import Check, Op, Store
from kafka_coord.zk.store import Node as Znode
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

FROZEN_S = 8.0
"""How long a group that is being taken over is frozen at most, in seconds."""
UNDOING = "undoing "
_LOOKS_S = 30.0
_LOOKS_SOON_S = 0.5
_KNOWN_WITHIN_S, _KNOWN_CHECK_S = 5.0, 0.02
FOR_BROKERS = "kafka-coord-native"
"""The client id with which an instance asks another one for the group that the broker beside it coordinates, whatever
its recorded kind."""
_VERSIONS = {name: (versions.first, versions.last) for name, versions in LOCAL.values()}
_LISTS = {
    "ConsumerGroupDescribe": ("group_ids", "groups"),
    "DeleteGroups": ("groups_names", "results"),
    "DescribeGroups": ("groups", "groups"),
    "OffsetFetch": ("groups", "groups"),
}
"""The fields of requests that name several groups, and those of their responses."""
_BEAT = "ConsumerGroupHeartbeat"
_LEAVE_GROUP = "LeaveGroup"
_GIVE_UP = frozenset({"JoinGroup", _BEAT, _LEAVE_GROUP})
"""Requests of members that hold nothing any more."""
_LEFT, _HEARD = " left", " heard"
"""What the stay of a fence is followed by where it is about members that do not come back, or have been heard since."""
_DESCRIBES = frozenset({"ConsumerGroupDescribe", "DescribeGroups"})
_FETCH_OF_SEVERAL = 8
_WAITING = frozenset({"DeleteGroups", "Heartbeat", "OffsetCommit", "OffsetDelete", "OffsetFetch"})
"""Requests that wait while their group is frozen: clients do not repeat failed commits in their order (ADR 11), and
only the brokers know whether a member's session goes on."""
_IN_TRANSACTIONS = frozenset({"AddOffsetsToTxn", "TxnOffsetCommit"})
FENCE = "kafka-coord"
"""The group.instance.id and the protocol of the member that keeps others out of a namesake at the brokers (ADR 60)."""
_FIND_COORDINATOR = 1
"""A version that all brokers since 0.11 support."""
_CHANGED = frozenset({"JoinGroup", "SyncGroup", _BEAT})
"""The responses that this instance may change."""
_SOON_MS = 2_000
"""How often KIP-848 members that come back ask, in ms. librdkafka gives a request up after as long."""
_LOOKS, _LOOK_AGAIN_S = 20, 0.1
_IN_FLIGHT_CHECK_S = _TOGETHER_S = 0.005
_TOLD_WITHIN_S = _IDLE_S = 1.0
_MOST_KNOWN, _MOST_MEMBERS = 100_000, 5_000
_CONSUMERS = "ConsumerGroupDescribe"
_DESCRIPTIONS: Mapping[str, Versions] = {"DescribeGroups": (4, 5), _CONSUMERS: (0, 1)}
_LEAVE, _BEATS = (3, 5), (0, 1)
_DEAD = "Dead"
_NOT_REMOVED = "members cannot be removed from the brokers' group"
_GONE = frozenset({Error.UNKNOWN_MEMBER_ID, Error.FENCED_INSTANCE_ID, Error.NONE})
_ABSENT = frozenset({Error.GROUP_ID_NOT_FOUND, Error.UNSUPPORTED_VERSION})
_FENCED = frozenset({Error.GROUP_ID_NOT_FOUND, Error.INCONSISTENT_GROUP_PROTOCOL})
Ours = Callable[[Call], Awaitable[Any]]
"""How the instances answer a request about groups that they coordinate."""


class Back(NamedTuple):
    """The ids of members that the fence waits for: of those that hold nothing any more, that have left, and that any
    instance has heard since their group is native."""

    given_up: frozenset[str]
    left: frozenset[str]
    heard: frozenset[str]


class Kinds:
    """The recorded kinds of all groups. Use only on the event loop. Without a ``store``, they are kept in memory
    only."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._recorded: dict[int, Recorded] = {}
        """The records of each partition of the groups log that have been read. What was known stays known while
        ZooKeeper does not answer."""
        self._records: dict[str, GroupRecord] = {}
        """The same records, by group."""
        self._wanted: dict[int, dict[str, GroupKind]] = {}
        self._recording: dict[int, asyncio.Task[None]] = {}
        self._again: set[asyncio.Task[None]] = set()
        self._terms: dict[int, Check] = {}
        self._frozen_at: dict[tuple[str, str], float] = {}
        """When this instance heard of each move that is under way."""
        self._given_up: Mapping[str, Collection[str]] = {}
        self._moved_at: dict[str, float] = {}
        """When this instance last heard that a group is moving, or is no longer, or that its members are back."""
        self._is_current = store is None
        self.on_freeze: Callable[[int, Recorded], None] = lambda _partition, _found: None
        self.on_return: Callable[[int], None] = lambda _partition: None
        self.longest_s: Callable[[str], float] = lambda _group: FROZEN_S
        """How long a group may be frozen, in seconds."""
        self.on_deposed: Callable[[int], None] = lambda _partition: None
        self.on_forgotten: Callable[[Collection[str]], None] = lambda _names: None

    def of(self, group: str) -> GroupKind | None:
        """Returns the recorded kind, or ``None`` if the group has no record, or if it is not known yet."""
        record = self.record_of(group)
        return None if record is None else record.kind

    def are(self, kind: GroupKind, *groups: str) -> bool:
        """Returns whether the groups are recorded as being of the kind."""
        return all(self.of(one) is kind for one in groups)

    def maybe_native(self, groups: Iterable[str]) -> set[str]:
        """Returns the groups that are native, or have no record."""
        return {one for one in groups if self.of(one) in {None, GroupKind.NATIVE}}

    async def wait_known(self, group: str) -> None:
        """Waits, as long as a request may, until the group's record, or that it has none, is known."""
        late = asyncio.get_running_loop().time() + _KNOWN_WITHIN_S
        while not self.knows(group) and asyncio.get_running_loop().time() < late:
            await asyncio.sleep(_KNOWN_CHECK_S)

    def _of_partition(self, partition: int) -> Recorded:
        return self._recorded.get(partition, Recorded())

    def returning(self, partition: int) -> dict[str, str]:
        """Returns the partition's groups whose members the fence waits for, and the stay of the fence."""
        return self._of_partition(partition).returning

    def _told(self, partition: int, found: Recorded) -> None:
        """Takes over what was read or written, unless something newer is known. If somebody has deleted the znode, what
        was known stays known, and the instance with the partition's term writes it again."""
        known = self._of_partition(partition)
        if found.version < 0 <= known.version and partition in self._terms:
            log.warning("the kinds of groups were deleted, so they are written again znode=%s", layout.kinds(partition))
            self._again.add(again := asyncio.create_task(self._find_out_surely(partition)))
            again.add_done_callback(self._again.discard)
        if found.version < known.version and found.czxid in {0, known.czxid}:
            return
        self._recorded[partition] = found
        gone = known.groups.keys() - found.groups.keys()
        were = {name for name, one in known.groups.items() if one.is_taken_over}
        taken = {name for name, one in found.groups.items() if one.is_taken_over} - were
        for name in gone:
            del self._records[name]
        self._records.update(found.groups)
        self.on_forgotten(gone | taken)
        moving = {(name, one.moving.removeprefix(UNDOING)) for name, one in found.groups.items() if one.moving}
        over = [one for one in self._frozen_at if partition_of(one[0]) == partition and one not in moving]
        ended = {name for name, _ in over} | known.returning.keys() - found.returning.keys()
        now = asyncio.get_running_loop().time() if moving or ended else 0.0
        for key in over:
            del self._frozen_at[key]
        if ended:
            still = {name: at for name, at in self._moved_at.items() if now < at + FROZEN_S}
            self._moved_at = still | dict.fromkeys(ended, now)
        for key in moving - self._frozen_at.keys():
            self._frozen_at[key] = self._moved_at[key[0]] = now
        if moving:
            self.on_freeze(partition, found)
        if found.returning or known.returning:
            self.on_return(partition)

    def version(self, partition: int) -> int:
        """Returns the version of the partition's records that are known."""
        return self._of_partition(partition).version

    def czxid(self, partition: int) -> int:
        """Returns which znode the partition's records were read from: with it, all that was below it was deleted."""
        return self._of_partition(partition).czxid

    def record_of(self, group: str) -> GroupRecord | None:
        return self._records.get(group)

    def is_frozen(self, group: str) -> bool:
        """Returns whether the group is being taken over, as far as this instance has heard. No move lasts longer than
        :data:`FROZEN_S`, with its undoing: the brokers hear none of the members meanwhile."""
        if not self._frozen_at:
            return False
        record = self.record_of(group)
        since = self._frozen_at.get((group, record.moving.removeprefix(UNDOING))) if record is not None else None
        return since is not None and asyncio.get_running_loop().time() < since + self.longest_s(group)

    def _moved_lately(self, group: str) -> bool:
        moved_at = self._moved_at.get(group)
        return moved_at is not None and asyncio.get_running_loop().time() < moved_at + FROZEN_S

    def are_returning(self, group: str) -> bool:
        """Returns whether the group's members come back to the brokers, or may have done so lately."""
        record = self.record_of(group)
        return record is not None and (record.is_returning or (record == AT_REST and self._moved_lately(group)))

    def is_surely_native(self, group: str) -> bool:
        """Returns whether the group is native, and was not moving lately, by records that are not out of date."""
        return self._is_current and not self._moved_lately(group) and self.record_of(group) == AT_REST

    async def thawed(self, groups: Iterable[str]) -> None:
        """Waits until none of the groups is frozen, which takes :data:`FROZEN_S` at most."""
        for one in groups:
            while self.is_frozen(one):
                await asyncio.sleep(_KNOWN_CHECK_S)

    def knows(self, group: str) -> bool:
        """Returns whether the group's record, or that it has none, is known."""
        return self._store is None or partition_of(group) in self._recorded

    # --- following ---------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Reads the records whenever they change. Runs until it is cancelled."""
        if self._store is None:
            return
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(news.set)

        def told(partition: int, node: Znode | None) -> None:
            try:
                found = decode_kinds(partition, node)
            except MalformedValue as error:
                log.warning("cannot read the kinds of groups, so those known before are used: %s", error)
                return
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._told, partition, found)

        watches = Watches(self._store, wake)
        for partition in range(LOG_PARTITIONS):
            watches.data(layout.kinds(partition), partial(told, partition))
        try:
            while True:
                news.clear()
                self._is_current = False
                self._is_current = is_done = await asyncio.to_thread(watches.step)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOKS_S if is_done else _LOOKS_SOON_S):
                        await news.wait()
        finally:
            watches.close()

    # --- recording ---------------------------------------------------------------------------------------------------

    async def begin(self, partition: int, term: int, stored: Mapping[str, bool]) -> None:
        """Begins a term, and records the kinds of groups that are stored without a record. ``stored`` are the groups in
        the log, and whether they have members. A group that is in ZooKeeper, too, is managed, unless it has members
        here. Raises :class:`StoreError` and :class:`MalformedValue`."""
        fence = self._terms[partition] = Check(layout.log_partition(partition), term)
        if self._store is not None:
            await self._written(partition, _record_stored, self._store, partition, stored, fence)

    def end(self, partition: int) -> None:
        self._terms.pop(partition, None)

    async def record_first(self, group: str, kind: GroupKind) -> GroupKind:
        """Records the kind of a group that has none, and returns the kind that it has then. Only the instance with the
        term of the group's partition may do so. Raises :class:`StoreError` and :class:`MalformedValue`."""
        partition = partition_of(group)
        self._wanted.setdefault(partition, {}).setdefault(group, kind)
        while (found := self.of(group)) is None:  # groups that come at the same time are recorded together
            if partition not in self._recording:
                self._recording[partition] = asyncio.create_task(self._record_wanted(partition))
            self._wanted.setdefault(partition, {}).setdefault(group, kind)
            await asyncio.shield(self._recording[partition])
        return found

    async def _record_wanted(self, partition: int) -> None:
        wanted = self._wanted.pop(partition, {})
        try:
            if self._store is None:
                added = {name: GroupRecord(kind) for name, kind in wanted.items()}
                self._keep(partition, {**added, **self._of_partition(partition).groups})
            else:
                fence = self._fence(partition)
                await self._written(partition, record_new, self._store, partition, wanted, fence)
        finally:  # not once it is done: who comes before the callback would await what is done, again and again
            del self._recording[partition]

    async def record(
        self, group: str, kind: GroupKind, expected: GroupRecord | None = None, ops: Sequence[Op] = (), **changes: Any
    ) -> int:
        """Records another kind, or another field, together with ``ops``, and returns the version of the records. Like
        :meth:`record_first`, and raises :class:`RecordChanged` unless the record is the ``expected`` one, if that is
        given."""
        partition = partition_of(group)
        if self._store is None:
            if expected is not None and self.record_of(group) != expected:
                raise RecordChanged(f"the record of {group} has changed")
            self._keep(partition, {**self._of_partition(partition).groups, group: GroupRecord(kind, **changes)})
        elif changes or self.of(group) is not kind:
            fence = self._fence(partition)
            change = partial(record_kind, self._store, group, fence, expected, ops, kind=kind, **changes)
            return (await self._written(partition, change)).version
        return self._of_partition(partition).version

    async def record_surely(
        self,
        group: str,
        kind: GroupKind,
        expected: GroupRecord,
        ops: Sequence[Op] = (),
        doubts: Callable[[], None] = lambda: None,
    ) -> None:
        """Like :meth:`record`. If that fails, calls ``doubts``, and finds out what is recorded, as long as the term
        lasts: who has left a group to others must not act for it any more. Raises only if the group is not of that kind
        then."""
        partition = partition_of(group)
        try:
            await self.record(group, kind, expected, ops)
        except (Exception, asyncio.CancelledError):
            doubts()
            await self._find_out_surely(partition)
            if self.record_of(group) != structs.replace(expected, kind=kind):
                raise

    async def find_out(self, partition: int) -> None:
        """Finds out what is recorded, after a write whose outcome is unknown. Like :meth:`record_first`."""
        if self._store is not None:
            look = partial(change_kinds, self._store, partition, dict, self._fence(partition), always=True)
            await self._written(partition, look)

    async def _find_out_surely(self, partition: int) -> None:
        """Finds out what is recorded, unless the term ends."""
        while partition in self._terms:
            try:
                await asyncio.shield(self.find_out(partition))
                break
            except (StoreError, MalformedValue) as error:
                log.info("cannot find out the kinds of groups partition=%d: %s; trying again", partition, error)
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _written(self, partition: int, write: Callable[..., Recorded], *arguments: Any) -> Recorded:
        """Lets the owner of the term write. It writes what it knows again if somebody has deleted the znode: it may not
        have heard of that yet, or have heard of it while nobody had the term."""
        known = self._of_partition(partition).groups if partition in self._terms else {}
        try:
            found: Recorded = await asyncio.to_thread(write, *arguments, known=known)
        except Fenced:  # a newer term was claimed, even if nobody has begun it: nothing can be recorded in this one
            self.on_deposed(partition)
            raise
        if found.czxid >= self.czxid(partition):  # otherwise the znode has been made anew since
            self._told(partition, found)
        return found

    async def claim_undo(self, group: str, move: str) -> str | None:
        """Records that a move is being undone, unless it has ended: only the record knows, if a write's outcome is
        unknown. Returns the new name of the move, or ``None`` if it has ended. Like :meth:`record_first`."""
        await self.find_out(partition_of(group))
        found, begun = self.record_of(group), move.removeprefix(UNDOING)
        undoing = f"{UNDOING}{begun}"
        if found is None or not begun or found.moving not in {begun, undoing}:
            return None
        if found.moving != undoing:
            await self.record(group, found.kind, found, moving=undoing)
        return undoing

    async def acknowledge(self, partition: int, broker_id: int, heard: Acknowledged) -> None:
        """Tells that this instance acts by what it has heard. Raises :class:`StoreError`."""
        if self._store is not None:
            await asyncio.to_thread(acknowledge, self._store, partition, broker_id, heard)

    async def acknowledged(self, partition: int, brokers: Collection[int]) -> dict[int, Acknowledged]:
        """Returns what each of the instances has acknowledged. Raises :class:`StoreError` and
        :class:`MalformedValue`."""
        return await asyncio.to_thread(read_acknowledged, self._store, partition, brokers) if self._store else {}

    async def give_up(self, partition: int, broker_id: int, known: Mapping[str, Collection[str]]) -> None:
        """Tells what this instance knows of members that come back. Raises :class:`StoreError` and
        :class:`MalformedValue`."""
        if self._store is not None:
            await asyncio.to_thread(give_up, self._store, partition, broker_id, known)
        else:
            self._given_up = known

    async def known_of(self, group: str) -> Back:
        """Returns what any instance knows of the members that the fence waits for. Raises as :meth:`give_up`."""
        record = self.record_of(group)
        stay = record.fenced if record is not None else ""
        stays = [f"{stay}{how}" for how in ("", _LEFT, _HEARD)]
        if self._store is None:
            return Back(*(frozenset(self._given_up.get(one, ())) for one in stays))
        return Back(*await asyncio.to_thread(read_given_up, self._store, partition_of(group), *stays))

    def unsettled(self, partition: int) -> dict[str, GroupRecord]:
        """Returns the partition's groups that are moving, or whose namesakes at the brokers are fenced."""
        return {name: one for name, one in self._of_partition(partition).groups.items() if one.moving or one.fenced}

    async def require(self, group: str, expected: GroupRecord) -> None:
        """Raises :class:`RecordChanged` unless the group's record in ZooKeeper is, now, the ``expected`` one,
        :class:`StoreError` and :class:`MalformedValue`."""
        record = self.record_of(group)
        if self._store is not None:
            record = await asyncio.to_thread(_read_now, self._store, group)
        if record is None and partition_of(group) in self._terms:  # somebody may have deleted the znode
            await self.find_out(partition_of(group))
            record = self.record_of(group)
        if record != expected:
            raise RecordChanged(f"the record of {group} has changed")

    def of_terms(self) -> dict[str, GroupRecord]:
        """Returns the records of the groups that this instance coordinates, or would if they were not native."""
        return {name: one for partition in self._terms for name, one in self._of_partition(partition).groups.items()}

    async def forget(self, group: str, *, in_term: bool = False) -> None:
        """Removes the record of a group that does not exist any more, ``in_term`` only as long as this instance has the
        term of the group's partition. If that fails, the group keeps its kind."""
        partition = partition_of(group)
        try:
            if self._store is not None:
                fence = self._fence(partition) if in_term else None
                await self._written(partition, forget_kind, self._store, group, fence)
            else:
                left = {name: one for name, one in self._of_partition(partition).groups.items() if name != group}
                self._keep(partition, left)
        except (StoreError, MalformedValue) as error:
            log.warning("cannot remove the kind of a deleted group group=%s: %s", group, error)

    def _keep(self, partition: int, groups: Mapping[str, GroupRecord]) -> None:
        self._told(partition, Recorded(self._of_partition(partition).version + 1, groups))

    def _fence(self, partition: int) -> Check:
        if partition not in self._terms:
            raise StoreError("this instance no longer coordinates the group's partition", layout.kinds(partition))
        return self._terms[partition]


def _read_now(store: Store, group: str) -> GroupRecord | None:
    store.sync(layout.KINDS)
    return read_kinds(store, [group]).get(group)


def _record_stored(
    store: Store, partition: int, in_log: Mapping[str, bool], fence: Check, known: Mapping[str, GroupRecord]
) -> Recorded:
    store.sync(layout.GROUPS)
    listing = store.children_many([layout.GROUPS])[0]
    names: Iterable[str] = listing.names if listing is not None else ()
    managed = {name for name in names if partition_of(name) == partition}
    kinds = dict.fromkeys(in_log, GroupKind.CLIENT_ASSIGNED) | dict.fromkeys(managed, GroupKind.MANAGED)
    kinds |= {name: GroupKind.CLIENT_ASSIGNED for name, has_members in in_log.items() if has_members}
    return record_new(store, partition, kinds, fence, known=known, are_stored=True)


@dataclass(slots=True)
class PassedOn:
    """A request that the broker is to answer. Call :meth:`end` when it has, or when it never will. If there is a
    ``change``, it returns the frame that the client gets instead of the broker's."""

    in_flight: Counter[str]
    groups: Sequence[str]
    change: Callable[[bytes], Awaitable[bytes]] | None = None

    def end(self) -> None:
        for group in self.groups:
            self.in_flight[group] -= 1
            if not self.in_flight[group]:
                del self.in_flight[group]
        self.groups = ()


class NativeGroups:
    """The groups that the brokers coordinate. Use only on the event loop. ``connect`` connects to another instance, as
    :data:`FOR_BROKERS`."""

    type = ""
    """In ListGroups, they have the types that the brokers say."""

    def __init__(
        self, instances: Instances, kinds: Kinds, connect: Callable[[Address], BrokerConnection] | None = None
    ) -> None:
        self._instances, self.kinds, self._connect = instances, kinds, connect
        self._connections: dict[Address, BrokerConnection] = {}
        self._in_flight: Counter[str] = Counter()
        """The requests that this instance has passed on and the broker has not answered, by group."""
        self._timeouts: dict[tuple[int, str], tuple[int, int]] = {}
        self._seen: dict[str, dict[str, Seen]] = {}
        """What requests that were passed on said of members, by group and member id."""
        self._names: dict[str, dict[int, str | None]] = {}
        """The member id that requests on a connection have named last, by group and connection, or ``None`` if several
        members share the connection."""
        self._given_up: dict[str, dict[str, None]] = {}
        """The ids of members that hold nothing any more: by group, those that nobody uses any more, because their
        clients have joined again with others, and by the stay of a fence, those with which KIP-848 members have joined
        again since, and those of members that have left."""
        self._told_given_up: dict[int, tuple[int, Mapping[str, Collection[str]]]] = {}
        """What of them was told last, by partition, and below which znode."""
        self._transactional: dict[str, None] = {}
        """The groups whose offsets were committed in transactions."""
        self._is_free: dict[str, float] = {}
        """When a namesake was last seen without a fence that an ended move has left there."""
        self._looks: dict[str, asyncio.Task[Any]] = {}
        """What is about to be asked of the broker, by group."""
        self._asking: Counter[Address] = Counter()
        self._used_at: dict[Address, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.denied = ""
        """A group that the brokers do not let this instance describe, or "" if they do."""
        self._acknowledging = asyncio.Lock()
        self._telling = asyncio.Lock()
        kinds.on_freeze, kinds.on_return, kinds.on_forgotten = self._frozen, self._returning, self._forgotten
        kinds.longest_s = self._frozen_s

    def group(self, name: str, check: Callable[[], None]) -> NoReturn:
        """Makes the client look up its coordinator again: this instance found out only now that the group is
        native."""
        del name, check
        raise GroupError(Error.NOT_COORDINATOR)

    async def is_gone(self, name: str) -> bool:
        """Returns whether the brokers say that there is no such group, nor offsets of it."""
        try:
            node = await self._instances.native_coordinator(name)
            return node is None or not await self._exists_at(node, name)
        except BrokerError:
            return False

    async def listed(self, names: Sequence[str], *, with_states: bool) -> list[Listed]:
        """The broker lists them itself (:meth:`listed_by_broker`)."""
        del names, with_states
        return []

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for connection in self._connections.values():
            connection.close()

    # --- passing through ---------------------------------------------------------------------------------------------

    def is_meant(self, call: Call, group: str) -> bool:
        """Returns whether the request means the group that the brokers coordinate."""
        return call.client_id == FOR_BROKERS or self.kinds.are(GroupKind.NATIVE, group)

    def may_concern(self, name: str, call: Call) -> bool:
        """Returns whether the brokers may have to do with the request: not if it names groups, all of which the
        instances coordinate, as nearly always."""
        groups = _groups_of(name, call)
        for group in groups:
            record = self.kinds.record_of(group)
            if record is None or record.moving or record.kind is GroupKind.NATIVE:
                return True
        return not groups or call.client_id == FOR_BROKERS

    async def passes(self, name: str, call: Call, ours: Ours) -> PassedOn | None:
        """Returns a token if the whole request goes to the broker as it came, else ``None``. ``ours`` answers it if the
        group turns out to be coordinated by the instances."""
        groups = _groups_of(name, call)
        for one in groups:
            await self.kinds.wait_known(one)
        if name in _WAITING and call.client_id != FOR_BROKERS:
            await self.kinds.thawed(groups)
        if not self._are_meant(call, groups) or name == "DeleteGroups":
            return None
        if await self._newest(name) < call.version:
            return None
        if name in _GIVE_UP:
            await self._gives_up(name, call)
        # nothing is awaited from here on: what is asked now holds until the request counts as passed on
        if self._is_frozen(call, groups) or not self._are_meant(call, groups):
            return None
        return self._begun(name, call, groups, ours)

    def _are_meant(self, call: Call, groups: Sequence[str]) -> bool:
        return bool(groups) and all(self.is_meant(call, one) for one in groups)

    def _begun(self, name: str, call: Call, groups: Sequence[str], ours: Ours) -> PassedOn:
        """Notes that a request is passed on. Of members, a take-over must know the generation and the timeouts."""
        if call.client_id == FOR_BROKERS:
            return PassedOn(Counter(), ())
        if name != "OffsetFetch" and hasattr(call.request, "group_id"):
            self._note(name, call)
        self._in_flight.update(groups)
        is_changed = name in _CHANGED or _is_never_refused(name, call)
        return PassedOn(self._in_flight, groups, partial(self._changed, name, call, ours) if is_changed else None)

    def _is_frozen(self, call: Call, groups: Iterable[str]) -> bool:
        """Returns whether the request must wait until a take-over of a group has ended."""
        return call.client_id != FOR_BROKERS and any(map(self.kinds.is_frozen, groups))

    def _frozen_s(self, group: str) -> float:
        """Returns how long the group may be frozen, while its members' sessions at the brokers go on, and maybe a
        rebalance that nobody is told of."""
        timeouts_s = (one for seen in self._seen.get(group, {}).values() for one in seen.timeouts_s)
        return min([FROZEN_S, *(one * 2 / 3 for one in timeouts_s)])

    def _note(self, name: str, call: Call) -> None:
        request, group = call.request, call.request.group_id
        if name in _IN_TRANSACTIONS:
            _remember(self._transactional, group, None)
            return
        connection = call.client.number, group
        if name == "JoinGroup":
            rebalance_ms = request.rebalance_timeout_ms if call.version >= 1 else request.session_timeout_ms
            _remember(self._timeouts, connection, (request.session_timeout_ms, rebalance_ms))
        elif name == _BEAT and request.rebalance_timeout_ms >= 0:
            _remember(self._timeouts, connection, (0, request.rebalance_timeout_ms))
        generation = getattr(request, "generation_id", getattr(request, "generation_id_or_member_epoch", -1))
        generation = getattr(request, "member_epoch", generation)
        member_id = getattr(request, "member_id", "")
        if member_id:
            names = self._names.get(group, {})
            before = names.get(call.client.number, member_id)
            is_alone = before == member_id or before in self._given_up.get(group, {})
            _remember(names, call.client.number, member_id if is_alone else None, _MOST_MEMBERS)
            _remember(self._names, group, names)
        if member_id and generation >= 0:
            members = self._seen.get(group, {})
            known = members.get(member_id, Seen())
            timeouts = self._timeouts.get(connection, (known.session_ms, known.rebalance_ms))
            if member_id not in members:
                self._tell_soon(group)
            _remember(members, member_id, Seen(generation, *timeouts), _MOST_MEMBERS)
            _remember(self._seen, group, members)

    async def _gives_up(self, name: str, call: Call) -> None:
        """Notes that a member leaves, or that its client joins again, because it was told that it is no member any
        more: it holds nothing. A classic one joins with another id than before. If the fence waits for it, this is told
        before the request is passed on: who dies meanwhile must not leave a member in the brokers' group that may be a
        newcomer, for all that anybody knows."""
        request, group, partition = call.request, call.request.group_id, partition_of(call.request.group_id)
        stay = self.kinds.returning(partition).get(group, "")
        found: dict[str, Iterable[str]] = {}
        if name == _LEAVE_GROUP:
            left = {one.member_id for one in request.members} | {request.member_id}
            found = dict.fromkeys((stay, f"{stay}{_LEFT}"), left - {""}) if stay else {}
        elif name == _BEAT:
            found = {stay: [request.member_id]} if stay and request.member_epoch <= JOIN else {}
        elif (before := self._names.get(group, {}).get(call.client.number)) not in {None, request.member_id}:
            found = {group: [str(before)]}
        if not found or call.client_id == FOR_BROKERS:
            return
        if await call.client.access.denied_groups(Operation.READ, [group]):
            return
        for of, ids in found.items():
            members = self._given_up.get(of, {})
            for one in ids:
                _remember(members, one, None, _MOST_MEMBERS)
            _remember(self._given_up, of, members)
        await self._tell_given_up(partition)

    def _tell_soon(self, group: str) -> None:
        """Tells that another member was heard, unless all have come back by then, as nearly always."""
        record = self.kinds.record_of(group)
        if record is not None and record.is_returning:
            asyncio.get_running_loop().call_later(_TOLD_WITHIN_S, self._returning, partition_of(group))

    def _returning(self, partition: int) -> None:
        self._run(self._tell_given_up(partition))

    async def _tell_given_up(self, partition: int) -> None:
        async with self._telling:
            none: dict[str, None] = {}
            of_stays = {
                told: frozenset(self._given_up.get(told, none)).union(more)
                for group, stay in self.kinds.returning(partition).items()
                for told, more in (
                    (stay, self._given_up.get(group, none)),
                    (f"{stay}{_LEFT}", none),
                    (f"{stay}{_HEARD}", self._seen.get(group, none)),
                )
            }
            wanted, below = {stay: ids for stay, ids in of_stays.items() if ids}, self.kinds.czxid(partition)
            told_below, told = self._told_given_up.get(partition, (below, {}))
            if wanted == told and (below == told_below or not wanted):
                return
            try:
                async with asyncio.timeout(_TOLD_WITHIN_S):
                    await self.kinds.give_up(partition, self._instances.broker_id, wanted)
                self._told_given_up[partition] = below, wanted
            except (StoreError, MalformedValue, TimeoutError) as error:
                log.info("cannot tell who has come back: %s; trying again", error)
                asyncio.get_running_loop().call_later(_TOLD_WITHIN_S, self._returning, partition)

    def _forgotten(self, names: Collection[str]) -> None:
        """The next group that gets one of the names is not the one that had it. Of one that was taken over, the members
        may get other ids, on the same connections, before it is given back."""
        for name in names:
            for known in (self._transactional, self._seen, self._names, self._given_up, self._is_free):
                known.pop(name, None)

    def _frozen(self, partition: int, found: Recorded) -> None:
        """Acknowledges that groups of the partition are frozen, once nothing is in flight that was passed on before."""
        self._run(self._acknowledge(partition, found))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _acknowledge(self, partition: int, found: Recorded) -> None:
        moving = [name for name, one in found.groups.items() if one.moving]
        late = asyncio.get_running_loop().time() + FROZEN_S
        while any(self._in_flight[name] for name in moving):
            if asyncio.get_running_loop().time() >= late:
                return
            await asyncio.sleep(_IN_FLIGHT_CHECK_S)
        async with self._acknowledging:  # the newest one must stay
            if found.version >= self.kinds.version(partition):
                await self._tell(partition, found, moving)

    async def _tell(self, partition: int, found: Recorded, moving: Sequence[str]) -> None:
        seen = {name: dict(self._seen.get(name, {})) for name in moving}
        heard = Acknowledged(found.version, seen, tuple(name for name in moving if name in self._transactional))
        try:
            await self.kinds.acknowledge(partition, self._instances.broker_id, heard)
        except StoreError as error:
            log.info("cannot acknowledge that groups are taken over: %s", error)

    # --- fences that were left behind --------------------------------------------------------------------------------

    async def _changed(self, name: str, call: Call, ours: Ours, frame: bytes) -> bytes:
        form = message(f"{name}Response")
        at = answer_start(form, call.version)
        told = form.decode(frame, call.version, at)
        if _is_never_refused(name, call):
            other = await self._other_answer(name, call, _groups_of(name, call), ours, told)
            return frame if other is None else bytes(form.encode(other, call.version, bytearray(frame[:at])))
        is_changed = await self._change(name, call, told)
        return bytes(form.encode(told, call.version, bytearray(frame[:at]))) if is_changed else frame

    async def _change(self, name: str, call: Call, answer: Any) -> bool:
        """Makes a broker's answer what the client is told, and returns whether it is another one. KIP-848 members that
        come back ask often: only then does the broker tell them what to give up and to read."""
        before = answer.error_code, answer.heartbeat_interval_ms if name == _BEAT else 0
        answer.error_code = await self._error(name, call, answer)
        if before[1] > _SOON_MS and self.kinds.are_returning(call.request.group_id):
            answer.heartbeat_interval_ms = _SOON_MS
            return True
        return bool(answer.error_code != before[0])

    async def _error(self, name: str, call: Call, answer: Any) -> int:
        """Returns the error that the client is told."""
        group, error = call.request.group_id, int(answer.error_code)
        if name == "JoinGroup":
            return Error.COORDINATOR_NOT_AVAILABLE if self._may_be_fenced(group, error) else error
        if name == _BEAT and error == Error.GROUP_ID_NOT_FOUND:
            return self._not_found(group, call.request.member_epoch)
        given = answer.assignment if name == "SyncGroup" else answer.assignment and answer.assignment.topic_partitions
        if error or not given or await self._gives(group, getattr(answer, "member_id", call.request.member_id)):
            return error
        return Error.REBALANCE_IN_PROGRESS if name == "SyncGroup" else Error.COORDINATOR_LOAD_IN_PROGRESS

    def _not_found(self, group: str, epoch: int) -> int:
        """To the broker, a fenced namesake is no group of KIP-848 members, and clients give up if they are told so."""
        if epoch != JOIN:
            return Error.UNKNOWN_MEMBER_ID
        record, error = self.kinds.record_of(group), Error.GROUP_ID_NOT_FOUND
        is_fenced = (record is not None and record.is_returning) or self._may_be_fenced(group, error)
        return Error.COORDINATOR_LOAD_IN_PROGRESS if is_fenced else error

    async def _gives(self, group: str, member_id: str) -> bool:
        """Returns whether the broker may give a member what it was assigned just now. It may not once a fence is in the
        group: then it gives away what members have that the fence has removed, and that are frozen, maybe at another
        instance. Only the broker knows that for sure. This instance may have lost its session, or have one only since
        the freeze, so that nobody waits for it."""

        def may(ids: Sequence[tuple[str, str | None]]) -> bool:
            return any(one == member_id for one, _ in ids) and all(instance_id != FENCE for _, instance_id in ids)

        return await self._are_members(group, may)

    async def _other_answer(self, name: str, call: Call, groups: Iterable[str], ours: Ours, told: Any) -> Any | None:
        """Returns what the client gets instead of what the broker has ``told`` if one of the groups may be coordinated
        by the instances, although the broker has answered as ever: the fence is alone. Like :meth:`_gives`. Our own
        tools only show what they are told."""
        has_failed = any(getattr(one, "error_code", 0) for one in (told, *getattr(told, "groups", ())))
        if has_failed or not _is_never_refused(name, call) or call.client_id in {FOR_BROKERS, CLIENT_ID}:
            return None

        def are_theirs(ids: Sequence[tuple[str, str | None]]) -> bool:
            return not ids or any(instance_id != FENCE for _, instance_id in ids)

        if all(await asyncio.gather(*(self._are_members(one, are_theirs) for one in groups))):
            return None
        if name == "OffsetFetch":
            return await ours(call)
        return answers.per_partition(name, call.request.topics, Error.NOT_COORDINATOR)

    async def _are_members(self, group: str, may: Callable[[Sequence[tuple[str, str | None]]], bool]) -> bool:
        """Returns what the ids of the group's members say, or whether nobody can move the group. Asks the broker beside
        this instance, for all who have asked by then."""
        if group not in self._looks:
            self._looks[group] = asyncio.create_task(self._look(group))
        try:
            found = await asyncio.shield(self._looks[group])
        except (NoCommonVersion, RightMissing):
            return True
        except BrokerError as error:
            log.info("cannot find out whether the brokers' group is fenced group=%s: %s", group, error)
            return False
        return may([(one.member_id, instance_of(one)) for one in (found.members if found is not None else ())])

    async def _look(self, group: str) -> Any | None:
        await asyncio.sleep(_TOGETHER_S)
        del self._looks[group]
        return await self.described((self._instances.broker_id, "", 0), group)

    def _may_be_fenced(self, group: str, error: int) -> bool:
        """Returns whether a fence may have caused the error of a join: then the client looks up its coordinator again,
        instead of giving up because its protocols do not fit. If the record says that the group is native, looks
        whether an ended move has left a fence there."""
        if error not in _FENCED:
            return False
        now = asyncio.get_running_loop().time()
        if self.kinds.is_surely_native(group):
            if now < self._is_free.get(group, -FROZEN_S) + FROZEN_S:
                return False
            self._run(self._freed(group))
        return True

    async def _freed(self, group: str) -> None:
        try:
            await self.remove_fence(group, AT_REST)
            _remember(self._is_free, group, asyncio.get_running_loop().time())
        except (BrokerError, Moving, StoreError, MalformedValue) as error:
            log.info("cannot find out whether the brokers' group is fenced group=%s: %s", group, error)

    async def remove_fence(self, group: str, expected: GroupRecord) -> None:
        """Removes the fence from the brokers' group, as somebody may who has found the ``expected`` record. Only the
        fence that was seen before the record was read again leaves, even if this arrives late. Raises
        :class:`BrokerError`, :class:`Moving`, :class:`StoreError` (:class:`RecordChanged`) and
        :class:`MalformedValue`."""
        node = await self._instances.native_coordinator(group)
        found = await self.described(node, group) if node is not None else None
        left = [(one.member_id, FENCE) for one in found.members if instance_of(one) == FENCE] if found else []
        if node is not None and left:
            await self.kinds.require(group, expected)
            log.info("removing the fence from the brokers' group=%s", group)
            await self.leave(node, group, left)

    async def described(self, node: Node, group: str) -> Any | None:
        """Returns the brokers' group, as DescribeGroups or, if its members use KIP-848, ConsumerGroupDescribe tells of
        it, or ``None`` if there is none. Raises :class:`BrokerError` (:class:`Moving`)."""
        for name, versions in _DESCRIPTIONS.items():
            if name == _CONSUMERS and await self._newest(name) < 0:
                return None
            request = message(f"{name}Request")(**{_LISTS[name][0]: (group,)})
            found = of_group((await self.ask(node, name, versions, request)).groups, group)
            if found.error_code in _ABSENT:
                return None
            require_no_error(found.error_code, "the brokers' group cannot be described")
            if found.group_state != _DEAD:
                return found
        return None

    async def leave(self, node: Node, group: str, leaving: Sequence[tuple[str, str | None]]) -> None:
        """Removes members from a group of the brokers, each by its member id, its instance id, or both. Those that are
        no members, or not with both, stay as they are. Raises :class:`BrokerError` (:class:`Moving`)."""
        form = message("LeaveGroupRequest")
        who = form.struct("MemberIdentity")
        members = tuple(who(member_id=member_id, group_instance_id=instance_id) for member_id, instance_id in leaving)
        if not members:
            return
        answer = await self.ask(node, "LeaveGroup", _LEAVE, form(group_id=group, members=members))
        for code in (answer.error_code, *(one.error_code for one in answer.members)):
            if code not in _GONE:
                require_no_error(code, _NOT_REMOVED)

    async def remove_consumers(self, node: Node, group: str, members: Iterable[Any]) -> None:
        """Removes KIP-848 members from a group of the brokers, as if they left. Raises as :meth:`leave`."""
        form = message(f"{_BEAT}Request")

        async def remove(one: Any) -> None:
            left = form(group_id=group, member_id=one.member_id, member_epoch=LEAVE, instance_id=one.instance_id)
            code = (await self.ask(node, _BEAT, _BEATS, left)).error_code
            if code not in _GONE | _ABSENT:
                require_no_error(code, _NOT_REMOVED)

        await asyncio.gather(*map(remove, members))

    # --- requests about several groups -------------------------------------------------------------------------------

    async def answered(self, name: str, call: Call, ours: Ours) -> Any:
        """Answers a request of which the broker answers a part, in the name of the client. ``ours`` answers the rest.
        Raises :class:`GroupError`, and :class:`OSError` as a request to the broker does."""
        request, lists = call.request, _list_of(name, call)
        groups = _groups_of(name, call)
        are_theirs = [self.is_meant(call, one) for one in groups]
        if not any(are_theirs):
            return await self._with_unmet(name, call, await ours(call))
        if lists is None:
            return await self._answered_whole(name, call, groups, ours)
        asked, told = lists
        sides: dict[bool, list[Any]] = {True: [], False: []}
        for is_theirs, element in zip(are_theirs, getattr(request, asked), strict=True):
            sides[is_theirs].append(element)
        theirs = await self._ask(name, call, _with(request, asked, sides[True]))
        meant = [group for group, is_theirs in zip(groups, are_theirs, strict=True) if is_theirs]
        other = await self._other_answer(name, call, meant, ours, theirs)
        if other is not None:
            return other
        if sides[False]:
            mine = await ours(Call(call.header, _with(request, asked, sides[False]), call.client))
            await self._with_unmet(name, call, mine)
            setattr(theirs, told, (*getattr(mine, told), *getattr(theirs, told)))
        if name == "DeleteGroups":
            for one in theirs.results:
                if not one.error_code and call.client_id != FOR_BROKERS:
                    await self.kinds.forget(one.group_id)
        return theirs

    async def _with_unmet(self, name: str, call: Call, told: Any) -> Any:
        """Replaces what is said of groups that this instance does not coordinate by what the broker says, if they have
        no record, or one since this request: ListGroups names them, although no client has asked an instance for their
        coordinator. Of their offsets only operators are told so: a consumer's group may have got a record elsewhere
        just now."""
        if not (name in _DESCRIBES or (name == "OffsetFetch" and call.client_id == CLIENT_ID and _list_of(name, call))):
            return told
        refused = [one.group_id for one in told.groups if one.error_code == Error.NOT_COORDINATOR]
        unmet = self.kinds.maybe_native(filter(self.kinds.knows, refused))
        if unmet:
            asked = _LISTS[name][0]
            elements = [one for one in getattr(call.request, asked) if getattr(one, "group_id", one) in unmet]
            theirs = await self._ask(name, call, _with(call.request, asked, elements))
            found = {one.group_id: one for one in theirs.groups if one.error_code != Error.NOT_COORDINATOR}
            told.groups = tuple(found.get(one.group_id, one) for one in told.groups)
        return told

    async def _answered_whole(self, name: str, call: Call, groups: Sequence[str], ours: Ours) -> Any:
        """Answers a request about one group in a version that the broker does not know."""
        if name in _GIVE_UP:
            await self._gives_up(name, call)
        if name != "OffsetFetch" and self._is_frozen(call, groups):
            raise GroupError(Error.NOT_COORDINATOR) if name in _WAITING else Loading
        passed = self._begun(name, call, groups, ours)
        try:
            answer = await self._ask(name, call, call.request)
            if passed.change is not None and name in _CHANGED:
                await self._change(name, call, answer)
        finally:
            passed.end()
        other = await self._other_answer(name, call, groups, ours, answer)
        return answer if other is None else other

    async def _newest(self, name: str) -> int:
        """Returns the newest version of a request that the broker and this instance support, or -1 if there is none.
        Raises :class:`BrokerError`."""
        try:
            return await self._instances.newest_version(name, _VERSIONS[name])
        except NoCommonVersion:
            return -1

    async def _ask(self, name: str, call: Call, request: Any) -> Any:
        version = min(await self._newest(name), call.version)
        if version < 0:
            if name == "ConsumerGroupDescribe":
                return message("ConsumerGroupDescribeResponse")(groups=[_not_found(one) for one in request.group_ids])
            raise GroupError(Error.UNSUPPORTED_VERSION, "the brokers do not support this protocol")
        if name == "OffsetFetch" and version < _FETCH_OF_SEVERAL <= call.version:
            return await self._fetched_one_by_one(call, version, request)
        return await call.client.ask_broker(name, version, request)

    async def _fetched_one_by_one(self, call: Call, version: int, request: Any) -> Any:
        """Asks brokers before 3.0, which answer about one group at a time."""
        asking, telling = message("OffsetFetchRequest"), message("OffsetFetchResponse")
        of_topic, of_group_ = asking.struct("OffsetFetchRequestTopic"), telling.struct("OffsetFetchResponseGroup")
        groups = []
        for one in request.groups:
            topics = one.topics and [of_topic(name=t.name, partition_indexes=t.partition_indexes) for t in one.topics]
            asked = asking(group_id=one.group_id, topics=topics, require_stable=request.require_stable)
            told = await call.client.ask_broker("OffsetFetch", version, asked)
            groups.append(of_group_(group_id=one.group_id, error_code=told.error_code, topics=told.topics))
        return telling(groups=groups)

    async def coordinator_of(self, call: Call, key: str, key_type: int) -> tuple[int, Node]:
        """Asks the broker, as the client, who coordinates a group or a transaction, and returns the error and the
        instance beside the coordinator."""
        request = message("FindCoordinatorRequest")(key=key, key_type=key_type)
        response = await call.client.ask_broker("FindCoordinator", _FIND_COORDINATOR, request)
        node = self._instances.node(response.node_id, response.host, response.port)
        if response.error_code or node is None:
            return response.error_code or Error.COORDINATOR_NOT_AVAILABLE, answers.NOWHERE
        return Error.NONE, node

    async def listed_by_broker(self, call: Call, known: set[str]) -> tuple[int, list[Listed]]:
        """Returns the groups that the broker coordinates, except those that are recorded as coordinated by the
        instances, or that are ``known`` to be. Asks as the client, which sees only what it may describe."""
        version = min(await self._newest("ListGroups"), call.version)
        told = await call.client.ask_broker("ListGroups", version, call.request)
        theirs = self.kinds.maybe_native(one.group_id for one in told.groups) - known
        rows = [
            Listed(one.group_id, one.protocol_type, one.group_state, one.group_type.lower())
            for one in told.groups
            if one.group_id in theirs
        ]
        return told.error_code, rows

    # --- looking for them --------------------------------------------------------------------------------------------

    async def supports(self, name: str) -> bool:
        """Returns whether the broker supports a request. Raises :class:`GroupError` if it cannot be asked."""
        try:
            return await self._newest(name) >= 0
        except BrokerError:
            raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None

    async def exists(self, group: str) -> bool:
        """Returns whether the brokers coordinate the group, or hold offsets of it. Asks as this instance. Raises
        :class:`GroupError` if that cannot be found out."""
        reason = ""
        for _ in range(_LOOKS):
            try:
                node = await self._instances.native_coordinator(group)
                found = node is not None and await self._exists_at(node, group)
            except RightMissing:
                self._note_denied(group)
                raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None
            except Moving as moving:
                reason = str(moving)
                await asyncio.sleep(_LOOK_AGAIN_S)
            except BrokerError as error:
                reason = str(error)
                break
            else:
                self._note_denied("")
                return found
        log.warning("cannot find out whether the brokers coordinate group=%s: %s; the client must retry", group, reason)
        raise GroupError(Error.COORDINATOR_NOT_AVAILABLE)

    def _note_denied(self, group: str) -> None:
        """Reports once that the brokers hide ``group`` from this instance, and once that they hide none any more."""
        before, self.denied = self.denied, group
        if group and not before:
            log.error(
                "the brokers do not let this instance describe groups, so clients of groups without a record get"
                " COORDINATOR_NOT_AVAILABLE: %s; give the instance's user DESCRIBE on all groups",
                group,
                extra={"event": "right_missing"},
            )
        elif before and not group:
            log.info("the brokers let this instance describe groups")

    async def look_for_right(self) -> None:
        """Asks about a group again that the brokers hid: the right may have been given, although nobody asks."""
        if self.denied:
            with suppress(GroupError):
                await self.exists(self.denied)

    async def _exists_at(self, node: Node, group: str) -> bool:
        request = message("DescribeGroupsRequest")(groups=(group,))
        found = of_group((await self.ask(node, "DescribeGroups", 0, request)).groups, group)
        _check(found.error_code)
        if not found.error_code and found.group_state != _DEAD:
            return True
        if await self._newest("ConsumerGroupDescribe") < 0:
            return False
        request = message("ConsumerGroupDescribeRequest")(group_ids=(group,))
        found = only((await self.ask(node, "ConsumerGroupDescribe", 0, request)).groups, "groups")
        _check(found.error_code)
        return found.error_code not in _ABSENT

    async def ask(self, node: Node, name: str, version: int | Versions, value: Any) -> Any:
        """Asks the brokers' own coordinator beside the instance at ``node``. Raises :class:`BrokerError`."""
        address, loop = node[1:], asyncio.get_running_loop()
        if address not in self._connections:
            self._connections[address] = self.connection(node)
        self._asking[address] += 1
        try:
            return await self._connections[address].ask(name, version, value)
        finally:
            self._asking[address] -= 1
            self._used_at[address] = loop.time()
            loop.call_later(_IDLE_S, self._end_idle, address)

    def _end_idle(self, address: Address) -> None:
        """Closes a connection that nobody has used for a while: it counts among another instance's clients."""
        is_idle = asyncio.get_running_loop().time() >= self._used_at[address] + _IDLE_S - _IN_FLIGHT_CHECK_S
        if is_idle and not self._asking[address] and address in self._connections:
            self._connections.pop(address).close()

    def connection(self, node: Node) -> BrokerConnection:
        """Returns a new connection to the brokers' own coordinator beside the instance at ``node``."""
        if node[0] == self._instances.broker_id or self._connect is None:
            return self._instances.to_broker()
        return self._connect(node[1:])


class KindFinder:
    """Finds out which kind a group without a record is of. ``matches_managed`` returns whether a group's name matches
    the setting ``managed_groups``, and ``left_to_brokers`` whether a new group with this name is native."""

    def __init__(
        self,
        manager: GroupMetadataManager,
        managed: Collection[str],
        native: NativeGroups,
        matches_managed: Callable[[str], bool],
        left_to_brokers: Callable[[str], bool],
    ) -> None:
        self._manager, self._managed, self._native = manager, managed, native
        self._matches_managed, self._left_to_brokers = matches_managed, left_to_brokers

    async def first_contact(self, name: str, why: Why) -> GroupKind:
        """Returns what a group without a record is in one of the stores, native if the brokers know it, and otherwise
        what a new group becomes. Records that if the group exists, or will by this request. Raises
        :class:`GroupError`."""
        kind = self.stored(name)
        if kind is None and await self._native.exists(name):
            kind = GroupKind.NATIVE
        if kind is None and not why.creates:
            return self._new(name, why)
        if kind is None and self._left_to_brokers(name):
            is_theirs = not why.is_kip_848 or await self._native.supports("ConsumerGroupHeartbeat")
            kind = GroupKind.NATIVE if is_theirs else None
        try:
            return await self._native.kinds.record_first(name, kind or self._new(name, why))
        except (StoreError, MalformedValue) as error:
            log.info("cannot record the kind of group=%s: %s; the client must retry", name, error)
            raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None

    def _new(self, name: str, why: Why) -> GroupKind:
        is_managed = why.is_kip_848 or (why.protocol_type == CONSUMER and self._matches_managed(name))
        return GroupKind.MANAGED if is_managed else GroupKind.CLIENT_ASSIGNED

    def stored(self, name: str) -> GroupKind | None:
        """Returns the kind of a group by where it is stored. One with members in the log is not managed."""
        if name in self._managed and not self._has_members(name):
            return GroupKind.MANAGED
        return GroupKind.CLIENT_ASSIGNED if self._manager.has(name) else None

    def with_newcomer(self, name: str, kind: GroupKind, why: Why) -> GroupKind:
        """Returns the kind of the group in which the newcomer finds itself: a client-assigned one without members
        becomes what the newcomer needs."""
        becomes = kind is GroupKind.CLIENT_ASSIGNED and not self._has_members(name)
        return self._new(name, why) if becomes else kind

    def _has_members(self, name: str) -> bool:
        machine = self._manager.group(name)
        return machine is not None and machine.metadata.has_members

    async def found(self, name: str) -> GroupKind | None:
        """Returns the kind of a group that this instance coordinates, or ``None`` if there is no such group. Raises
        :class:`GroupError`."""
        if self._native.kinds.of(name) is None:
            await self.first_contact(name, LOOKS)
        return self._native.kinds.of(name)


def instance_of(member: Any) -> str | None:
    """Returns the instance id of a member of a group that a broker has described, or that the log describes."""
    names = ("group_instance_id", "instance_id")
    return next((getattr(member, one) for one in names if getattr(member, one, None)), None)


def _remember(known: dict[Any, Any], key: object, value: object, most: int = _MOST_KNOWN) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


def _check(code: int) -> None:
    if unless_moving(code) == Error.GROUP_AUTHORIZATION_FAILED:
        raise RightMissing("cannot describe a group", code)


def _list_of(name: str, call: Call) -> tuple[str, str] | None:
    return None if name == "OffsetFetch" and call.version < _FETCH_OF_SEVERAL else _LISTS.get(name)


def _is_never_refused(name: str, call: Call) -> bool:
    """Returns whether the broker answers the request as ever while the fence keeps everybody out of the group: it does
    not ask who fetches offsets or, unless that is said, who commits them in a transaction."""
    return name == "OffsetFetch" or (name == "TxnOffsetCommit" and not getattr(call.request, "member_id", ""))


def _groups_of(name: str, call: Call) -> Sequence[str]:
    """Returns the names of the groups that the request is about. FindCoordinator and ListGroups are answered by their
    own handlers."""
    lists = _list_of(name, call)
    if lists is not None:
        return [getattr(one, "group_id", one) for one in getattr(call.request, lists[0])]
    group = getattr(call.request, "group_id", None)
    return () if group is None else (group,)


def _with(request: Record, field: str, value: Sequence[Any]) -> Record:
    made = copy.copy(request)
    setattr(made, field, value)
    return made


def _not_found(group: str) -> Any:
    one = message("ConsumerGroupDescribeResponse").struct("DescribedGroup")
    return one(error_code=Error.GROUP_ID_NOT_FOUND, error_message=f"Group {group} not found.", group_id=group)
