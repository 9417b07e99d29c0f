"""What one instance knows of the groups it coordinates, and its terms: Kafka's ``GroupMetadataManager``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from kafka_coord.grouplog.broker import BrokerConnection
from kafka_coord.grouplog.errors import TermEnded
from kafka_coord.grouplog.records import (
    CommittedOffset,
    GroupEntry,
    OffsetEntry,
    group_record,
    group_removal,
    offset_record,
    read_record,
)
from kafka_coord.grouplog.term import PARTITIONS, LogTerm
from kafka_coord.groups.errors import Error
from kafka_coord.groups.machine import Group, GroupLimits
from kafka_coord.groups.metadata import GroupMetadata, GroupState
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.errors import BadMessage

log = logging.getLogger(__name__)

Offsets = dict[tuple[str, int], CommittedOffset]
"""By topic and partition."""
Claiming = Callable[[int], Awaitable[int]]
"""Sets the znode of a partition by compare-and-set, and returns its new version: the term."""


def partition_of(group_id: str) -> int:
    """The partition of the log that a group is in: ``abs(hash) % 50``, by Java's ``String.hashCode`` as in Kafka."""
    value = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    value = value - (1 << 32) if value & 0x80000000 else value
    return 0 if value == -(1 << 31) else abs(value) % PARTITIONS


class GroupMetadataManager:
    """Groups and offsets in memory, by partition of the log; everything that changes is in the log first.

    ``groups_cache`` and ``offsets_cache`` are by group id. One event loop.
    """

    def __init__(
        self,
        connect: Callable[[], BrokerConnection],
        claiming: Claiming,
        instance: str,
        limits: GroupLimits,
        on_term_end: Callable[[int], None] = lambda _partition: None,
    ) -> None:
        self._connect, self._claiming, self._instance, self._limits = connect, claiming, instance, limits
        self._on_term_end = on_term_end
        self.groups_cache: dict[str, Group] = {}
        self.offsets_cache: dict[str, Offsets] = {}
        self.terms: dict[int, LogTerm] = {}
        self.loading: set[int] = set()

    # --- whose group it is -------------------------------------------------------------------------------------------

    def availability(self, group_id: str) -> Error:
        """Whether this instance coordinates the group now."""
        partition = partition_of(group_id)
        if partition in self.terms:
            return Error.NONE
        return Error.COORDINATOR_LOAD_IN_PROGRESS if partition in self.loading else Error.NOT_COORDINATOR

    async def load_groups_for_partition(self, partition: int) -> None:
        """Claims the partition, reads what is in it and serves its groups. Raises :class:`BrokerError`,
        :class:`TermEnded` and what ``claiming`` raises; nothing of the partition is served then."""
        if partition in self.terms or partition in self.loading:
            return
        self.loading.add(partition)
        broker = self._connect()
        began = time.monotonic()
        try:
            number = await self._claiming(partition)
            term = LogTerm(
                broker, partition, number, self._instance, _now_ms, lambda why: self._term_ended(partition, broker, why)
            )
            claimed_at = await term.claim()
            count = await self._load(term, claimed_at)
        except BaseException:
            broker.close()
            self._forget(partition)
            raise
        finally:
            self.loading.discard(partition)
        term.serve()
        self.terms[partition] = term
        log.info(
            "coordinates partition=%d term=%d records=%d groups=%d load_ms=%d",
            *(partition, number, count, sum(partition_of(g) == partition for g in self.groups_cache)),
            round((time.monotonic() - began) * 1000),
        )

    async def _load(self, term: LogTerm, claimed_at: int) -> int:
        groups: dict[str, GroupMetadata] = {}
        count = 0
        async for record in term.load(claimed_at):
            count += 1
            try:
                entry = read_record(record)
            except BadMessage as error:
                log.warning("left out a record partition=%d reason=%s", term.partition, error)
                continue
            match entry:
                case OffsetEntry(group, topic, partition, None):
                    self.offsets_cache.get(group, {}).pop((topic, partition), None)
                case OffsetEntry(group, topic, partition, CommittedOffset() as value):
                    self.offsets_cache.setdefault(group, {})[topic, partition] = value
                case GroupEntry(group, None):
                    groups.pop(group, None)
                case GroupEntry(group, GroupMetadata() as found):
                    groups[group] = found
            if count % 10_000 == 0:
                await asyncio.sleep(0)  # others are served meanwhile
        now = time.monotonic()
        for group_id in {*groups, *(g for g, offsets in self.offsets_cache.items() if offsets)}:
            if partition_of(group_id) != term.partition or group_id in self.groups_cache:
                continue
            found = groups.get(group_id) or GroupMetadata(group_id)
            for member in found.members.values():
                member.expires_at = now + member.session_timeout_s
            self.groups_cache[group_id] = Group(found, self._limits)
        return count

    def _term_ended(self, partition: int, broker: BrokerConnection, reason: str) -> None:
        log.warning("no longer coordinates partition=%d reason=%s", partition, reason)
        self.terms.pop(partition, None)
        broker.close()
        self._on_term_end(partition)
        self._forget(partition)

    def _forget(self, partition: int) -> None:
        for cache in (self.groups_cache, self.offsets_cache):
            for group_id in [group_id for group_id in cache if partition_of(group_id) == partition]:
                del cache[group_id]

    def resign(self, partition: int, reason: str) -> None:
        """Serves a partition's groups no more."""
        term = self.terms.get(partition)
        if term is not None:
            term.end(reason)

    # --- changes -----------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        return self.groups_cache.get(group_id)

    def add_group(self, group_id: str) -> Group:
        """The group, made if there is none."""
        found = self.groups_cache.get(group_id)
        if found is None:
            found = self.groups_cache[group_id] = Group(GroupMetadata(group_id), self._limits)
        return found

    async def store_group(self, group: GroupMetadata, assignments: Mapping[str, bytes]) -> Error:
        return await self._append(group.group_id, [group_record(group, assignments, _now_ms())])

    async def store_offsets(self, group_id: str, offsets: Offsets) -> Error:
        """Durable, then known: an offset is answered with only once it is in the log."""
        records = [offset_record(OffsetEntry(group_id, *where, value)) for where, value in offsets.items()]
        error = await self._append(group_id, records)
        if error is Error.NONE:
            self.offsets_cache.setdefault(group_id, {}).update(offsets)
        return error

    async def delete_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> Error:
        known = self.offsets_cache.get(group_id, {})
        gone = [where for where in partitions if where in known]
        error = await self._append(group_id, [offset_record(OffsetEntry(group_id, *where, None)) for where in gone])
        if error is Error.NONE:
            for where in gone:
                known.pop(where, None)
        return error

    async def delete_group(self, group_id: str) -> Error:
        """The group, its offsets first."""
        error = await self.delete_offsets(group_id, list(self.offsets_cache.get(group_id, {})))
        if error is Error.NONE:
            error = await self._append(group_id, [group_removal(group_id)])
        if error is Error.NONE:
            self.groups_cache.pop(group_id, None)
            self.offsets_cache.pop(group_id, None)
        return error

    async def delete_expired_consumer_offsets(self, retention_ms: int) -> int:
        """Removes offsets of groups without members that are older than that, and groups nothing is left of; how many
        offsets. Where a group became empty is in its state's timestamp, as in Kafka (KIP-211)."""
        count, now_ms = 0, _now_ms()
        for group_id, group in list(self.groups_cache.items()):
            if group.metadata.state is not GroupState.EMPTY or self.availability(group_id) is not Error.NONE:
                continue
            offsets = self.offsets_cache.get(group_id, {})
            since_ms = group.metadata.state_since_ms
            gone = [
                where
                for where, value in offsets.items()
                if max(since_ms, value.committed_at_ms) + retention_ms <= now_ms
            ]
            empty = len(gone) == len(offsets) and since_ms + retention_ms <= now_ms
            error = await (self.delete_group(group_id) if empty else self.delete_offsets(group_id, gone))
            count += len(gone) if error is Error.NONE else 0
        return count

    async def _append(self, group_id: str, records: list[LogRecord]) -> Error:
        term = self.terms.get(partition_of(group_id))
        if term is None:
            return Error.NOT_COORDINATOR
        if not records:
            return Error.NONE
        try:
            await term.append(records)
        except TermEnded:
            return Error.NOT_COORDINATOR
        return Error.NONE

    def close(self) -> None:
        for term in list(self.terms.values()):
            term.end("the instance stops")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
