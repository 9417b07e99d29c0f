"""Manages the groups, offsets and terms of one instance, like Kafka's ``GroupMetadataManager``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.machine import Group, GroupLimits
from kafka_coord.classic_groups.metadata import GroupMetadata, GroupState
from kafka_coord.grouplog.broker import BrokerConnection
from kafka_coord.grouplog.errors import TermEnded, TooLarge
from kafka_coord.grouplog.records import (
    GroupEntry,
    OffsetEntry,
    group_record,
    group_removal,
    offset_records,
    read_record,
)
from kafka_coord.grouplog.term import PARTITIONS, LogTerm, is_reserved
from kafka_coord.model import CommittedOffset
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.errors import BadMessage

log = logging.getLogger(__name__)

_LEADS_NO_MORE = named(6)
"""The broker's answer when another broker leads the partition, as after a planned stop."""
_REMOVED_BYTES = 400 << 10
"""The maximum size of one batch of removals, in bytes."""
_TOPIC_BYTES = 300
"""An upper bound on the size of a topic's name with its overhead, in bytes."""
_EXAMINED_AT_ONCE = 1_000
_READ_AT_ONCE = 2_000

Offsets = dict[tuple[str, int], CommittedOffset]
"""Committed offsets by topic and partition."""
Claiming = Callable[[int], Awaitable[int]]
"""Sets the znode of a partition by compare-and-set, and returns its new version, which is the term."""


@lru_cache(maxsize=1 << 16)
def partition_of(group_id: str) -> int:
    """Returns a group's log partition: as in Kafka, ``abs(hash) % 50`` with Java's ``String.hashCode``."""
    value = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    value = value - (1 << 32) if value & 0x80000000 else value
    return 0 if value == -(1 << 31) else abs(value) % PARTITIONS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class GroupMetadataManager:
    """Keeps the groups and their offsets in memory, and writes every change to the log first.

    ``groups_cache`` and ``offsets_cache`` are keyed by group id. ``groups_of`` lists the group ids of each partition.
    ``now_ms`` reads the wall clock. Use this class only on the event loop.
    """

    def __init__(
        self,
        connect: Callable[[], BrokerConnection],
        claiming: Claiming,
        instance: str,
        limits: GroupLimits,
        on_term_end: Callable[[int], None] = lambda _partition: None,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._connect, self._claiming, self._instance, self._limits = connect, claiming, instance, limits
        self._on_term_end = on_term_end
        self.now_ms = now_ms
        self.groups_cache: dict[str, Group] = {}
        self.offsets_cache: dict[str, Offsets] = {}
        self.groups_of: dict[int, dict[str, None]] = defaultdict(dict)
        self.terms: dict[int, LogTerm] = {}
        self.loading: dict[int, asyncio.Future[None]] = {}
        """The partitions that are being loaded, each with a future that completes when the load ends."""
        self._under_way: dict[str, list[Offsets]] = {}
        """The commits that are being written, by group id."""
        self._given_up: set[int] = set()
        """The partitions whose terms this instance is ending of its own accord."""

    # --- terms -------------------------------------------------------------------------------------------------------

    def availability(self, group_id: str) -> Error:
        """Returns NONE if this instance currently coordinates the group, otherwise the error to respond with."""
        partition = partition_of(group_id)
        if partition in self.terms:
            return Error.NONE
        return Error.COORDINATOR_LOAD_IN_PROGRESS if partition in self.loading else Error.NOT_COORDINATOR

    async def wait_until_loaded(self, group_ids: Iterable[str | None], within_s: float) -> None:
        """Waits up to ``within_s`` seconds until none of the groups' partitions is being loaded."""
        partitions = {partition_of(group_id) for group_id in group_ids if group_id is not None}
        if loading := [self.loading[partition] for partition in partitions & self.loading.keys()]:
            await asyncio.wait(loading, timeout=within_s)

    async def prove(self, group_id: str) -> None:
        """Proves that no other instance had changed the group before this call. The proof holds only if the group is
        still available afterwards."""
        term = self.terms.get(partition_of(group_id))
        if term is not None:
            with suppress(TermEnded):
                await term.prove()

    async def prove_all(self, group_ids: Iterable[str | None]) -> None:
        """Calls :meth:`prove` for each of the given groups that this instance coordinates."""
        for group_id in group_ids:
            if group_id is not None:
                await self.prove(group_id)

    async def load_groups_for_partition(self, partition: int) -> None:
        """Claims the partition, reads it and starts serving its groups. Raises :class:`BrokerError`, :class:`TermEnded`
        and whatever ``claiming`` raises; the partition's groups are then not served."""
        if partition in self.terms or partition in self.loading:
            return
        loading = self.loading[partition] = asyncio.get_running_loop().create_future()
        try:
            await self._load_partition(partition)
        finally:
            del self.loading[partition]
            loading.set_result(None)

    async def _load_partition(self, partition: int) -> None:
        broker = self._connect()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            number = await self._claiming(partition)
            while is_reserved(number):
                number = await self._claiming(partition)
            on_end = partial(self._term_ended, partition, broker)
            term = LogTerm(broker, partition, number, self._instance, self.now_ms, on_end)
            claimed_at = await term.claim()
            answered_at = clock()
            loaded = await _load(term, claimed_at)
            await term.outlast(answered_at)
        except BaseException:
            broker.close()
            raise
        self._install(loaded)
        term.figures.loaded_records, term.figures.load_s = loaded.records, clock() - began
        term.serve()
        self.terms[partition] = term
        log.info(
            "now coordinates a partition of the groups log partition=%d term=%d records=%d groups=%d load_ms=%d",
            *(partition, term.term, loaded.records, len(self.groups_of[partition]), round(term.figures.load_s * 1000)),
            extra={"event": "partition_loaded"},
        )

    def _install(self, loaded: _Loaded) -> None:
        now = asyncio.get_running_loop().time()
        for group_id in {**loaded.groups, **loaded.offsets}:
            metadata = loaded.groups.get(group_id) or GroupMetadata(group_id)
            for member in metadata.members.values():
                member.expires_at = now + member.session_timeout_s
            self._add(group_id, metadata)
        self.offsets_cache |= loaded.offsets

    def _term_ended(self, partition: int, broker: BrokerConnection, reason: str) -> None:
        log.log(
            logging.INFO if partition in self._given_up or _LEADS_NO_MORE in reason else logging.WARNING,
            "no longer coordinates a partition of the groups log partition=%d reason=%s",
            partition,
            reason,
            extra={"event": "partition_lost"},
        )
        self.terms.pop(partition, None)
        broker.close()
        self._on_term_end(partition)
        for group_id in self.groups_of.pop(partition, ()):
            del self.groups_cache[group_id]
            self.offsets_cache.pop(group_id, None)

    def resign(self, partition: int, reason: str) -> None:
        """Stops serving a partition's groups, as planned."""
        term = self.terms.get(partition)
        if term is not None:
            self._given_up.add(partition)
            term.end(reason)
            self._given_up.discard(partition)

    # --- lookups -----------------------------------------------------------------------------------------------------

    def has(self, group_id: str) -> bool:
        """Returns whether the group exists or has offsets."""
        return group_id in self.groups_cache or group_id in self.offsets_cache

    def group(self, group_id: str) -> Group | None:
        return self.groups_cache.get(group_id)

    def has_offsets(self, group_id: str) -> bool:
        """Returns whether the group has offsets, including those that are being written."""
        return bool(self._keys(group_id))

    def is_writing(self, group_id: str | None = None) -> bool:
        """Returns whether offsets of the group, or of any group, are being written."""
        return bool(self._under_way) if group_id is None else group_id in self._under_way

    def _keys(self, group_id: str) -> dict[tuple[str, int], None]:
        """Returns the partitions that the group has an offset for, including offsets that are being written."""
        being_written = (where for offsets in self._under_way.get(group_id, ()) for where in offsets)
        return dict.fromkeys((*self.offsets_cache.get(group_id, {}), *being_written))

    # --- changes -----------------------------------------------------------------------------------------------------

    def add_group(self, group_id: str) -> Group:
        """Returns the group, creating it if necessary."""
        return self.groups_cache.get(group_id) or self._add(group_id, GroupMetadata(group_id))

    def _add(self, group_id: str, metadata: GroupMetadata) -> Group:
        found = self.groups_cache[group_id] = Group(metadata, self._limits)
        self.groups_of[partition_of(group_id)][group_id] = None
        return found

    async def store_group(self, group: GroupMetadata, assignments: Mapping[str, bytes]) -> Error:
        record = group_record(group, assignments, self.now_ms())
        return await self._append(group.group_id, _Part([record]))

    async def store_offsets(self, group_id: str, offsets: Offsets) -> Error:
        """Writes offsets to the log and returns the outcome. The offsets become visible once they are durable."""
        records = offset_records(group_id, offsets)
        under_way = self._under_way.setdefault(group_id, [])
        under_way.append(offsets)
        try:
            apply = lambda: self.offsets_cache.setdefault(group_id, {}).update(offsets)  # noqa: E731
            return await self._append(group_id, _Part(records, apply))
        finally:
            under_way.remove(offsets)
            if not under_way and self._under_way.get(group_id) is under_way:
                del self._under_way[group_id]

    async def delete_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> Error:
        """Deletes the offsets of the given partitions, including those that are being written. Returns the outcome."""
        known = self._keys(group_id)
        return await self._append(
            group_id, *self._removals(group_id, [where for where in partitions if where in known])
        )

    async def delete_group(self, group_id: str) -> Error:
        """Deletes the group's offsets and then the group itself. From this call on, the group can no longer be changed.
        Returns the outcome."""
        group = self.groups_cache.get(group_id)
        if group is not None:
            group.metadata.state = GroupState.DEAD

        def forget() -> None:
            self.groups_cache.pop(group_id, None)
            self.offsets_cache.pop(group_id, None)
            self.groups_of[partition_of(group_id)].pop(group_id, None)

        removals = self._removals(group_id, list(self._keys(group_id)))
        return await self._append(group_id, *removals, _Part([group_removal(group_id)], forget))

    def _removals(self, group_id: str, gone: list[tuple[str, int]]) -> Iterator[_Part]:
        def forget(part: list[tuple[str, int]]) -> None:
            stored = self.offsets_cache.get(group_id, {})
            for where in part:
                stored.pop(where, None)

        at_once = max(1, _REMOVED_BYTES // (len(group_id.encode()) + _TOPIC_BYTES))
        for at in range(0, len(gone), at_once):
            part = gone[at : at + at_once]
            yield _Part(offset_records(group_id, dict.fromkeys(part)), partial(forget, part))

    async def delete_expired_consumer_offsets(self, retention_ms: int) -> int:
        """Removes the expired offsets of groups without members. Also removes the groups that have no offsets left and
        have been empty for ``retention_ms``. Returns the number of removed offsets. As in Kafka (KIP-211), an empty
        group's state timestamp is the time at which it became empty."""
        count = 0
        for number, group_id in enumerate(list(self.groups_cache)):
            if number % _EXAMINED_AT_ONCE == 0:
                await asyncio.sleep(0)  # lets other tasks run
            group = self.groups_cache.get(group_id)
            if group is None or group.metadata.state is not GroupState.EMPTY or group_id in self._under_way:
                continue
            now_ms, since_ms = self.now_ms(), group.metadata.state_since_ms
            offsets = self.offsets_cache.get(group_id, {})
            gone = [
                where
                for where, value in offsets.items()
                if max(since_ms, value.committed_at_ms) + retention_ms <= now_ms
            ]
            if len(gone) == len(offsets) and since_ms + retention_ms <= now_ms:
                error = await self.delete_group(group_id)
            elif gone:
                error = await self._append(group_id, *self._removals(group_id, gone))
            else:
                continue
            count += len(gone) if error is Error.NONE else 0
        return count

    async def _append(self, group_id: str, *parts: _Part) -> Error:
        """Appends all parts without any other records between them. Returns the outcome."""
        term = self.terms.get(partition_of(group_id))
        if term is None:
            return Error.NOT_COORDINATOR
        try:
            appends = [term.append(part.records, part.apply) for part in parts if part.records]
            await (appends[0] if len(appends) == 1 else asyncio.gather(*appends))  # most calls have one part
        except TermEnded:
            return Error.NOT_COORDINATOR
        except TooLarge as error:
            log.warning("refused a request whose record is too large group=%s reason=%s", group_id, error)
            return Error.INVALID_COMMIT_OFFSET_SIZE
        return Error.NONE

    def close(self) -> None:
        for partition in list(self.terms):
            self.resign(partition, "the instance is stopping")


@dataclass(frozen=True, slots=True)
class _Part:
    """The records for one batch, and the change to apply once they are durable."""

    records: list[LogRecord]
    apply: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Loaded:
    """The groups and offsets read from a partition."""

    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    records: int = 0


async def _load(term: LogTerm, claimed_at: int) -> _Loaded:
    loaded = _Loaded()
    async for record in term.load(claimed_at):
        loaded.records += 1
        try:
            entry = read_record(record)
        except BadMessage as error:
            log.warning("ignored an unreadable record in the groups log partition=%d reason=%s", term.partition, error)
            continue
        match entry:
            case OffsetEntry(group, topic, partition, None):
                loaded.offsets.get(group, {}).pop((topic, partition), None)
            case OffsetEntry(group, topic, partition, CommittedOffset() as value):
                loaded.offsets.setdefault(group, {})[topic, partition] = value
            case GroupEntry(group, None):
                loaded.groups.pop(group, None)
            case GroupEntry(group, GroupMetadata() as found):
                loaded.groups[group] = found
        if loaded.records % _READ_AT_ONCE == 0:
            await asyncio.sleep(0)  # lets other tasks run
    loaded.offsets = {group: offsets for group, offsets in loaded.offsets.items() if offsets}
    return loaded
