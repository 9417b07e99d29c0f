"""Tests of how subscriptions of KIP-848 clients are translated into those of members."""

from __future__ import annotations

import pytest

from kafka_coord.errors import InvalidPattern
from kafka_coord.frontends.kafka.managed.topics import Topics
from kafka_coord.model import Subscription


@pytest.mark.parametrize(
    ("topics", "wanted", "others"),
    [
        (Topics(frozenset({"a.b"})), {"a.b"}, {"aXb"}),
        (Topics(frozenset({"a.b", "c"}), "d{1,2}"), {"a.b", "c", "d", "dd"}, {"aXb", "d1", "d2", "ddd"}),
        (Topics(regex="x,y|z"), {"z"}, {"x", "y"}),
        (Topics(regex="a b|^gates$"), {"gates"}, {"ab", "a", "b"}),
        (Topics(frozenset(), ""), set(), {"a"}),
        (Topics(regex=".*"), {"a", "b"}, set()),
    ],
)
def test_topics_that_match_a_name_or_the_regular_expression_are_subscribed(
    topics: Topics, wanted: set[str], others: set[str]
) -> None:
    subscription = topics.subscription()
    read = Subscription.from_json(subscription.to_json(), "here")
    assert {topic for topic in wanted | others if read.wants(topic)} == wanted


def test_fields_that_a_heartbeat_omits_have_not_changed() -> None:
    before = Topics(frozenset({"a"}), "b")
    assert Topics().since(before) == before
    assert Topics(regex="").since(before) == Topics(frozenset({"a"}), "")
    assert Topics(frozenset({"c"})).since(Topics()) == Topics(frozenset({"c"}), "")


@pytest.mark.parametrize("regex", ["(", "(a)\\1", ".{0,999}.{0,999}"])
def test_a_hostile_regular_expression_is_refused(regex: str) -> None:
    with pytest.raises(InvalidPattern):
        Topics(regex=regex).subscription()
