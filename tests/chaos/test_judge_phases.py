"""Tests what the judge finds out about the phases of a migration."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_coord.model import TopicPartition
from tests.chaos.journal import ConsumerWriter, Kind, Phase
from tests.chaos.judge.findings import Rule, Status
from tests.chaos.judge.phases import table
from tests.chaos.night import BEGAN, T0, Night, of, violations
from tests.chaos.parts import PLAIN

NEW = TopicPartition("t", 2)


@pytest.fixture
def migrating(night: Night) -> Night:
    """The night is one phase. The plain reader gets the records of t-0 at 1.5, 3 and 7 s."""
    night.event(0.5, Kind.MIGRATING, "phase:copied", Phase.BEGIN)
    night.event(15, Kind.PARTITIONS_ADDED, "topic:t", topic="t", partitions=3)
    night.produced(15.5, NEW, 0, 5)
    night.started(15.8, "c2.12", {NEW: 0})
    night.handed(16, "c2.12", NEW, 0, 5)
    writer = ConsumerWriter(
        night.directory / PLAIN, consumer=PLAIN, group=PLAIN, pid=1, session_timeout_ms=6_000, kind=PLAIN
    )
    with writer:
        for t, first, end in ((1.5, 0, 20), (3, 20, 30), (7, 30, 120)):
            writer.handed(BEGAN + t, BEGAN + t, [(*T0, offset, offset) for offset in range(first, end)])
    return night


def ends(night: Night, **said: Any) -> None:
    detail = {"doctor": ["migration info: …"], "missing": [], "seen_s": {"partition": 0.3}} | said
    night.event(100, Kind.MIGRATING, "phase:copied", Phase.END, **detail)


def test_a_phase_has_what_was_seen_in_it(migrating: Night) -> None:
    ends(migrating)
    report = migrating.judged()
    assert of(report, Rule.MIGRATION).status is Status.HELD
    (phase,) = report.phases
    assert phase.read_s == {"partition": {"g": pytest.approx(0.8)}}
    assert phase.plain_s == pytest.approx(4.0)
    assert phase.records == 120
    assert "| copied |" in list(table(report.phases))[2]


def test_the_first_arrival_of_a_record_in_its_group_is_compared_with_the_plain_readers(migrating: Night) -> None:
    ends(migrating)
    (phase,) = migrating.judged().phases
    assert phase.later_s == {"own": pytest.approx(20.0)}, "c2 was the first to get record 80, at 27 s"


def test_what_the_doctor_does_not_say_is_reported(migrating: Night) -> None:
    ends(migrating, missing=["finalise"])
    (found,) = violations(migrating.judged(), Rule.MIGRATION)
    assert found.message.startswith("doctor did not say 'finalise'")


def test_a_new_partition_that_nobody_read_is_reported(migrating: Night) -> None:
    ends(migrating)
    migrating.forget("c2.12 started t-2", "c2.12 handed t-2 0")
    found = violations(migrating.judged(), Rule.MIGRATION)
    assert [one.message for one in found] == ["the new partition was not read by g"]
