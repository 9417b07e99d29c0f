"""Offsets of topics that no member subscribes to any more are marked, and are in no total."""

from __future__ import annotations

import pytest

from kafka_coord.model import Member, Observation, Subscription, TopicInfo, TopicPartition, Unreadable
from kafka_coord.model.lag import LogRange
from kafka_coord.monitor.offsets import NOT_SUBSCRIBED, Committed, LagTotal, offset_rows

TOPICS = {name: TopicInfo(name, frozenset({0}), "4711") for name in ("flights", "fares")}
OFFSETS = Committed({TopicPartition("flights", 0): 90, TopicPartition("fares", 0): 0, TopicPartition("gone", 0): 0})
LOGS = {TopicPartition("flights", 0): LogRange(0, 100), TopicPartition("fares", 0): LogRange(9, 5_000)}


def group(*subscriptions: Subscription, unreadable: tuple[Unreadable, ...] = ()) -> Observation:
    members = {f"c{number}": Member(f"c{number}", number, one) for number, one in enumerate(subscriptions, 1)}
    return Observation("delays", 1, members, {}, {}, None, TOPICS, unreadable=unreadable)


def marked(seen: Observation) -> list[str]:
    return [row.topic for row in offset_rows(seen, OFFSETS, LOGS) if row.holding == NOT_SUBSCRIBED]


def test_topics_that_nobody_subscribes_to_are_marked_and_not_counted() -> None:
    seen = group(Subscription.to(["flights"]), Subscription.to(["flights"]))
    assert marked(seen) == ["fares", "gone"]
    assert LagTotal.of_rows(offset_rows(seen, OFFSETS, LOGS)) == LagTotal(10, 10, 0, 0)


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        pytest.param(group(Subscription.to(["flights", "gone"])), ["fares"], id="a topic that does not exist"),
        pytest.param(group(Subscription.matching("f.*")), ["gone"], id="a pattern"),
        pytest.param(group(), [], id="no members"),
        pytest.param(
            group(Subscription.to(["flights"]), unreadable=(Unreadable("…/ids/c2", "garbage", 7),)),
            [],
            id="a registration that cannot be read",
        ),
    ],
)
def test_a_topic_counts_while_a_member_may_subscribe_to_it(seen: Observation, left: list[str]) -> None:
    assert marked(seen) == left
