"""The rule about the tables that Spark queries of a run wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka_coord.model import TopicPartition
from tests.chaos.journal import Group
from tests.chaos.judge.evidence import Records, Span, merged, without
from tests.chaos.judge.findings import ChaosFinding, Rule, Ruling, ruling, violation

TABLES = "tables"
"""The directory of the tables in a run's directory, one for each group."""


def tables(records: Records) -> Ruling:
    """Checks that a table has no record twice, has each record unchanged, and has all records that no other kind of
    consumer received.
    """
    findings: list[ChaosFinding] = []
    rows = 0
    for group in records.run.groups:
        directory = records.directory / TABLES / group.name
        if directory.is_dir():
            from kafka_coord.spark.sinks import TableWriter  # Spark is part of few runs

            table = TableWriter(directory, group=group.name).read_arrow()
            rows += table.num_rows
            findings += _wrong_rows(records, group, table)
            findings += _missing(records, group, table)
    return ruling(Rule.TABLE, findings, checked=f"{rows:,} rows", exercised=rows > 0, figures={"rows": float(rows)})


def _wrong_rows(records: Records, group: Group, table: Any) -> Iterator[ChaosFinding]:
    due = {
        (run.partition.topic, run.partition.partition, run.first + at): run.number + at
        for runs in records.written.values()
        for run in runs
        for at in range(run.size)
    }
    seen: set[tuple[str, int, int]] = set()
    for row in table.select(["topic", "partition", "offset", "value"]).to_pylist():
        place = (row["topic"], row["partition"], row["offset"])
        wrong = ""
        if place in seen:
            wrong = "is in the table twice"
        elif place in due and int(row["value"]) != due[place]:
            wrong = f"is record {int(row['value'])} in the table, but {due[place]} was written"
        seen.add(place)
        if wrong:
            where = f"group {group.name} {TopicPartition(*place[:2])}"
            yield violation(Rule.TABLE, where, f"offset {place[2]} {wrong}")


def _missing(records: Records, group: Group, table: Any) -> Iterator[ChaosFinding]:
    """Yields a finding for acknowledged records that neither the table nor a plain consumer has."""
    held: dict[TopicPartition, list[Span]] = {}
    for topic, partition, offset in zip(
        *(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True
    ):
        held.setdefault(TopicPartition(topic, partition), []).append(Span(offset, offset + 1))
    for book in records.books:
        if book.group == group.name:
            for owner in book.ownerships:
                if owner.consumer not in records.spark:
                    given = [Span(out.first, out.end) for out in owner.given]
                    held.setdefault(book.partition, []).extend(given)
    for partition in records.subscribed(group):
        missing = list(without(records.produced[partition], merged(held.get(partition, []))))
        if missing:
            text = ", ".join(f"{one.first} to {one.end - 1}" for one in missing[:5])
            yield violation(
                Rule.TABLE,
                f"group {group.name} {partition}",
                f"acknowledged records are neither in the table nor handed out to a plain consumer: offsets {text}",
            )
