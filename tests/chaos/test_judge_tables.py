"""Tests the judge's findings about the table of a run's Spark query."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from kafka_coord.model import TopicPartition
from kafka_coord.spark.sinks import TableWriter
from tests.chaos.journal import Participant
from tests.chaos.judge.findings import Rule, Status
from tests.chaos.judge.tables import TABLES
from tests.chaos.night import T0, T1, Night, broken, of, violations


@pytest.fixture
def night(night: Night) -> Night:
    """``c1`` is a Spark query, and ``c2`` is a plain consumer."""
    night.run = replace(night.run, consumers=(Participant("c1", "g", kind="spark"), Participant("c2", "g")))
    return night


def write(night: Night, partition: TopicPartition, first: int, end: int, *, shift: int = 0) -> TableWriter:
    table = TableWriter(night.directory / TABLES / "g", group="g")
    offsets = range(first, end)
    table.append_arrow(
        pa.table(
            {
                "topic": pa.array([partition.topic] * len(offsets), pa.string()),
                "partition": pa.array([partition.partition] * len(offsets), pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "value": pa.array([str(offset + shift).encode() for offset in offsets], pa.binary()),
            }
        )
    )
    return table


def test_a_table_with_the_records_that_no_other_consumer_received_is_complete(night: Night) -> None:
    write(night, T0, 0, 50)
    write(night, T1, 0, 50)
    report = night.judged()
    assert broken(report) == set()
    assert of(report, Rule.TABLE).status is Status.HELD
    assert of(report, Rule.TABLE).figures["rows"] == 100


def test_a_record_that_is_missing_everywhere_is_reported(night: Night) -> None:
    write(night, T0, 0, 40)
    write(night, T1, 0, 50)
    (found,) = violations(night.judged(), Rule.TABLE)
    assert (found.where, found.message.rpartition(": ")[2]) == ("group g t-0", "offsets 40 to 49")


def test_a_record_that_is_in_the_table_twice_is_reported(night: Night) -> None:
    write(night, T0, 0, 50)
    write(night, T1, 0, 50).forget("t")
    write(night, T0, 49, 50)
    (found,) = violations(night.judged(), Rule.TABLE)
    assert found.message == "offset 49 is in the table twice"


def test_a_record_in_the_table_that_differs_from_the_written_one_is_reported(night: Night) -> None:
    write(night, T0, 0, 49)
    write(night, T0, 49, 50, shift=1)
    write(night, T1, 0, 50)
    (found,) = violations(night.judged(), Rule.TABLE)
    assert found.message == "offset 49 is record 50 in the table, but 49 was written"


def test_without_a_table_the_report_has_no_rule_about_tables(night: Night) -> None:
    assert all(ruling.rule is not Rule.TABLE for ruling in night.judged().rulings)
