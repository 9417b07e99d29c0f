"""Judges a history by its acknowledgements, its log and its answers."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import NoReturn

from kafka_coord.classic_groups.metadata import GroupMetadata
from kafka_coord.grouplog.records import Claim, GroupEntry, OffsetEntry, read_record
from kafka_coord.grouplog.term import is_reserved, term_of
from kafka_coord.model import CommittedOffset
from kafka_coord.monitor.log_audit import LogReport, PartitionJudge
from kafka_coord.wire.batches import Batch
from tests.simulation.groups.instances import RETENTION_MS, WALL_START_MS
from tests.simulation.groups.log import SimulatedPartition
from tests.simulation.groups.topics import SimulatedTopic

JUST_DELETED_S = 30.0
Key = tuple[str, int]
"""Group and partition."""


class InvariantBroken(Exception):
    """A violation of an invariant."""


@dataclass(slots=True, eq=False)
class Commit:
    """One commit of one client. ``value`` is its offset, which is unique. ``reads`` is the identity of the topic that
    a member reads, or empty if the client is no member."""

    key: Key
    value: int
    member_id: str
    generation: int
    reads: str = ""
    acknowledged_at: float | None = None


class Judge:
    """Raises :class:`InvariantBroken`. Only the records of the log that a loader applies count."""

    def __init__(self, log: SimulatedPartition, topic: SimulatedTopic, tolerates_older_terms: bool) -> None:
        self._topic = topic
        self._log, self._tolerates_older_terms = log, tolerates_older_terms
        self._values = itertools.count(1)
        self.commits: dict[int, Commit] = {}
        self._of: dict[Key, list[Commit]] = defaultdict(list)
        self.promised: dict[int, Commit] = {}
        """The commits that an instance has answered without an error."""
        self.broken = ""
        self.deleted_at = -JUST_DELETED_S
        self._clear()
        log.written, log.cut = self._written, self._cut

    def breaks(self, what: str) -> None:
        """Reports a violation that was found elsewhere."""
        self.broken = self.broken or what

    def _break(self, what: str) -> NoReturn:
        self.broken = self.broken or what
        raise InvariantBroken(what)

    def _clear(self) -> None:
        self._newest = self._generation = self._of_term = -1
        """The newest term and generation that were written, and the generation of that term."""
        self._of_topic: dict[int, str] = {}
        """The identity of the topic under which each commit is stored."""
        self._at: dict[int, int] = {}
        """Maps each commit to its offset in the log."""
        self._last: dict[Key, CommittedOffset] = {}
        self._removed_at: dict[Key, int] = {}
        self._group: dict[str, GroupMetadata] = {}
        self._assigned: dict[tuple[str, int, bytes], int] = {}

    # --- the log -----------------------------------------------------------------------------------------------------

    def _cut(self, _offset: int) -> None:
        self._clear()
        for batch in self._log.counted():
            self._take(batch, live=False)

    def _written(self, batch: Batch) -> None:
        term = term_of(self._log.partition, batch)
        if term is None:
            self._break(f"offset {batch.base_offset}: written by no term")
        if term < self._newest:
            if not is_reserved(term) and not self._tolerates_older_terms:
                self._break(f"offset {batch.base_offset}: term {term} wrote after term {self._newest}")
            return
        self._take(batch, live=True)

    def _take(self, batch: Batch, *, live: bool) -> None:
        self._newest = term_of(self._log.partition, batch) or 0
        for record in batch.records:
            entry = read_record(record)
            if isinstance(entry, OffsetEntry | GroupEntry) and self._of_term < self._generation:
                self._break(f"offset {record.offset}: written for an older tree than generation {self._generation}")
            match entry:
                case Claim():
                    self._of_term = entry.generation
                    self._generation = max(self._generation, entry.generation)
                case OffsetEntry(group, _, partition, CommittedOffset() as value):
                    self._stored((group, partition), value, record.offset)
                case OffsetEntry(group, _, partition, None):
                    self._removed((group, partition), record.offset, live=live)
                case GroupEntry(group, None):
                    self._group.pop(group, None)
                case GroupEntry(group, GroupMetadata() as found):
                    before = self._group.get(group)
                    if before is not None and before.generation_id > found.generation_id:
                        self._break(f"group {group}: generation {found.generation_id} came back")
                    self._group[group] = found
                    for member in found.members.values():
                        self._assigned.setdefault(
                            (member.member_id, found.generation_id, member.assignment), record.offset
                        )

    def _stored(self, key: Key, value: CommittedOffset, offset: int) -> None:
        one = self.commits[value.offset]
        if value.offset in self._at:
            self._break(f"commit {value.offset} is in the log twice")
        group = self._group.get(key[0])
        if group is not None and group.members and one.member_id:
            if one.generation < group.generation_id:
                self._break(f"commit {value.offset} of generation {one.generation} was stored in {group.generation_id}")
            if one.generation == group.generation_id and one.member_id not in group.members:
                self._break(f"commit {value.offset} of {one.member_id}, which is no member, was stored")
        self._at[value.offset], self._of_topic[value.offset] = offset, value.topic_id
        self._last[key] = value

    def _removed(self, key: Key, offset: int, *, live: bool) -> None:
        last, now_ms = self._last.pop(key, None), WALL_START_MS + int(self._log.world.now * 1000)
        asked = self._log.world.now - self.deleted_at < JUST_DELETED_S and key[0] != "g"
        # a removal may have been decided before the topic was hidden
        newest = self._topic.newest if last is not None and last.topic_id else self._topic.identity
        another = last is not None and newest not in {"", last.topic_id}
        if live and last is not None and not asked and not another and now_ms - last.committed_at_ms < RETENTION_MS:
            self._break(f"commit {last.offset} was removed before its time")
        self._removed_at[key] = offset

    # --- what instances answer ---------------------------------------------------------------------------------------

    def committing(self, group: str, partition: int, member_id: str, generation: int, reads: str) -> Commit:
        one = Commit((group, partition), next(self._values), member_id, generation, reads)
        self.commits[one.value] = one
        self._of[one.key].append(one)
        return one

    def promise(self, one: Commit) -> None:
        """Records that an instance acknowledges the commit."""
        if self._at.get(one.value, self._log.high_watermark) >= self._log.high_watermark:
            self._break(f"commit {one.value} was acknowledged and is not in the log")
        self.promised[one.value] = one

    def synced(self, member_id: str, generation: int, assignment: bytes) -> None:
        """Records that an instance sends a member its assignment."""
        if not assignment:
            return
        at = self._assigned.get((member_id, generation, assignment), self._log.high_watermark)
        if at >= self._log.high_watermark:
            self._break(f"{member_id} was told an assignment of {generation} that is not in the log")

    def fetched(self, group: str, partition: int, value: int, asked_at: float) -> None:
        """Checks an instance's answer to a fetch that a client sent at ``asked_at``."""
        key, topic = (group, partition), self._topic.identity
        if self._topic.changed_at >= asked_at:
            return  # it is not certain which topic the answer is about
        read = self.commits[value].reads if value >= 0 else ""
        if value >= 0 and (not topic or (read and read != topic)):
            self._break(f"group {group} partition {partition}: answered {value} of an earlier topic, {read}")
        known = (
            one
            for one in self._of[key]
            if one.acknowledged_at is not None
            and one.acknowledged_at < asked_at
            and topic
            and self._of_topic.get(one.value) == topic
        )
        least = max((self._at.get(one.value, -1) for one in known), default=-1)
        found = self._removed_at.get(key, -1) if value < 0 else self._at.get(value, -1)
        if found < least:
            self._break(
                f"group {group} partition {partition}: answered {value}, older than what was acknowledged before"
            )

    def end(self) -> None:
        """Checks at the end that no acknowledged commit is missing, and that the audit of the log agrees."""
        lost = [value for value in self.promised if value not in self._at]
        if lost:
            self._break(f"acknowledged and lost: {lost}")
        if self._tolerates_older_terms:
            return
        report: LogReport = LogReport()
        judge = PartitionJudge(self._log.partition, report)
        for batch in self._log.all:
            judge.take(batch)
        for found in report.violations[:1]:
            self._break(f"audit: offset {found.offset}: {found.rule}: {found.what}")
