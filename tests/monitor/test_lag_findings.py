"""Tests of the doctor's and the dashboard's findings about a group's lag, and of the stored samples that they use."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_coord.groups.group import NOT_SUBSCRIBED, OffsetRow, Verdict
from kafka_coord.groups.lag import KEPT_MS, LagService
from kafka_coord.groups.lag_trend import Hot, Trend, Trends
from kafka_coord.groups.verbs import Contact, GroupOffsets
from kafka_coord.model import Action, GroupKind, TopicPartition
from kafka_coord.model.histories import CONVERSION
from kafka_coord.monitor.doctor.findings import Finding, Severity
from kafka_coord.monitor.doctor.groups import NEWS_MS, REMEMBERED_MS, Lags, check_actions, check_lag

NOW_MS = 1_800_000_000_000
EARLIER_MS = NOW_MS - 12 * 60_000


def row(partition: int, lag: int | None = 900, owner: str | None = "c1", **more: Any) -> OffsetRow:
    end = None if lag is None else 1_000 + lag
    holding = "owned" if owner else None
    return OffsetRow(
        topic="flights",
        partition=partition,
        owner=owner,
        holding=holding,
        committed_offset=1_000,
        end_offset=end,
        lag=lag,
        **more,
    )


def told(rows: list[OffsetRow], verdict: Verdict | None = None, **more: Any) -> list[Finding]:
    """The findings if each partition has a trend with this verdict."""
    given = more.pop("trends", {})
    if verdict is not None:
        trend = Trend(verdict, EARLIER_MS, more.pop("growth_s", None))
        given["partitions"] = {TopicPartition(one.topic, one.partition): trend for one in rows}
    return list(check_lag(Lags("delays", rows, Trends(**given), **more), NOW_MS))


def test_the_finding_about_a_consumer_that_hangs_names_its_host_and_partitions() -> None:
    (found,) = told([row(0), row(1)], Verdict.STALLED, members={"c1": "host-1"})
    assert found.severity is Severity.WARNING
    assert found.what == (
        "group delays: c1 on host host-1 has not committed in flights[0-1] for 12 min (since 07:48:00 UTC);"
        " 1,800 records waiting"
    )
    assert "then restart c1" in found.todo
    assert found.group == "delays"


def test_a_consumer_that_may_work_on_a_batch_is_no_warning() -> None:
    trend = Trend(Verdict.STALLED, NOW_MS - 240_000, None, may_work=True)
    (found,) = told([row(0)], trends={"partitions": {TopicPartition("flights", 0): trend}}, members={"c1": ""})
    assert (found.severity, found.todo[:7]) == (Severity.INFO, "nothing")


@pytest.mark.parametrize(
    ("more", "severity", "remedy"),
    [
        ({"members": {"c1": ""}}, Severity.WARNING, "kafka-coord groups rebalance delays --wait"),
        ({"members": {"c1": ""}, "paused": True}, Severity.INFO, "kafka-coord groups resume delays"),
        ({}, Severity.WARNING, "start its consumers"),
    ],
)
def test_the_finding_about_partitions_that_no_consumer_reads(
    more: dict[str, Any], severity: Severity, remedy: str
) -> None:
    (found,) = told([row(3, owner=None)], Verdict.STOPPED, **more)
    assert "no one has read flights[3] for 12 min" in found.what
    assert found.severity is severity
    assert remedy in found.todo


def test_the_command_in_a_remedy_can_be_copied_whoever_has_named_the_group() -> None:
    name, quoted = "a b; reboot", "kafka-coord groups {} 'a b; reboot'"
    lost = check_lag(Lags(name, [row(0, gone=5)], Trends()), NOW_MS)
    changed = check_actions({name: [Action("reset-offsets", "bob", NOW_MS, "", "flights 0: 5 → 0")]}, NOW_MS)
    (of_lag,), (of_action,) = lost, changed
    assert quoted.format("reset-offsets") in of_lag.todo
    assert quoted.format("reset-offsets") in of_action.todo


def test_a_group_that_stopped_more_than_a_day_ago_causes_no_warning() -> None:
    trends = {"partitions": {TopicPartition("flights", 0): Trend(Verdict.STOPPED, NOW_MS - REMEMBERED_MS - 1)}}
    (found,) = told([row(0, owner=None)], trends=trends)
    assert found.severity is Severity.INFO


def test_a_group_that_has_not_been_observed_for_long_is_late_by_the_age_of_what_waits() -> None:
    """A command takes one sample, and nobody tells when a client-assigned group committed last."""
    old = [row(0, owner=None, lag_s=600.0), row(1, lag=5, owner=None, lag_s=9.0), row(2, owner=None)]
    (found,) = told(old, Verdict.UNKNOWN)
    assert found.severity is Severity.WARNING
    assert found.what == "group delays is late in flights[0]: 900 records waiting, the oldest for 10 min"
    assert "start its consumers" in found.todo
    assert told(old, Verdict.UNKNOWN, paused=True)[0].severity is Severity.INFO
    (found,) = told(old, Verdict.UNKNOWN, members={"c1": ""})
    assert "kafka-coord watch delays" in found.todo


def test_the_finding_about_a_slow_group_counts_its_consumers_and_partitions() -> None:
    (found,) = told([row(0), row(1, owner="c2")], Verdict.BEHIND, members={"c1": "", "c2": ""}, growth_s=200.0)
    assert found.what.endswith("1,800 records waiting, growing by 400 a second")
    assert "already has its own consumer" in found.todo
    (found,) = told([row(0), row(1)], Verdict.BEHIND, members={"c1": ""})
    assert "add consumers (1 consumer reads 2 partitions)" in found.todo


def test_the_finding_about_a_group_of_which_only_the_total_lag_grows() -> None:
    trends = {"total": Trend(Verdict.BEHIND, EARLIER_MS, 40.0)}
    (found,) = told([row(0), row(1, lag=0)], trends=trends, members={"c1": ""})
    assert found.what == (
        "group delays has been falling behind in flights[0] for 12 min (since 07:48:00 UTC); 900 records waiting,"
        " growing by 40 a second"
    )


def test_records_that_were_deleted_unread_are_a_finding_of_their_own() -> None:
    rows = [row(0, lag=0, gone=1_200), row(1, lag=0, gone=0)]
    (found,) = told(rows, Verdict.KEEPING_UP, members={"c1": ""})
    assert found.severity is Severity.WARNING
    assert found.what == (
        "group delays: 1,200 unread records are gone from flights[0]:"
        " they were deleted, by retention or by an operator, before the group read them"
    )
    assert "kafka-coord groups reset-offsets delays --all-topics --to-earliest" in found.todo
    (found,) = told(rows, Verdict.KEEPING_UP, members={})
    assert found.severity is Severity.INFO, "no one loses records in a group that no one runs"
    assert told(rows[1:], Verdict.KEEPING_UP, members={"c1": ""}) == [], "only records that were read are gone"


def test_a_group_is_not_keeping_up_while_a_partition_is_unknown() -> None:
    service = LagService()
    for at in range(13):
        seen = [row(0, lag=0), row(1, lag=None), row(2, lag=None)]
        service.add("delays", NOW_MS + at * 10_000, seen)
    trends = service.trends("delays")
    assert (trends.verdict, trends.unknown) == (Verdict.UNKNOWN, 2)
    assert service.verdict("delays") is Verdict.UNKNOWN

    nobody_subscribes = [replace(one, holding=NOT_SUBSCRIBED) for one in seen[1:]]
    service.add("delays", NOW_MS + 200_000, [seen[0], *nobody_subscribes])
    assert (service.verdict("delays"), service.trends("delays").unknown) == (Verdict.KEEPING_UP, 0)


def test_a_partition_that_nobody_subscribes_to_is_never_hot() -> None:
    service = LagService()
    for at in range(13):
        busy = replace(row(0, lag=1_000 * at), holding=NOT_SUBSCRIBED)
        service.add("delays", NOW_MS + at * 10_000, [busy, replace(row(1, lag=0), holding=NOT_SUBSCRIBED)])
    assert service.trends("delays").hot == []


def test_the_finding_about_a_hot_partition_does_not_recommend_more_consumers() -> None:
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
    assert alone.severity is Severity.INFO, "no action is needed while the consumer keeps up"


def test_offsets_that_an_operator_set_are_reported_for_a_day() -> None:
    action = Action("reset-offsets", "alice@kafka-1", EARLIER_MS, "bug 17", "to-earliest: flights 0: 900 → 0")
    later = Action("pause", "bob@kafka-1", NOW_MS)
    (found,) = check_actions({"delays": [action, later]}, NOW_MS)
    assert found.what == (
        "group delays: alice@kafka-1 set its offsets 12 min ago (07:48:00 UTC) (bug 17):"
        " to-earliest: flights 0: 900 → 0"
    )
    assert found.severity is Severity.WARNING
    assert [one.severity for one in check_actions({"delays": [action]}, NOW_MS + NEWS_MS)] == [Severity.INFO]
    assert list(check_actions({"delays": [action]}, NOW_MS + REMEMBERED_MS)) == []


def test_the_first_sample_shows_by_the_time_of_the_commit_that_a_consumer_hangs() -> None:
    service = LagService()
    service.add("delays", NOW_MS, [row(0, committed_ms=EARLIER_MS)])
    assert service.trends("delays").of("flights", 0) == Trend(Verdict.STALLED, EARLIER_MS)
    service.add("fresh", NOW_MS, [row(0, committed_ms=EARLIER_MS)], decided_ms=NOW_MS - 5_000)
    assert service.trends("fresh").verdict is Verdict.UNKNOWN, "its owner got the partition only a moment ago"


def test_samples_are_kept_for_an_hour_and_the_least_recent_group_is_forgotten() -> None:
    service = LagService(most_samples=65)
    for minute in range(100):
        service.add("delays", minute * 60_000, [row(0)])
    taken = service.samples("delays", TopicPartition("flights", 0))
    assert len(taken) == 61
    assert taken[0].at_ms == 99 * 60_000 - KEPT_MS
    service.add("orders", NOW_MS, [row(0), row(1)])
    assert service.totals("delays") == []
    assert service.totals("orders") == [(NOW_MS, 1_800, 0, 0)]
    service.add("orders", NOW_MS + 1, [row(1)])
    assert service.samples("orders", TopicPartition("flights", 0)) == [], (
        "samples of a missing partition must be removed"
    )


def test_samples_of_two_writers_that_arrive_out_of_order_show_no_rewind() -> None:
    service = LagService()
    service.add("delays", NOW_MS, [row(0, committed_ms=NOW_MS + 800)])
    service.add("delays", NOW_MS + 500, [row(0, lag=950, committed_ms=NOW_MS + 300)])  # read before the first sample
    service.add("delays", NOW_MS - 500, [row(0, committed_ms=NOW_MS + 900)])  # began before the other samples
    assert [one.at_ms for one in service.samples("delays", TopicPartition("flights", 0))] == [NOW_MS]
    assert [at for at, *_ in service.totals("delays")] == [NOW_MS, NOW_MS + 500]


def test_the_finding_about_a_rewound_offset_has_the_time_and_a_command() -> None:
    (found,) = told([row(0)], Verdict.REWOUND)
    assert found.what == "group delays: the offsets of flights[0] were moved back 12 min ago (07:48:00 UTC)"
    assert "kafka-coord groups history delays" in found.todo


def test_one_command_for_many_groups_is_one_finding() -> None:
    actions = {
        f"g{n:02}": [
            Action("reset-offsets", "alice@host", NOW_MS + n * 300, "bug 17", f"to-earliest: flights 0: {n + 1} → 0")
        ]
        for n in range(21)
    }
    (found,) = check_actions(actions, NOW_MS + 60_000)
    assert "group g00: alice@host set its offsets and of 20 other groups, " in found.what
    other = {"a": [Action("reset-offsets", "bob@host", NOW_MS, "", "to-earliest: flights 0: 9 → 0")]}
    assert len(list(check_actions(actions | other, NOW_MS + 60_000))) == 2
    later = {
        "z": [Action("reset-offsets", "alice@host", NOW_MS + 3_600_000, "bug 17", "to-earliest: flights 0: 9 → 0")]
    }
    assert len(list(check_actions(actions | later, NOW_MS + 3_700_000))) == 2


@pytest.mark.parametrize(
    ("change", "by", "findings"),
    [
        ("to-latest: 3 unchanged", "alice@host", 0),
        ("to-latest: flights 1: 8 → 9; 1 unchanged", "alice@host", 1),
        ("to-latest: flights 0: - → 0", "alice@host", 1),
        ("", "alice@host", 1),
        ("flights 0: - → 7", CONVERSION, 0),
    ],
)
def test_a_reset_that_changed_no_offset_is_not_news(change: str, by: str, findings: int) -> None:
    """A conversion writes the offsets that the group had."""
    action = Action("reset-offsets", by, NOW_MS, "", change)
    assert len(list(check_actions({"delays": [action]}, NOW_MS + 1_000))) == findings


def test_four_records_that_wait_for_seconds_are_no_news_and_four_that_wait_for_hours_are() -> None:
    few = [row(0, lag=4, lag_s=3.0)]
    for verdict in (Verdict.BEHIND, Verdict.STALLED, Verdict.STOPPED):
        found = told(few, verdict, members={"c1": ""})
        assert [one.severity for one in found] == ([] if verdict is Verdict.BEHIND else [Severity.INFO]), verdict
        (late,) = told([replace(few[0], lag_s=7_300.0)], verdict, members={"c1": ""})
        assert late.severity is Severity.WARNING
        assert "4 records waiting, the oldest for 2 h" in late.what
        (unknown,) = told([replace(few[0], lag_s=None)], verdict, members={"c1": ""})
        assert unknown.severity is Severity.WARNING, "an unknown age is not good"
    assert told(few, trends={"total": Trend(Verdict.BEHIND, EARLIER_MS, 40.0)}, members={"c1": ""}) == []


def test_a_group_has_its_own_warning_or_the_sites() -> None:
    found = GroupOffsets("delays", GroupKind.MANAGED, (row(0, lag_s=90.0),), 0, {"c1": Contact("host-1")})
    trends = Trends({TopicPartition("flights", 0): Trend(Verdict.BEHIND, EARLIER_MS)})
    for own_ms, site_ms, warned in (
        (None, 60_000, True),
        (None, 120_000, False),
        (600_000, 60_000, False),
        (0, 1, True),
    ):
        lags = Lags.of(dataclasses.replace(found, warning_ms=own_ms), trends, site_ms)
        assert bool(list(check_lag(lags, NOW_MS))) is warned
