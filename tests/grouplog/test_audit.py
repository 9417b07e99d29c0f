"""The audit of the groups log: a log as the coordinator writes it is clean, and each planted violation is named."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.metadata import GroupMetadata, MemberMetadata, Protocol
from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.grouplog.records import (
    Claim,
    CommittedOffset,
    OffsetEntry,
    claim_record,
    group_record,
    group_removal,
    heard_records,
    keep_alive_record,
)
from kafka_coord.grouplog.term import producer_of
from kafka_coord.monitor.log_audit import LogReport, LogRule, PartitionJudge
from kafka_coord.wire.batches import Batch, LogRecord
from kafka_coord.wire.consumer_protocol import encoded_subscription
from tests.grouplog.offset_record import offset_record

PARTITION = 3


class Log:
    """Writes a partition, with or without planted violations."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.end = 100
        self._sequences: dict[int, int] = {}

    def append(self, term: int, *records: LogRecord, sequence: int | None = None, partition: int = PARTITION) -> None:
        first = self._sequences.get(term, 0) if sequence is None else sequence
        self._sequences[term] = first + len(records)
        placed = tuple(LogRecord(one.key, one.value, self.end + at, 1_000) for at, one in enumerate(records))
        base, self.end = self.end, self.end + len(records)
        self.batches.append(Batch(base, self.end, *producer_of(partition, term), first, False, placed))

    def claim(self, term: int, named: int | None = None) -> None:
        self.append(term, claim_record(Claim(term if named is None else named, "1@host", "00", "t1", 1)))

    def report(self, znode: int | None = None) -> LogReport:
        report: LogReport = LogReport()
        judge = PartitionJudge(PARTITION, report)
        for batch in self.batches:
            judge.take(batch)
        judge.end(znode)
        return report


def offset(value: int | None, at_ms: int = 0, group: str = "g", topic: str = "t") -> LogRecord:
    return offset_record(OffsetEntry(group, topic, 0, None if value is None else CommittedOffset(value, -1, "", at_ms)))


def group(generation: int, members: int = 1, topic: str = "t") -> LogRecord:
    found = GroupMetadata("g", generation_id=generation, protocol_name="range", protocol_type="consumer")
    for number in range(members):
        offered = (Protocol("range", encoded_subscription(topic)),)
        found.add(MemberMetadata(f"m{number}", None, "c", "/h", 10.0, 60.0, offered), "consumer")
    return group_record(found, {}, 0)


@pytest.fixture
def log() -> Log:
    made = Log()
    made.claim(4)
    made.append(4, group(1), offset(5, 10), offset(7, 20))
    made.append(4, keep_alive_record())
    made.claim(5)
    made.append(5, offset(9, 30))
    return made


def test_a_note_of_who_was_heard_names_the_term_that_writes_it(log: Log) -> None:
    log.append(5, *heard_records(Heard(5, {("g", "m0"): None})))
    assert log.report().violations == []
    log.append(5, *heard_records(Heard(4, {("g", "m0"): None})))
    assert [one.rule for one in log.report().violations] == [LogRule.WRONG_HEARD]


def test_the_log_that_a_coordinator_writes_is_clean(log: Log) -> None:
    log.append(5, offset(8, 40), group(2, members=0))
    log.append(5, offset(None), group_removal("g"))
    log.append(5, group(1), offset(1, 50))
    report = log.report(znode=5)
    assert report.violations == []
    assert [one.rule for one in report.warnings] == [LogRule.SEEK_BACK]
    assert (report.figures["terms"], report.figures["claims"], report.figures["commits"]) == (2, 2, 5)


def test_a_compacted_log_is_clean(log: Log) -> None:
    log.batches[0] = Batch(100, 101, *producer_of(PARTITION, 4), 0, False, ())
    log.batches[1] = Batch(101, 104, *producer_of(PARTITION, 4), 1, False, log.batches[1].records[:1])
    del log.batches[2:4]
    del log.batches[0]
    log.append(5, group(2))
    assert log.report(znode=5).violations == []


def test_a_late_claim_of_an_older_tree_is_no_violation_unless_it_writes(log: Log) -> None:
    log.append(6, claim_record(Claim(6, "tree t2", "00", "t2", 2)))
    log.claim(7)
    log.append(8, claim_record(Claim(8, "1@host", "00", "t2", 2)), offset(10, 60))
    assert log.report().violations == []
    log.claim(9)
    log.append(9, offset(11, 70))
    assert [one.rule for one in log.report().violations] == [LogRule.OLDER_TREE]


def _older_term_writes(log: Log) -> None:
    log.append(4, offset(3, 1))


def _stranger_writes(log: Log) -> None:
    log.append(5, offset(10, 40), partition=PARTITION + 1)


def _no_claim(log: Log) -> None:
    log.append(6, offset(10, 40))


def _claims_another_term(log: Log) -> None:
    log.claim(6, named=7)


def _claims_twice(log: Log) -> None:
    log.claim(5)


def _repeats_a_sequence(log: Log) -> None:
    log.append(5, offset(10, 40), sequence=1)


def _leaves_a_gap(log: Log) -> None:
    log.append(5, offset(10, 40), sequence=7)


def _generation_goes_back(log: Log) -> None:
    log.append(5, group(7), group(6))


def _older_commit_comes_back(log: Log) -> None:
    log.append(5, offset(5, 10))


def _removes_a_live_group(log: Log) -> None:
    log.append(5, group(2), group_removal("g"))


def _removes_a_used_offset(log: Log) -> None:
    log.append(5, group(2), offset(None))


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (_older_term_writes, LogRule.TERM_BACK),
        (_stranger_writes, LogRule.NO_TERM),
        (_no_claim, LogRule.NO_CLAIM),
        (_claims_another_term, LogRule.WRONG_CLAIM),
        (_claims_twice, LogRule.WRONG_CLAIM),
        (_repeats_a_sequence, LogRule.SEQUENCE),
        (_leaves_a_gap, LogRule.SEQUENCE),
        (_generation_goes_back, LogRule.GENERATION_BACK),
        (_older_commit_comes_back, LogRule.COMMIT_BACK),
        (_removes_a_live_group, LogRule.LIVE_GROUP_REMOVED),
        (_removes_a_used_offset, LogRule.LIVE_OFFSET_REMOVED),
    ],
)
def test_a_planted_violation_is_named_with_its_offset(log: Log, plant, rule: LogRule) -> None:
    before = log.end
    plant(log)
    violations = log.report().violations
    assert {one.rule for one in violations} == {rule}
    assert all(before <= one.offset < log.end for one in violations)


def test_a_term_that_was_never_claimed_is_a_violation(log: Log) -> None:
    assert [one.rule for one in log.report(znode=4).violations] == [LogRule.UNCLAIMED_TERM]


def test_offsets_of_topics_without_subscribers_may_be_deleted(log: Log) -> None:
    log.append(5, group(2), offset(None, topic="other"))
    assert log.report().clean
