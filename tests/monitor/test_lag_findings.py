"""What the doctor and the dashboard say about a group's lag, and the rings that they judge by."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_coord.model import Action, TopicPartition
from kafka_coord.monitor.doctor.findings import Finding, Severity
from kafka_coord.monitor.doctor.lag import NEWS_MS, REMEMBERED_MS, Lags, check_actions, check_lag
from kafka_coord.monitor.lag_rings import KEPT_MS, LagRings
from kafka_coord.monitor.lag_trend import Hot, Trend, Trends, Verdict
from kafka_coord.monitor.offsets import OffsetRow

NOW_MS = 1_800_000_000_000
EARLIER_MS = NOW_MS - 12 * 60_000


def row(partition: int, lag: int | None = 900, owner: str | None = "c1", **more: Any) -> OffsetRow:
    end = None if lag is None else 1_000 + lag
    return OffsetRow("flights", partition, owner, "owned" if owner else "", 1_000, end, lag, **more)


def told(rows: list[OffsetRow], verdict: Verdict | None = None, **more: Any) -> list[Finding]:
    """The findings if each partition has this trend."""
    given = more.pop("trends", {})
    if verdict is not None:
        trend = Trend(verdict, EARLIER_MS, more.pop("growth_s", None))
        given["partitions"] = {TopicPartition(one.topic, one.partition): trend for one in rows}
    return list(check_lag(Lags("delays", rows, Trends(**given), **more), NOW_MS))


def test_a_consumer_that_hangs_is_named_with_its_host_and_what_it_holds_up() -> None:
    (found,) = told([row(0), row(1)], Verdict.STALLED, members={"c1": "host-1"})
    assert found.severity is Severity.WARNING
    assert found.what == (
        "group delays: c1 on host host-1 has not committed in flights[0-1] for 12 min (since 07:48:00 UTC);"
        " 1,800 records waiting"
    )
    assert "then restart c1" in found.todo
    assert found.group == "delays"


@pytest.mark.parametrize(
    ("more", "severity", "remedy"),
    [
        ({"members": {"c1": ""}}, Severity.WARNING, "kafka-coord groups rebalance delays --wait"),
        ({"members": {"c1": ""}, "paused": True}, Severity.INFO, "kafka-coord groups resume delays"),
        ({}, Severity.WARNING, "start its consumers"),
    ],
)
def test_partitions_that_nobody_reads(more: dict[str, Any], severity: Severity, remedy: str) -> None:
    (found,) = told([row(3, owner=None)], Verdict.STOPPED, **more)
    assert "no one has read flights[3] for 12 min" in found.what
    assert found.severity is severity
    assert remedy in found.todo


def test_a_group_that_nobody_has_missed_for_a_day_is_no_warning() -> None:
    trends = {"partitions": {TopicPartition("flights", 0): Trend(Verdict.STOPPED, NOW_MS - REMEMBERED_MS - 1)}}
    (found,) = told([row(0, owner=None)], trends=trends)
    assert found.severity is Severity.INFO


def test_a_group_that_is_too_slow_is_told_how_many_consumers_read_how_many_partitions() -> None:
    (found,) = told([row(0), row(1, owner="c2")], Verdict.BEHIND, members={"c1": "", "c2": ""}, growth_s=200.0)
    assert found.what.endswith("1,800 records waiting, growing by 400 a second")
    assert "already has its own consumer" in found.todo
    (found,) = told([row(0), row(1)], Verdict.BEHIND, members={"c1": ""})
    assert "add consumers (1 consumer reads 2 partitions)" in found.todo


def test_a_group_whose_partitions_catch_up_in_turns_while_the_sum_grows() -> None:
    trends = {"total": Trend(Verdict.BEHIND, EARLIER_MS, 40.0)}
    (found,) = told([row(0), row(1, lag=0)], trends=trends, members={"c1": ""})
    assert found.what == (
        "group delays has been falling behind in flights[0] for 12 min (since 07:48:00 UTC); 900 records waiting,"
        " growing by 40 a second"
    )


def test_a_hot_partition_is_the_cause_and_more_consumers_are_no_remedy() -> None:
    hot = [Hot(TopicPartition("flights", 2), 0.996, 412.0, 11)]
    partitions = {TopicPartition("flights", 2): Trend(Verdict.BEHIND, EARLIER_MS, 300.0)}
    first, second = told([row(2)], trends={"partitions": partitions, "hot": hot}, members={"c1": ""})
    assert first.what == (
        "group delays: flights[2] is hot: it gets 99 % of the new records of flights (412 a second);"
        " the rest goes to 11 other partitions"
    )
    assert "more consumers do not help" in first.todo
    assert second.todo == "most of them are in flights[2], which is hot (see its finding)"
    (alone,) = told([row(2)], Verdict.KEEPING_UP, trends={"hot": hot})
    assert alone.severity is Severity.INFO, "nobody has to act while its consumer keeps up"


def test_offsets_that_an_operator_set_are_mentioned_for_a_day() -> None:
    action = Action("reset-offsets", "alice@kafka-1", EARLIER_MS, "bug 17", "to-earliest: flights 0: 900 → 0")
    later = Action("pause", "bob@kafka-1", NOW_MS)
    (found,) = check_actions("delays", [action, later], NOW_MS)
    assert found.what == (
        "group delays: alice@kafka-1 set its offsets 12 min ago (07:48:00 UTC) (bug 17):"
        " to-earliest: flights 0: 900 → 0"
    )
    assert found.severity is Severity.WARNING
    assert [one.severity for one in check_actions("delays", [action], NOW_MS + NEWS_MS)] == [Severity.INFO]
    assert list(check_actions("delays", [action], NOW_MS + REMEMBERED_MS)) == []


def test_the_time_of_a_commit_tells_at_the_first_look_that_a_consumer_hangs() -> None:
    rings = LagRings()
    rings.add("delays", NOW_MS, [row(0, committed_ms=EARLIER_MS)])
    assert rings.trends("delays").of("flights", 0) == Trend(Verdict.STALLED, EARLIER_MS)
    rings.add("fresh", NOW_MS, [row(0, committed_ms=EARLIER_MS)], decided_ms=NOW_MS - 5_000)
    assert rings.trends("fresh").verdict is Verdict.UNKNOWN, "its owner has it since a moment only"


def test_rings_keep_an_hour_and_forget_the_group_that_was_not_sampled_for_the_longest_time() -> None:
    rings = LagRings(most_samples=65)
    for minute in range(100):
        rings.add("delays", minute * 60_000, [row(0)])
    taken = rings.samples("delays", TopicPartition("flights", 0))
    assert len(taken) == 61
    assert taken[0].at_ms == 99 * 60_000 - KEPT_MS
    rings.add("orders", NOW_MS, [row(0), row(1)])
    assert rings.totals("delays") == []
    assert rings.totals("orders") == [[NOW_MS, 1_800, 0]]
    rings.add("orders", NOW_MS + 1, [row(1)])
    assert rings.samples("orders", TopicPartition("flights", 0)) == [], "a partition that is gone"


def test_two_writers_whose_samples_cross_do_not_make_an_offset_go_back() -> None:
    rings = LagRings()
    rings.add("delays", NOW_MS, [row(0, committed_ms=NOW_MS + 800)])
    rings.add("delays", NOW_MS + 500, [row(0, lag=950, committed_ms=NOW_MS + 300)])  # read before the other's reading
    rings.add("delays", NOW_MS - 500, [row(0, committed_ms=NOW_MS + 900)])  # began before the others
    assert [one.at_ms for one in rings.samples("delays", TopicPartition("flights", 0))] == [NOW_MS]
    assert [at for at, *_ in rings.totals("delays")] == [NOW_MS, NOW_MS + 500]


def test_an_offset_that_was_set_back_says_when_and_where_to_look() -> None:
    (found,) = told([row(0)], Verdict.REWOUND)
    assert found.what == "group delays: the offsets of flights[0] were moved back 12 min ago (07:48:00 UTC)"
    assert "kafka-coord groups history delays" in found.todo
