"""Tests of ``consumer_groups_per_topic`` and ``groups_with_wildcard_topics``."""

from kafka_coord.coordinator.memory import GroupRegistry
from kafka_coord.model import Member, Subscription


def member(name: str, subscription: Subscription) -> Member:
    return Member(consumer=name, incarnation=1, subscription=subscription)


def matched(pattern: str, *topics: str, exclude: bool = False) -> Subscription:
    """A subscription with a pattern that has been matched with these topics, as after a pass."""
    subscription = Subscription.matching(pattern, exclude=exclude)
    for topic in topics:
        subscription.wants(topic)
    return subscription


def test_a_group_with_a_static_subscription_is_found_only_by_its_topics():
    registry = GroupRegistry()
    registry.update("delays", [member("c1", Subscription.to(["flights", "routes"]))])
    assert registry.groups_for_topic("flights") == {"delays"}
    assert registry.groups_for_topic("planes") == set()
    assert registry.consumer_groups_per_topic == {"flights": {"delays"}, "routes": {"delays"}}


def test_a_pattern_makes_the_group_a_wildcard_group():
    registry = GroupRegistry()
    registry.update("audit", [member("c1", matched("fl.*|routes", "flights", "routes", "myflights"))])
    assert registry.groups_with_wildcard_topics == {"audit"}
    assert registry.groups_for_topic("flights") == {"audit"}
    assert registry.groups_for_topic("routes") == {"audit"}
    assert registry.groups_for_topic("myflights") == set()


def test_an_exclude_pattern_matches_all_topics_except_its_own_and_internal_ones():
    registry = GroupRegistry()
    subscription = matched("private.*", "flights", "private-1", "__consumer_offsets", exclude=True)
    registry.update("all", [member("c1", subscription)])
    assert registry.groups_for_topic("flights") == {"all"}
    assert registry.groups_for_topic("private-1") == set()
    assert registry.groups_for_topic("__consumer_offsets") == set()


def test_interests_follow_the_newest_members():
    registry = GroupRegistry()
    registry.update("g", [member("c1", Subscription.to(["a"])), member("c2", Subscription.matching("b.*"))])
    registry.update("g", [member("c1", Subscription.to(["c"]))])
    assert registry.groups_for_topic("a") == set()
    assert registry.groups_for_topic("b1") == set()
    assert registry.groups_for_topic("c") == {"g"}
    assert registry.groups_with_wildcard_topics == set()
    assert "a" not in registry.consumer_groups_per_topic


def test_a_dropped_group_is_not_found():
    registry = GroupRegistry()
    registry.update("g", [member("c1", Subscription.to(["a"])), member("c2", Subscription.matching(".*"))])
    registry.drop("g")
    assert registry.groups_for_topic("a") == set()
    assert registry.consumer_groups_per_topic == {}
