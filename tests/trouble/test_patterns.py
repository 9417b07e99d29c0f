"""Patterns that are wrong, huge or intentionally slow: the engine takes linear time, and other groups do not even wait
for that."""

from __future__ import annotations

import json

import pytest

from kafka_coord.errors import InvalidPattern
from kafka_coord.model import Subscription
from kafka_coord.model.names import MAX_PATTERN_CHARS, _remembered, topic_pattern
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create
from tests.coordinator.harness import World
from tests.trouble.conftest import put
from tests.waiting import eventually

TOPICS = 3_000
SLOW = "(a?){1000}b|(.*a){30}x"
"""Takes about 18 ms for a topic name of 240 characters, so a minute for all topics."""


@pytest.mark.parametrize(
    "pattern",
    ["(", "a{2000}", r"(a)\1", "(?=a)b", "a" * (MAX_PATTERN_CHARS + 1), ".{999}" * 9, "(.*a){20}" * 400],
    ids=lambda p: p[:12],
)
def test_an_unsupported_pattern_is_refused_at_once_with_the_reason(pattern: str):
    compiled = _remembered.cache_info().misses
    for _ in range(50):
        with pytest.raises(InvalidPattern, match="topic pattern"):
            Subscription.matching(pattern)
    assert _remembered.cache_info().misses <= compiled + 1, "a refused pattern must not be compiled again"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+b", "(a*)*c", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_patterns_that_take_exponential_time_elsewhere_take_linear_time(pattern: str):
    subscription = Subscription.matching(pattern)
    assert not any(subscription.wants("a" * n + "!") for n in range(1, 240))  # a backtracking engine would take forever


def test_the_result_of_a_match_is_remembered():
    pattern = topic_pattern("known-.*")
    assert not pattern.knows("known-1")
    assert pattern.matches("known-1")
    assert pattern.knows("known-1")
    assert not topic_pattern("known-.*").knows("known-2")


def test_a_pattern_may_list_hundreds_of_topics():
    names = [f"team-{n:03}.some-topic-of-theirs-{n * 7919}" for n in range(230)]
    subscription = Subscription.matching("|".join(names))
    assert [name for name in names if not subscription.wants(name)] == []
    assert not subscription.wants("team-000.other")


@pytest.mark.zookeeper
@pytest.mark.parametrize("pattern", ["(", "a" * 100_000, ".{999}" * 9, "[z-a]"], ids=lambda p: p[:12])
def test_a_registration_with_an_unsupported_pattern_is_reported(world: World, said, bystander, pattern):
    value = {"version": 1, "subscription": {pattern: 1}, "pattern": "white_list"}
    put(world, layout.registration("wild", "w1"), json.dumps(value).encode())
    world.instance(1).start_elected()
    said("cannot read path=", layout.registration("wild", "w1"), "topic pattern", "repair or stop that consumer")
    bystander()


@pytest.mark.zookeeper
def test_slow_patterns_over_thousands_of_topics_delay_no_other_group(world: World, said, bystander):
    data = json.dumps({"version": 1, "partitions": {"0": [1]}}).encode()
    names = ["a" * 236 + f"{n:04}" for n in range(TOPICS)]
    for at in range(0, TOPICS, 1_000):
        world.store.multi([Create(layout.broker_topic(name), data) for name in names[at : at + 1_000]])
    world.instance(1).start_elected()
    for n in range(3):  # three members in each of two groups, with different patterns
        for group in ("wild", "wilder"):
            world.consumer(f"w{n}", group=group, subscription=Subscription.matching(f"{SLOW}|{n}{group}")).join()
    said("matching slow patterns", "group=wild ")
    bystander()
    world.kafka.topic("newcomer", 1)
    bystander()
    w1 = world.consumer("w1", group="greedy", subscription=Subscription.matching("(a+)+.*")).join()
    eventually(lambda: len(w1.owned) > TOPICS / 3)  # the capacity of a ledger with names this long
    said("group=greedy", "the ledger of w1 has no room for more partitions")
    others = [f"w{n}" for n in (2, 3)]
    for name in others:
        world.consumer(name, group="greedy", subscription=Subscription.matching("(a+)+.*")).join()
    world.settles("w1", *others, group="greedy", partitions=TOPICS)
