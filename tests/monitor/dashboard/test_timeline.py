"""Tests of the timeline of owners, from decisions and observations."""

from __future__ import annotations

from typing import Any

from kafka_coord.model import Decision, TopicPartition
from kafka_coord.monitor.dashboard.timeline import MAX_SPANS, Span, Timeline


def decision(generation: int, at_ms: int, moves: dict[str, Any], stopped_ms: int | None = 10) -> Decision:
    return Decision(generation, 1, "why", "sticky", at_ms, 1, 2, 0, stopped_ms=stopped_ms, settled_ms=20, moves=moves)


def tp(partition: int) -> TopicPartition:
    return TopicPartition("flights", partition)


FIRST = decision(1, 1_000, {"c1": {"gained": "flights[0-1]"}}, stopped_ms=None)
SECOND = decision(2, 2_000, {"c1": {"lost": "flights[1]"}, "c2": {"gained": "flights[1]"}})
NOW = {tp(0): "c1", tp(1): "c2"}


def test_the_history_gives_the_owners_before_the_first_observation() -> None:
    found = Timeline.of([FIRST, SECOND], NOW, 9_000)
    assert found.since_ms == 1_000
    assert found.spans == {tp(0): [Span("c1", 1_020)], tp(1): [Span("c1", 1_020, 2_010), Span("c2", 2_020)]}


def test_the_beginning_of_an_ownership_before_the_history_is_unknown() -> None:
    found = Timeline.of([SECOND], NOW, 9_000)
    assert found.since_ms == 2_000
    assert found.spans[tp(0)] == [Span("c1", None)]
    assert found.spans[tp(1)] == [Span("c1", None, 2_010), Span("c2", 2_020)]


def test_the_timeline_begins_after_a_decision_that_is_only_partly_recorded() -> None:
    for moves in (
        {"c2": {"gained": f"flights[{'1,' * 99}1]"}},
        {f"c{number}": {"gained": f"flights[{number}]"} for number in range(20)},
        {"c2": {"gained": "flights[1-]"}},
    ):
        found = Timeline.of([FIRST, decision(2, 2_000, moves)], NOW, 9_000)
        assert found.since_ms == 9_000, "nothing is known about the time before"
        assert found.spans[tp(1)] == [Span("c2", None)]


def test_a_consumer_that_stopped_and_left_is_in_the_timeline() -> None:
    lost = decision(3, 3_000, {"c2": {"lost": "flights[1]"}})
    found = Timeline.of([FIRST, SECOND, lost], {tp(0): "c1"}, 9_000)
    assert found.spans[tp(1)] == [Span("c1", 1_020, 2_010), Span("c2", 2_020, 3_010)]


def test_a_consumer_that_left_owns_its_partitions_until_the_next_decision() -> None:
    left = decision(3, 3_000, {"c1": {"gained": "flights[1]"}})
    found = Timeline.of([FIRST, SECOND, left], {tp(0): "c1", tp(1): "c1"}, 9_000)
    assert found.spans[tp(1)] == [Span("c1", 1_020, 2_010), Span("c2", 2_020, 3_000), Span("c1", 3_020)]
    found = Timeline.of([FIRST], {}, 9_000)
    assert found.spans[tp(0)] == [Span("c1", 1_020, 9_000)]


def test_later_owners_come_from_observations() -> None:
    found = Timeline.of([], {tp(0): "c1"}, 5_000)
    found.observe({tp(0): "c1"}, 6_000)
    found.observe({}, 7_000)
    found.observe({}, 8_000)
    found.observe({tp(0): "c2", tp(1): "c1"}, 9_000)
    assert found.spans[tp(0)] == [Span("c1", None, 7_000), Span("c2", 9_000)]
    assert found.spans[tp(1)] == [Span("c1", 9_000)]


def test_only_the_last_owners_of_a_frequently_moving_partition_are_kept() -> None:
    found = Timeline(0)
    for at in range(3 * MAX_SPANS):
        found.observe({tp(0): f"c{at % 2}"}, at)
    assert len(found.spans[tp(0)]) == MAX_SPANS
    assert found.spans[tp(0)][-1].from_ms == 3 * MAX_SPANS - 1
