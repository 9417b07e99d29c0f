"""Checks every batch in the groups log against the rules for terms, groups and offsets.

Compaction removes records but never reorders them, so every rule is about the records that remain. The earlier of two
records with the same key may be missing, and offsets may have gaps. But whatever compaction removes, a batch's distance
from the claim of its term equals its sequence number, because no one else can write during the term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kafka_coord.classic_groups.metadata import GroupMetadata
from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.grouplog.records import Claim, Entry, GroupEntry, OffsetEntry, read_record
from kafka_coord.grouplog.term import TOPIC, is_reserved, term_of
from kafka_coord.groups.group import Document
from kafka_coord.kafka.client import run_with
from kafka_coord.kafka.cluster import Address, ClusterClient, PartitionReader
from kafka_coord.model import CommittedOffset
from kafka_coord.monitor.audit.report import Findings, Rule, clock_time
from kafka_coord.wire.batches import Batch, LogRecord
from kafka_coord.wire.consumer_protocol import subscribed_topics
from kafka_coord.wire.messages import BadMessage

CONSUMER = "consumer"
_SEQUENCES = 1 << 31
"""Sequence numbers wrap around to 0 after this many."""
_AT_ONCE = 4


class LogRule(Rule):
    """What the audit of the groups log checks."""

    TERM_BACK = "term-back", "A term wrote a batch after a newer term had started. The brokers should have refused it."
    NO_TERM = "no-term", "A writer without a term of this partition wrote a batch."
    NO_CLAIM = (
        "no-claim",
        "A term's batches do not begin with its claim, although compaction has not removed anything before them.",
    )
    WRONG_CLAIM = (
        "wrong-claim",
        "A claim names a term other than that of its batch, or is not at the beginning of its term.",
    )
    OLDER_TREE = "older-tree", "A record was written for a tree after a newer one had claimed the partition."
    WRONG_HEARD = "wrong-heard", "A note of which members a term has heard names another term."
    SEQUENCE = (
        "sequence",
        "A batch's sequence number does not match its position in its term: there is a gap, or another "
        "writer's batch, before it.",
    )
    UNCLAIMED_TERM = (
        "unclaimed-term",
        "A term is newer than the partition's znode knows, so no one has claimed it.",
    )
    GENERATION_BACK = "generation-back", "A group's generation went back."
    COMMIT_BACK = "commit-back", "An older commit replaced a newer one, so both the offset and the time went back."
    LIVE_GROUP_REMOVED = "live-group-removed", "A group was removed while it had members."
    LIVE_OFFSET_REMOVED = (
        "live-offset-removed",
        "An offset that names no topic id was removed while members of the group subscribed to its topic.",
    )
    SEEK_BACK = "seek-back", "A newer commit carries a lower offset: the client went back. A warning."
    UNREADABLE = "unreadable", "A record cannot be decoded. A warning."


class LogFindingDocument(Document, frozen=True):
    rule: LogRule
    what: str
    group: str
    partition: int
    offset: int
    when: str | None


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One violation or warning, at an offset in a partition of the log. ``time_ms`` is the time of the batch, in ms
    since 1970."""

    rule: LogRule
    what: str
    partition: int
    offset: int = -1
    group: str = ""
    time_ms: int = 0

    def document(self) -> LogFindingDocument:
        return LogFindingDocument(
            rule=self.rule,
            what=self.what,
            group=self.group,
            partition=self.partition,
            offset=self.offset,
            when=clock_time(self.time_ms) if self.time_ms else None,
        )


LogReport = Findings[LogFinding]
"""A report on the groups log."""


@dataclass(slots=True)
class _Group:
    value: GroupMetadata | None = None
    offsets: dict[tuple[str, int], CommittedOffset] = field(default_factory=dict)


class PartitionJudge:
    """Checks a partition: :meth:`take` receives its batches in order, and :meth:`end` compares the log with the
    partition's znode."""

    def __init__(self, partition: int, report: LogReport) -> None:
        self.partition = partition
        self._report = report
        self._end: int | None = None
        """The offset after the last batch."""
        self._term = -1
        self._claim: Claim | None = None
        self._newest_tree: Claim | None = None
        """A claim of the newest generation so far."""
        self._sequence_0_at = 0
        self._groups: dict[str, _Group] = {}
        self._batch: Batch | None = None

    def take(self, batch: Batch) -> None:
        self._batch = batch
        self._report.count("batches")
        is_first, self._end, gap = self._end is None, batch.end, self._end not in {None, batch.base_offset}
        if batch.is_control:
            return
        term = term_of(self.partition, batch)
        if term is None:
            self._violated(
                LogRule.NO_TERM, f"the batch was written by producer {batch.producer_id}, which belongs to no term"
            )
            return
        if is_reserved(term):
            return  # the reserved batch that fences off an earlier producer id; it may occur more than once
        if term < self._term:
            self._violated(LogRule.TERM_BACK, f"term {term} wrote after term {self._term}")
            return
        entries = [(record, self._read(record)) for record in batch.records]
        if term > self._term:
            self._begin(term, batch, entries, may_lack_claim=is_first or gap)
        elif (batch.base_offset - batch.base_sequence - self._sequence_0_at) % _SEQUENCES:
            expected = (batch.base_offset - self._sequence_0_at) % _SEQUENCES
            self._violated(LogRule.SEQUENCE, f"term {term} has sequence {batch.base_sequence} instead of {expected}")
        for record, entry in entries:
            self._judge(record, entry)

    def end(self, newest_term: int | None) -> None:
        """Compares the log with the newest term that the partition's znode knows, which was read after the log
        (``None``: it was not)."""
        if newest_term is not None and self._term > newest_term:
            what = f"term {self._term} is in the log, but the partition's znode knows none after {newest_term}"
            self._report.violation(LogFinding(LogRule.UNCLAIMED_TERM, what, self.partition))

    # --- terms -------------------------------------------------------------------------------------------------------

    def _begin(self, term: int, batch: Batch, entries: list[tuple[LogRecord, Entry]], *, may_lack_claim: bool) -> None:
        self._report.count("terms")
        self._term, self._claim, self._sequence_0_at = term, None, batch.base_offset - batch.base_sequence
        begins_with_claim = bool(entries) and isinstance(entries[0][1], Claim) and not batch.base_sequence
        if not begins_with_claim and not may_lack_claim:
            self._violated(LogRule.NO_CLAIM, f"term {term} does not begin with a claim")

    def _claimed(self, record: LogRecord, claim: Claim) -> None:
        self._report.count("claims")
        if claim.term != self._term:
            self._violated(LogRule.WRONG_CLAIM, f"a claim of term {claim.term} in a batch of term {self._term}", record)
        elif self._claim is not None or record.offset != self._sequence_0_at:
            self._violated(LogRule.WRONG_CLAIM, f"a claim of term {self._term} is not at the start of the term", record)
        self._claim = claim
        if self._newest_tree is None or claim.generation >= self._newest_tree.generation:
            self._newest_tree = claim

    # --- records -----------------------------------------------------------------------------------------------------

    def _read(self, record: LogRecord) -> Entry:
        self._report.count("records")
        try:
            return read_record(record)
        except BadMessage as error:
            self._warn(LogRule.UNREADABLE, str(error), record)
            return None

    def _judge(self, record: LogRecord, entry: Entry) -> None:
        claim, newest = self._claim, self._newest_tree
        is_older = claim is not None and newest is not None and claim.generation < newest.generation
        if is_older and isinstance(entry, OffsetEntry | GroupEntry):
            what = f"term {self._term} wrote for a tree that is older than {newest.of_tree if newest else ''}"
            self._violated(LogRule.OLDER_TREE, what, record, entry.group)
        match entry:
            case Claim():
                self._claimed(record, entry)
            case OffsetEntry(group, topic, partition, None):
                self._offset_removed(record, group, (topic, partition))
            case OffsetEntry(group, topic, partition, CommittedOffset() as value):
                self._committed(record, group, (topic, partition), value)
            case Heard(term):
                self._report.count("notes")
                if term != self._term:
                    what = f"term {self._term} wrote which members term {term} has heard"
                    self._violated(LogRule.WRONG_HEARD, what, record)
            case GroupEntry(group, None):
                self._group_removed(record, group)
            case GroupEntry(group, GroupMetadata() as value):
                self._group_changed(record, group, value)

    def _committed(self, record: LogRecord, group: str, where: tuple[str, int], value: CommittedOffset) -> None:
        self._report.count("commits")
        offsets = self._groups.setdefault(group, _Group()).offsets
        before = offsets.get(where)
        is_same = before is not None and before.topic_id == value.topic_id  # a topic made anew begins at its beginning
        if before is not None and is_same and value.offset < before.offset:
            what = f"{where[0]}-{where[1]} went back from {before.offset} to {value.offset}"
            if value.committed_at_ms < before.committed_at_ms:
                older_ms = before.committed_at_ms - value.committed_at_ms
                self._violated(LogRule.COMMIT_BACK, f"{what}, by a commit that is {older_ms} ms older", record, group)
            else:
                self._warn(LogRule.SEEK_BACK, what, record, group)
        offsets[where] = value

    def _offset_removed(self, record: LogRecord, group: str, where: tuple[str, int]) -> None:
        self._report.count("removals")
        state = self._groups.setdefault(group, _Group())
        members = () if state.value is None else tuple(state.value.members.values())
        known = state.offsets.get(where)
        is_of_known_topic = known is not None and bool(known.topic_id)  # the log does not show whether it still exists
        if state.value is not None and members and not is_of_known_topic:
            topics = subscribed_topics(one.metadata(state.value.protocol_name) for one in members)
            if state.value.protocol_type != CONSUMER or where[0] in topics:
                what = f"the offset of {where[0]}-{where[1]} was removed, but {len(members)} members might still use it"
                self._violated(LogRule.LIVE_OFFSET_REMOVED, what, record, group)
        state.offsets.pop(where, None)

    def _group_changed(self, record: LogRecord, group: str, value: GroupMetadata) -> None:
        self._report.count("group_records")
        state = self._groups.setdefault(group, _Group())
        before = state.value
        if before is not None and value.generation_id < before.generation_id:
            what = f"generation {before.generation_id} was followed by generation {value.generation_id}"
            self._violated(LogRule.GENERATION_BACK, what, record, group)
        state.value = value

    def _group_removed(self, record: LogRecord, group: str) -> None:
        self._report.count("removals")
        state = self._groups.setdefault(group, _Group())
        if state.value is not None and state.value.members:
            what = f"the group was removed while it had {len(state.value.members)} members"
            self._violated(LogRule.LIVE_GROUP_REMOVED, what, record, group)
        state.value = None

    # --- findings ----------------------------------------------------------------------------------------------------

    def _violated(self, rule: LogRule, what: str, record: LogRecord | None = None, group: str = "") -> None:
        self._report.violation(self._finding(rule, what, record, group))

    def _warn(self, rule: LogRule, what: str, record: LogRecord, group: str = "") -> None:
        self._report.warning(self._finding(rule, what, record, group))

    def _finding(self, rule: LogRule, what: str, record: LogRecord | None, group: str) -> LogFinding:
        batch = self._batch
        offset = record.offset if record is not None else batch.base_offset if batch is not None else -1
        first = record or (batch.records[0] if batch is not None and batch.records else None)
        return LogFinding(rule, what, self.partition, offset, group, first.timestamp_ms if first else 0)


def audit_groups_log(cluster: ClusterClient, newest_term: Callable[[int], int | None], topic: str = TOPIC) -> LogReport:
    """Checks every partition up to its current end and returns the report. Calls ``newest_term`` for each partition
    after reading its log. Closes ``cluster``. Raises :class:`BrokerError` if a broker does not answer, and
    :class:`NotFound` if the topic does not exist.
    """
    return run_with(cluster, lambda connected: _audit(connected, newest_term, topic))


async def _audit(cluster: ClusterClient, newest_term: Callable[[int], int | None], topic: str) -> LogReport:
    report = LogReport()
    places = asyncio.Semaphore(_AT_ONCE)

    async def judge_one(partition: int, leader: Address) -> None:
        async with places:
            judge = PartitionJudge(partition, report)
            reader = PartitionReader(cluster.to(leader), partition, topic)
            async for batch in reader.batches(await reader.first_offset(), await reader.end_offset()):
                judge.take(batch)
            judge.end(await asyncio.to_thread(newest_term, partition))

    leaders = await cluster.leaders(topic)
    report.count("partitions", len(leaders))
    await asyncio.gather(*(judge_one(partition, leader) for partition, leader in leaders.items()))
    for found in (report.violations, report.warnings):
        found.sort(key=lambda one: (one.partition, one.offset))
    return report
