"""Offsets of topics that no member subscribes to any more are marked, and are in no total."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_coord.cli.groups import show
from kafka_coord.groups.group import NOT_SUBSCRIBED, LagTotal
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.offsets import Committed, offset_rows
from kafka_coord.model import Member, Observation, Subscription, TopicInfo, TopicPartition, Unreadable
from kafka_coord.model.offsets import LogRange

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
    assert LagTotal.of_rows(offset_rows(seen, OFFSETS, LOGS)) == LagTotal(10, 10, 0, 0, None, None)


def test_a_busy_topic_that_nobody_subscribes_to_is_not_hot() -> None:
    service = LagService()
    topics = {name: TopicInfo(name, frozenset({0, 1}), "4711") for name in ("flights", "fares")}
    seen = replace(group(Subscription.to(["flights"])), topics=topics)
    offsets = Committed({TopicPartition(topic, number): 0 for topic in topics for number in (0, 1)})
    for minute in range(10):
        ends = {TopicPartition(topic, number): 10_000 * minute * (1 - number) for topic in topics for number in (0, 1)}
        logs = {tp: LogRange(0, end) for tp, end in ends.items()}
        service.add("delays", 60_000 * minute, offset_rows(seen, offsets, logs))
    assert {hot.partition.topic for hot in service.trends("delays").hot} == {"flights"}


def test_the_total_of_a_description_names_the_partitions_that_it_counts() -> None:
    description: Any = SimpleNamespace(offsets=offset_rows(group(Subscription.to(["flights"])), OFFSETS, LOGS))
    assert show._total([description]) == "lag: 10 in 1 partition, at most 10 in one partition"


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
