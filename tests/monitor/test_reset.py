"""Tests of the new offsets of each reset rule, which must equal those of Kafka's own tool."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_coord.errors import BrokerError, MalformedValue, NotFound, RequestRefused, SettingsError
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.requests import Acting
from kafka_coord.groups.reset import (
    ResetRule,
    RuleKind,
    compute,
    duration_ms,
    read_csv,
    repeated_and_skipped,
    require_accepted,
    time_ms,
    write_csv,
)
from kafka_coord.kafka.offsets import NO_SUCH_RECORD, BrokerOffsets, BrokerRanges
from kafka_coord.model import GroupKind, PartitionSet, TopicPartition
from kafka_coord.model.offsets import LogRange
from kafka_coord.zk import layout
from tests.simulation.store import connected_store

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
BOTH = PartitionSet.of([P0, P1])
COMMITTED = {P0: 50}
Y2100_MS = 4_102_444_800_000


def after(time: str) -> str:
    return f"no record at or after {time}, so reset to the end of the log"


class Log:
    """Partition 0 has the offsets 10 to 100, partition 1 has 0 to 5. A requested time is the fourth record's."""

    def __init__(self, unreachable: PartitionSet | None = None) -> None:
        self._unreachable = unreachable or PartitionSet()

    def _known(self, wanted: PartitionSet, offsets: Mapping[TopicPartition, int]) -> BrokerOffsets:
        found = {tp: offsets[tp] for tp in wanted - self._unreachable}
        return BrokerOffsets(found, "no live leader" if len(found) < len(wanted) else "")

    def earliest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._known(partitions, {P0: 10, P1: 0})

    def latest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._known(partitions, {P0: 100, P1: 5})

    def known_ranges(self, partitions: PartitionSet) -> BrokerRanges:
        known = {P0: LogRange(10, 100), P1: LogRange(0, 5)}
        return BrokerRanges({tp: known[tp] for tp in partitions - self._unreachable})

    def at_time(self, partitions: PartitionSet, timestamp_ms: int) -> BrokerOffsets:
        """Partition 1 has no record after 2 seconds, and none has one in the year 2100."""
        later = timestamp_ms > 2_000
        return self._known(partitions, {P0: NO_SUCH_RECORD if timestamp_ms >= Y2100_MS else 13, P1: -1 if later else 3})


@pytest.mark.parametrize(
    ("current", "new", "wanted"),
    [
        (50, 20, (30, 0)),
        (50, 70, (0, 20)),
        (50, 50, (0, 0)),
        (3, 10, (0, 0)),  # records before 10 are gone, so none of them is skipped
        (3, 15, (0, 5)),
        (200, 10, (90, 0)),  # the log was cut
        (50, None, (40, 50)),
        (None, 10, (None, None)),
    ],
)
def test_a_reset_says_how_many_records_it_repeats_and_skips(
    current: int | None, new: int | None, wanted: tuple[int | None, int | None]
) -> None:
    assert repeated_and_skipped(current, new, LogRange(10, 100)) == wanted
    assert repeated_and_skipped(current, new, None) == (None, None)


def test_offsets_are_copied_from_another_group_as_far_as_the_log_holds_them() -> None:
    rule = ResetRule(RuleKind.FROM_GROUP, group="etl")
    rows = compute(rule, BOTH, COMMITTED, Log(), {P0: 70, P1: 9})
    assert str(rule) == "from-group etl"
    assert [(row.new_offset, row.note) for row in rows] == [
        (70, ""),
        (5, "9 is beyond the end of the log, so reset to the end"),
    ]
    assert rows[0].log == LogRange(10, 100)


@pytest.mark.parametrize(
    ("rule", "offsets", "notes"),
    [
        (ResetRule(RuleKind.TO_EARLIEST), [10, 0], ["", ""]),
        (ResetRule(RuleKind.TO_LATEST), [100, 5], ["", ""]),
        (ResetRule(RuleKind.TO_CURRENT), [50, 5], ["", "no committed offset, so reset to the end of the log"]),
        (ResetRule(RuleKind.TO_OFFSET, 12), [12, 5], ["", "12 is beyond the end of the log, so reset to the end"]),
        (ResetRule(RuleKind.TO_OFFSET, 0), [10, 0], ["0 is before the start of the log, so reset to the start", ""]),
        (ResetRule(RuleKind.TO_TIME, 1_000), [13, 3], ["", ""]),
        (ResetRule(RuleKind.TO_TIME, 3_000), [13, 5], ["", after("1970-01-01T00:00:03.000Z")]),
        (ResetRule(RuleKind.TO_TIME, Y2100_MS), [100, 5], [after("2100-01-01T00:00:00.000Z")] * 2),
        (ResetRule(RuleKind.TO_TIME, 1 << 62), [100, 5], [after(f"{1 << 62} ms since 1970")] * 2),
    ],
)
def test_each_rule_gives_the_same_offsets_as_kafkas_tool(rule: ResetRule, offsets: list[int], notes: list[str]) -> None:
    rows = compute(rule, BOTH, COMMITTED, Log())
    assert [row.new_offset for row in rows] == offsets
    assert [row.note for row in rows] == notes
    assert [row.current_offset for row in rows] == [50, None]


@pytest.mark.parametrize(("shift", "offset"), [(5, 55), (-5, 45), (0, 50), (1_000, 100), (-1_000, 10)])
def test_a_shift_stays_within_the_log(shift: int, offset: int) -> None:
    (row,) = compute(ResetRule(RuleKind.SHIFT_BY, shift), PartitionSet.of([P0]), COMMITTED, Log())
    assert row.new_offset == offset


def test_a_plan_with_notes_must_be_accepted() -> None:
    rows = compute(ResetRule(RuleKind.TO_TIME, 3_000), BOTH, COMMITTED, Log())
    with pytest.raises(RequestRefused, match=r"^1 offset would not .* flights\[1\]: no record .* No offset .*; tick$"):
        require_accepted(rows, accepted=False, how="tick")
    require_accepted(rows, accepted=True, how="tick")
    require_accepted([row for row in rows if not row.note], accepted=False, how="tick")


def test_a_shift_without_a_committed_offset_is_refused() -> None:
    with pytest.raises(RequestRefused, match=r"cannot shift flights\[1\] without a committed offset"):
        compute(ResetRule(RuleKind.SHIFT_BY, 1), BOTH, COMMITTED, Log())


def test_from_file_stays_within_the_log() -> None:
    rows = compute(ResetRule(RuleKind.FROM_FILE), BOTH, COMMITTED, Log(), {P0: 20, P1: 99})
    assert [(row.new_offset, row.note) for row in rows] == [
        (20, ""),
        (5, "99 is beyond the end of the log, so reset to the end"),
    ]


@pytest.mark.parametrize("kind", [k for k in RuleKind if k not in {RuleKind.TO_CURRENT, RuleKind.SHIFT_BY}])
def test_a_reset_fails_if_a_broker_does_not_answer(kind: RuleKind) -> None:
    log = Log(unreachable=PartitionSet.of([P1]))
    with pytest.raises(BrokerError, match=r"returned no offsets for flights\[1\]: no live leader"):
        compute(ResetRule(kind, 1_000), BOTH, COMMITTED, log, {P0: 1, P1: 1})


def test_to_current_needs_no_broker_if_all_offsets_are_committed() -> None:
    log = Log(unreachable=BOTH)
    (row,) = compute(ResetRule(RuleKind.TO_CURRENT), PartitionSet.of([P0]), COMMITTED, log)
    assert row.new_offset == 50


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("PT15S", 15_000),
        ("PT1.5S", 1_500),
        ("P1D", 86_400_000),
        ("P1DT2H3M4S", 93_784_000),
        ("pt30m", 1_800_000),
        ("PT0S", 0),
    ],
)
def test_durations_are_parsed(written: str, ms: int) -> None:
    assert duration_ms(written) == ms


@pytest.mark.parametrize(
    "written",
    ["", "P", "PT", "1h", "P1W", "PT-5S", "P1DT", "PT1S2H", "PT1,5S"],
)
def test_an_invalid_duration_is_refused(written: str) -> None:
    with pytest.raises(SettingsError, match="PnDTnHnMnS"):
        duration_ms(written)


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("2024-11-20T00:00:00.123", 1_732_060_800_123),
        ("2024-11-20T00:00:00Z", 1_732_060_800_000),
        ("2024-11-20T01:00:00+01:00", 1_732_060_800_000),
        ("2024-11-20", 1_732_060_800_000),
    ],
)
def test_times_are_utc_unless_they_have_a_time_zone(written: str, ms: int) -> None:
    assert time_ms(written) == ms


@pytest.mark.parametrize("written", ["", "noon", "2024-13-01T00:00:00", "1969-12-31T00:00:00"])
def test_an_invalid_time_is_refused(written: str) -> None:
    with pytest.raises(SettingsError):
        time_ms(written)


@pytest.mark.parametrize("written", ["P" + "9" * 400 + "D", "P99999999999999D"])
def test_a_duration_that_is_too_long_is_refused(written: str) -> None:
    with pytest.raises(SettingsError, match="is too long"):
        duration_ms(written)


def test_csv_from_kafkas_tool_is_read() -> None:
    lines = ["flights,0,5", "", '"flights","1","7"', "delays,routes,3,9", "other,routes,4,9"]
    assert read_csv(lines, ["delays"], "f.csv") == {"delays": {P0: 5, P1: 7, TopicPartition("routes", 3): 9}}


def test_csv_of_several_groups_from_kafkas_tool_is_read() -> None:
    lines = ["delays,flights,0,5", '"a, b",flights,0,7', "other,flights,1,9"]
    of_two = {"delays": {P0: 5}, "a, b": {P0: 7}}
    assert read_csv(lines, ["delays", "a, b"], "f.csv") == of_two
    assert read_csv(lines, [], "f.csv") == of_two | {"other": {P1: 9}}
    for groups in ([], ["delays", "other"]):
        with pytest.raises(MalformedValue, match="is not group,topic,partition,offset"):
            read_csv(["flights,0,5"], groups, "f.csv")
    with pytest.raises(MalformedValue, match="lists no partitions of group later"):
        read_csv(lines, ["delays", "later"], "f.csv")


def test_what_is_exported_can_be_imported_whatever_the_groups_are_called() -> None:
    groups = ["delays ", " delays", "a\nb", 'q"u,o', "c\r", "tab\t", "é\u2028"]
    file = io.StringIO(newline="")
    write_csv(((group, "flights", 0, 5) for group in groups), file)
    file.seek(0)
    assert read_csv(file, [], "f.csv") == {group: {P0: 5} for group in groups}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("flights," + "0" * 200_000 + ",1", "field larger than field limit"),
        ("flights,0", "is not topic,partition,offset"),
        ("fli ghts,0,1", "not a legal topic name"),
        ("flights,x,1", "'x' is not a number"),
        ("flights,0,-1", "not a number"),
        ("flights,99999999999,1", "too large"),
        ("flights,0,9999999999999999999", "too large"),
        ("flights,1,2", "flights-1 is listed twice"),
        ("topic,partition,offset", "not a number"),
    ],
)
def test_the_error_for_an_invalid_line_names_it(line: str, said: str) -> None:
    with pytest.raises(MalformedValue) as refused:
        read_csv(["flights,1,1", line], ["delays"], "f.csv")
    assert str(refused.value).startswith("f.csv:2: ")
    assert said in str(refused.value)


def test_a_file_with_only_other_groups_is_refused() -> None:
    with pytest.raises(MalformedValue, match="lists no partitions of group delays"):
        read_csv(["other,flights,0,1"], ["delays"], "f.csv")


def test_a_rule_names_its_instant_in_utc() -> None:
    assert str(ResetRule(RuleKind.TO_TIME, time_ms("2026-01-31T12:00:00-05:00"))) == "to-time 2026-01-31T17:00:00.000Z"
    for number in (0, 1 << 62):
        assert str(number) in str(ResetRule(RuleKind.TO_TIME, number))


def test_a_group_that_does_not_exist_yet_can_be_looked_at_without_being_created() -> None:
    store = connected_store()
    for path in layout.PERSISTENT_ROOTS:
        store.ensure_path(path)
    store.ensure_path(layout.BROKER_TOPICS)
    store.create(layout.broker_topic("flights"), b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    directory = GroupDirectory(cast("Any", SimpleNamespace(store=store)))
    acting = Acting("me", "", 1.0, print)
    wanted = [("new", directory.of(GroupKind.MANAGED))]
    (found,) = directory.resettable(wanted, "to-latest", acting, ["new"])
    assert (found.there, found.known, found.committed) == (BOTH, PartitionSet(), {})
    assert store.exists(layout.group("new")) is None
    with pytest.raises(NotFound):
        directory.resettable(wanted, "to-latest", acting)
