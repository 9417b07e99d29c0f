"""What an instance knows of the recorded kinds of groups: a copy that follows ZooKeeper, and how it records a kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.model import GroupKind
from kafka_coord.model.names import LOG_PARTITIONS, partition_of
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import (
    Acknowledged,
    GroupRecord,
    Recorded,
    acknowledge,
    change_kinds,
    decode_kinds,
    forget_kind,
    read_acknowledged,
    record_kind,
    record_new,
    undo_move,
)
from kafka_coord.zk.store import Check, Node, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

FROZEN_S = 8.0
"""How long a group that is being taken over is frozen at most, in seconds."""
_LOOKS_S = 30.0
_LOOKS_SOON_S = 0.5
_KNOWN_WITHIN_S, _KNOWN_CHECK_S = 5.0, 0.02


class Kinds:
    """The recorded kinds of all groups. Use only on the event loop. Without a ``store``, they are kept in memory
    only."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._recorded: dict[int, Recorded] = {}
        """The records of each partition of the groups log that have been read. What was known stays known while
        ZooKeeper does not answer."""
        self._wanted: dict[int, dict[str, GroupKind]] = {}
        self._recording: dict[int, asyncio.Task[None]] = {}
        self._terms: dict[int, Check] = {}
        self._frozen_at: dict[tuple[str, str], float] = {}
        """When this instance heard of each move that is under way."""
        self._moved_at: dict[str, float] = {}
        """When this instance last heard that a group is moving, or has ended to."""
        self._is_current = store is None
        self.on_freeze: Callable[[int, Recorded], None] = lambda _partition, _found: None

    def of(self, group: str) -> GroupKind | None:
        """Returns the recorded kind, or ``None`` if the group has no record, or if it is not known yet."""
        record = self.record_of(group)
        return None if record is None else record.kind

    def are(self, kind: GroupKind, *groups: str) -> bool:
        """Returns whether the groups are recorded as being of the kind."""
        return all(self.of(one) is kind for one in groups)

    def may_be_native(self, group: str) -> bool:
        """Returns whether the group is native, or has no record."""
        return self.of(group) in {None, GroupKind.NATIVE}

    async def wait_known(self, group: str) -> None:
        """Waits, as long as a request may, until the group's record, or that it has none, is known."""
        late = asyncio.get_running_loop().time() + _KNOWN_WITHIN_S
        while not self.knows(group) and asyncio.get_running_loop().time() < late:
            await asyncio.sleep(_KNOWN_CHECK_S)

    def _of_partition(self, partition: int) -> Recorded:
        return self._recorded.get(partition, Recorded())

    def _told(self, partition: int, found: Recorded) -> None:
        """Takes over what was read or written, unless something newer is known."""
        if found.version < self._of_partition(partition).version:
            return
        self._recorded[partition] = found
        moving = {(name, one.moving) for name, one in found.groups.items() if one.moving}
        now = asyncio.get_running_loop().time() if moving or self._frozen_at else 0.0
        for key in [one for one in self._frozen_at if partition_of(one[0]) == partition and one not in moving]:
            del self._frozen_at[key]
            self._moved_at = {name: at for name, at in self._moved_at.items() if now < at + FROZEN_S} | {key[0]: now}
        for key in moving - self._frozen_at.keys():
            self._frozen_at[key] = self._moved_at[key[0]] = now
        if moving:
            self.on_freeze(partition, found)

    def record_of(self, group: str) -> GroupRecord | None:
        return self._of_partition(partition_of(group)).groups.get(group)

    def is_frozen(self, group: str) -> bool:
        """Returns whether the group is being taken over, as far as this instance has heard. No move lasts longer than
        :data:`FROZEN_S`."""
        if not self._frozen_at:
            return False
        record = self.record_of(group)
        since = self._frozen_at.get((group, record.moving)) if record is not None else None
        return since is not None and asyncio.get_running_loop().time() < since + FROZEN_S

    def is_surely_native(self, group: str) -> bool:
        """Returns whether the group is native, and was not moving lately, by records that are not out of date."""
        moved_at = self._moved_at.get(group)
        is_still = moved_at is None or asyncio.get_running_loop().time() >= moved_at + FROZEN_S
        return self._is_current and is_still and self.are(GroupKind.NATIVE, group)

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

        def told(partition: int, node: Node | None) -> None:
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
            self._told(partition, await asyncio.to_thread(_record_stored, self._store, partition, stored, fence))

    def end(self, partition: int) -> None:
        self._terms.pop(partition, None)

    async def record_first(self, group: str, kind: GroupKind) -> GroupKind:
        """Records the kind of a group that has none, and returns the kind that it has then. Only the instance with the
        term of the group's partition may do so. Raises :class:`StoreError` and :class:`MalformedValue`."""
        partition = partition_of(group)
        self._wanted.setdefault(partition, {}).setdefault(group, kind)
        while (found := self.of(group)) is None:  # groups that come at the same time are recorded together
            if partition not in self._recording:
                task = asyncio.create_task(self._record_wanted(partition))
                self._recording[partition] = task
                task.add_done_callback(lambda _task: self._recording.pop(partition, None))
            self._wanted.setdefault(partition, {}).setdefault(group, kind)
            await asyncio.shield(self._recording[partition])
        return found

    async def _record_wanted(self, partition: int) -> None:
        wanted = self._wanted.pop(partition, {})
        if self._store is None:
            added = {name: GroupRecord(kind) for name, kind in wanted.items()}
            self._keep(partition, {**added, **self._of_partition(partition).groups})
        else:
            fence = self._fence(partition)
            self._told(partition, await asyncio.to_thread(record_new, self._store, partition, wanted, fence))

    async def record(self, group: str, kind: GroupKind, **changes: Any) -> int:
        """Records another kind, or another field, and returns the version of the records. Like :meth:`record_first`."""
        partition = partition_of(group)
        if self._store is None:
            self._keep(partition, {**self._of_partition(partition).groups, group: GroupRecord(kind, **changes)})
        elif changes or self.of(group) is not kind:
            change = partial(record_kind, self._store, group, self._fence(partition), kind=kind, **changes)
            found = await asyncio.to_thread(change)
            self._told(partition, found)
            return found.version
        return self._of_partition(partition).version

    async def find_out(self, partition: int) -> None:
        """Finds out what is recorded, after a write whose outcome is unknown. Like :meth:`record_first`."""
        if self._store is not None:
            look = partial(change_kinds, self._store, partition, dict, self._fence(partition), always=True)
            self._told(partition, await asyncio.to_thread(look))

    async def undo_move(self, group: str) -> bool:
        """Records that a group stays native, unless its move has ended: only the record knows, if a write's outcome is
        unknown. Returns whether it was still moving. Like :meth:`record_first`."""
        partition = partition_of(group)
        if self._store is None:
            record = self.record_of(group)
            if is_moving := record is not None and bool(record.moving):
                await self.record(group, GroupKind.NATIVE)
            return is_moving
        is_moving, found = await asyncio.to_thread(undo_move, self._store, group, self._fence(partition))
        self._told(partition, found)
        return is_moving

    async def acknowledge(self, partition: int, broker_id: int, heard: Acknowledged) -> None:
        """Tells that this instance acts by what it has heard. Raises :class:`StoreError`."""
        if self._store is not None:
            await asyncio.to_thread(acknowledge, self._store, partition, broker_id, heard)

    async def acknowledged(self, partition: int, brokers: Collection[int]) -> dict[int, Acknowledged]:
        """Returns what each of the instances has acknowledged. Raises :class:`StoreError` and
        :class:`MalformedValue`."""
        return await asyncio.to_thread(read_acknowledged, self._store, partition, brokers) if self._store else {}

    def fenced(self, partition: int) -> list[str]:
        """Returns the partition's groups whose namesakes at the brokers are fenced."""
        return [name for name, one in self._of_partition(partition).groups.items() if one.fenced]

    def stuck(self, partition: int) -> list[str]:
        """Returns the partition's groups whose move ended with the term that had begun it."""
        return [name for name, one in self._of_partition(partition).groups.items() if one.moving]

    async def forget(self, group: str) -> None:
        """Removes the record of a group that was deleted. If that fails, the group keeps its kind."""
        partition = partition_of(group)
        try:
            if self._store is not None:
                self._told(partition, await asyncio.to_thread(forget_kind, self._store, group))
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


def _record_stored(store: Store, partition: int, in_log: Mapping[str, bool], fence: Check) -> Recorded:
    store.sync(layout.GROUPS)
    listing = store.children_many([layout.GROUPS])[0]
    names: Iterable[str] = listing.names if listing is not None else ()
    managed = {name for name in names if partition_of(name) == partition}
    kinds = dict.fromkeys(in_log, GroupKind.CLIENT_ASSIGNED) | dict.fromkeys(managed, GroupKind.MANAGED)
    kinds |= {name: GroupKind.CLIENT_ASSIGNED for name, has_members in in_log.items() if has_members}
    return record_new(store, partition, kinds, fence, are_stored=True)
