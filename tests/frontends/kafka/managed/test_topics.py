"""Tests of how subscriptions of KIP-848 clients are translated into those of members."""

from __future__ import annotations

import pytest

from kafka_coord.errors import InvalidPattern
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.model import Subscription


@pytest.mark.parametrize(
    ("topics", "wanted", "others"),
    [
        (ManagedTopics(frozenset({"a.b"})), {"a.b"}, {"aXb"}),
        (ManagedTopics(frozenset({"a.b", "c"}), "d{1,2}"), {"a.b", "c", "d", "dd"}, {"aXb", "d1", "d2", "ddd"}),
        (ManagedTopics(regex="x,y|z"), {"z"}, {"x", "y"}),
        (ManagedTopics(regex="a b|^gates$"), {"gates"}, {"ab", "a", "b"}),
        (ManagedTopics(frozenset(), ""), set(), {"a"}),
        (ManagedTopics(regex=".*"), {"a", "b"}, set()),
    ],
)
def test_topics_that_match_a_name_or_the_regular_expression_are_subscribed(
    topics: ManagedTopics, wanted: set[str], others: set[str]
) -> None:
    subscription = topics.subscription()
    read = Subscription.from_json(subscription.to_json(), "here")
    assert {topic for topic in wanted | others if read.wants(topic)} == wanted


def test_fields_that_a_heartbeat_omits_have_not_changed() -> None:
    before = ManagedTopics(frozenset({"a"}), "b")
    assert ManagedTopics().since(before) == before
    assert ManagedTopics(regex="").since(before) == ManagedTopics(frozenset({"a"}), "")
    assert ManagedTopics(frozenset({"c"})).since(ManagedTopics()) == ManagedTopics(frozenset({"c"}), "")


@pytest.mark.parametrize("regex", ["(", "(a)\\1", ".{0,999}.{0,999}"])
def test_a_hostile_regular_expression_is_refused(regex: str) -> None:
    with pytest.raises(InvalidPattern):
        ManagedTopics(regex=regex).subscription()
