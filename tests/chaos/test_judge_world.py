"""Tests the judge's findings about the events of the world. The tests break each rule on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_coord.model import TopicPartition
from tests.chaos.journal import WORLD, ConsumerWriter, Kind, Observed, Owed, Phase, Position, Waited
from tests.chaos.judge import write_report
from tests.chaos.judge.findings import EVENT_RULES, Rule, Severity, Status
from tests.chaos.judge.world import TOO_LARGE
from tests.chaos.night import Night, of, violations
from tests.chaos.world.waits import BOUNDS_S, OTHER_TOPIC, STOPPED

GROUP, TOPIC = "retention-1", "world-retention-1-a"
HELD = TopicPartition(TOPIC, 0)
READ = Observed(owed=(Owed(GROUP, TOPIC, 0, 10, 30),))


def happened(night: Night, observed: Observed, *, kind: Kind = Kind.RETENTION, begin: float = 97) -> None:
    """An event of the world happens for ten seconds, when no other fault is under way."""
    night.event(begin, kind, f"{WORLD}:{GROUP}", Phase.BEGIN)
    night.event(begin + 10, kind, f"{WORLD}:{GROUP}", Phase.END, **observed.to_detail())


def received(night: Night, *numbers: tuple[int, int], lost: bool = False) -> None:
    """The member of the event receives the records of these ranges of numbers."""

    def act() -> None:
        with ConsumerWriter(
            night.directory / WORLD, consumer=f"{GROUP}-x", group=GROUP, pid=9, session_timeout_ms=6_000
        ) as journal:
            for first, end in numbers:
                journal.handed(0.0, 0.1, [(*HELD, number, number) for number in range(first, end)])
            if lost:
                journal.lost([HELD])

    night.add(99, "the member of the event", act)


def test_a_run_without_events_has_no_rule_about_them(night: Night) -> None:
    assert not {ruling.rule for ruling in night.judged().rulings} & EVENT_RULES


def test_an_event_after_which_everything_was_read_breaks_no_rule(night: Night) -> None:
    happened(night, READ)
    received(night, (0, 5), (10, 30))
    report = night.judged()
    assert report.held
    assert of(report, Rule.EVENT_RECORDS).figures == {"owed": 20, "received": 20}
    assert of(report, Rule.EVENT_TIMES).status is Status.NOT_EXERCISED


def test_an_existing_record_that_was_not_received_is_reported(night: Night) -> None:
    happened(night, READ)
    received(night, (0, 20), (25, 30))
    (found,) = violations(night.judged(), Rule.EVENT_RECORDS)
    assert "5 of 20 records that exist were not received, from number 20 on" in found.message
    assert found.where == f"{GROUP} {TOPIC}-0"


def test_a_skipped_record_is_reported_also_amid_other_faults(night: Night) -> None:
    happened(night, READ, begin=84)  # a coordinator is frozen then
    received(night, (10, 29))
    report = night.judged()
    assert report.happened[0].disturbed
    assert violations(report, Rule.EVENT_RECORDS)


def test_lag_after_everything_was_read_is_reported(night: Night) -> None:
    at_the_end, behind = Position(GROUP, TOPIC, 0, 52, 52), Position(GROUP, TOPIC, 1, 51, 52)
    happened(night, Observed(positions=(at_the_end, behind)), kind=Kind.TRANSACTIONS)
    (found,) = violations(night.judged(), Rule.EVENT_LAG)
    assert "had committed 51, but the end is 52" in found.message


def test_a_group_without_a_committed_position_has_lag(night: Night) -> None:
    happened(night, Observed(positions=(Position(GROUP, TOPIC, 0, None, 1),)), kind=Kind.TRANSACTIONS)
    assert violations(night.judged(), Rule.EVENT_LAG)


@pytest.mark.parametrize(("terms", "status"), [(0, Status.HELD), (3, Status.BROKEN)])
def test_a_term_that_ends_with_idle_connections_is_reported(night: Night, terms: int, status: Status) -> None:
    happened(night, Observed(terms=terms), kind=Kind.IDLE_CONNECTIONS)
    assert of(night.judged(), Rule.EVENT_TERMS).status is status


def test_a_commit_that_fails_beside_a_large_one_is_reported(night: Night) -> None:
    failed = ("NOT_COORDINATOR", "NOT_COORDINATOR")
    happened(night, Observed(commits=50, failed=failed, answered=TOO_LARGE), kind=Kind.LARGE_COMMIT)
    (found,) = violations(night.judged(), Rule.EVENT_OTHERS)
    assert "of 50 commits beside it, 2 failed: 2 NOT_COORDINATOR" in found.message


@pytest.mark.parametrize("answer", ["no error", "NOT_COORDINATOR"])
def test_a_large_commit_must_get_the_answer_of_kafka(night: Night, answer: str) -> None:
    happened(night, Observed(commits=50, answered=answer), kind=Kind.LARGE_COMMIT)
    (found,) = violations(night.judged(), Rule.EVENT_OTHERS)
    assert f"was answered {answer}" in found.message


@pytest.mark.parametrize("seconds", [None, BOUNDS_S[OTHER_TOPIC] + 0.1])
def test_a_wait_beyond_its_bound_is_reported(night: Night, seconds: float | None) -> None:
    happened(night, Observed(waited=(Waited(OTHER_TOPIC, seconds),)), kind=Kind.NO_LEADER)
    (found,) = violations(night.judged(), Rule.EVENT_TIMES)
    assert found.message.startswith(OTHER_TOPIC)


def test_a_wait_amid_other_faults_is_not_judged(night: Night) -> None:
    happened(night, Observed(waited=(Waited(OTHER_TOPIC, None),)), kind=Kind.NO_LEADER, begin=84)
    assert of(night.judged(), Rule.EVENT_TIMES).status is Status.NOT_EXERCISED


def test_the_fault_that_an_event_consists_of_does_not_excuse_it(night: Night) -> None:
    happened(night, Observed(own=("kafka:2",), waited=(Waited(STOPPED, 9.0),)), kind=Kind.NO_LEADER)
    night.event(98, Kind.STOP, "kafka:2", Phase.BEGIN, pid=8)
    night.event(99, Kind.STOP, "kafka:2", Phase.END, pid=8, exit_code=0)
    night.event(101, Kind.START, "kafka:2", Phase.END, pid=9)
    report = night.judged()
    assert not report.happened[0].disturbed
    assert violations(report, Rule.EVENT_TIMES)


def test_a_membership_lost_in_an_event_is_reported(night: Night) -> None:
    happened(night, READ, kind=Kind.ZOOKEEPER_SILENT)
    received(night, (10, 30), lost=True)
    (found,) = violations(night.judged(), Rule.EVENT_MEMBERSHIPS)
    assert "lost its membership and 1 partitions" in found.message


def test_records_that_an_event_repeats_are_reported(night: Night) -> None:
    happened(night, READ, kind=Kind.ZOOKEEPER_SILENT)
    received(night, (10, 25), (20, 30))
    (found,) = violations(night.judged(), Rule.EVENT_MEMBERSHIPS)
    assert "5 records were received twice" in found.message


@pytest.mark.parametrize(("begin", "severity"), [(97, Severity.VIOLATION), (84, Severity.WARNING)])
def test_an_abandoned_event_is_a_violation_unless_other_faults_explain_it(
    night: Night, begin: float, severity: Severity
) -> None:
    happened(night, Observed(abandoned="no broker answers"), begin=begin)
    (found,) = of(night.judged(), Rule.EVENT_RECORDS).findings
    assert found.severity is severity
    assert "no broker answers" in found.message


def test_an_event_without_an_end_counts_as_abandoned(night: Night) -> None:
    night.event(97, Kind.RETENTION, f"{WORLD}:{GROUP}", Phase.BEGIN)
    assert violations(night.judged(), Rule.EVENT_RECORDS)


def test_the_report_lists_the_events(night: Night, tmp_path: Path) -> None:
    happened(night, READ)
    received(night, (10, 30))
    report = night.judged()
    write_report(report, night.directory)
    page = (tmp_path / "report.md").read_text()
    assert "## Events of the world" in page
    assert f"| {GROUP} | 97.0s | 10.0 s | no | 20 records owed |" in page
    assert "1 retention" in page
