"""Tests of subscriptions, and of the cost of topic patterns."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_coord.errors import InvalidName, InvalidPattern, MalformedValue
from kafka_coord.model import Member, Subscription
from tests.model import values


def test_a_comma_separates_alternatives():
    subscription = Subscription.matching("flights,planes.*")

    assert [topic for topic in ("flights", "planes", "planes2", "trains") if subscription.wants(topic)] == [
        "flights",
        "planes",
        "planes2",
    ]


@pytest.mark.parametrize("topic", ["myflights", "flights2", "flight", "xflightsx"])
def test_the_whole_name_must_match(topic):
    assert not Subscription.matching("flights").wants(topic)


def test_every_alternative_must_match_the_whole_name():
    subscription = Subscription.matching("a,b")

    assert subscription.wants("a")
    assert subscription.wants("b")
    assert not subscription.wants("ab")
    assert not subscription.wants("ax")


def test_blanks_and_quotes_are_removed_as_in_kafka_0_8():
    assert Subscription.matching(' "flights, planes" ').wants("planes")


def test_a_black_list_matches_other_topics_but_never_internal_ones():
    subscription = Subscription.matching("planes.*", black_list=True)

    assert subscription.wants("flights")
    assert not subscription.wants("planes1")
    assert not subscription.wants("__consumer_offsets")


def test_a_white_list_may_match_internal_topics():
    assert Subscription.matching("__consumer_offsets").wants("__consumer_offsets")


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|a)*b", "(a*)*(a*)*(a*)*b", "(.*a){12}x", "((a?){20}a{20},)*c"],
    ids=lambda pattern: pattern,
)
def test_a_hostile_pattern_takes_linear_time_or_is_refused(pattern):
    began = time.process_time()
    try:
        subscription = Subscription.matching(pattern)
        for last in "defg":
            assert not subscription.wants("a" * 248 + last)
    except InvalidPattern:
        pass
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "not a regular expression"),
        ("(?=a)a", "not a regular expression"),
        ("(?<!a)b", "not a regular expression"),
        ("(", "not a regular expression"),
        ("*", "not a regular expression"),
        ("a{1000}{1000}", "not a regular expression"),
        ("x" * 10_001, "the limit is 10000"),
    ],
    ids=lambda text: text[:20],
)
def test_an_unsupported_pattern_is_refused_with_the_reason(pattern, why):
    with pytest.raises(InvalidPattern, match=why):
        Subscription.matching(pattern)
    with pytest.raises(MalformedValue):
        Subscription.from_json({"subscription": {pattern: 1}, "pattern": "white_list"}, "/x")


@settings(max_examples=200)
@given(st.text(max_size=30), st.booleans(), values.names)
def test_any_text_is_either_a_pattern_or_refused(pattern, black_list, topic):
    try:
        subscription = Subscription.matching(pattern, black_list=black_list)
    except InvalidPattern:
        return
    subscription.wants(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "x" * 250, "flüge", "a\n"])
def test_illegal_topic_names_are_refused_with_the_rule(topic):
    with pytest.raises(InvalidName, match="a-z A-Z 0-9"):
        Subscription.to([topic])


@pytest.mark.parametrize("streams", [0, -1, 1001, True, "1", None, 1.5])
def test_a_stream_count_out_of_range_is_refused(streams):
    with pytest.raises(MalformedValue, match="streams for 'flights'; use 1 to 1000"):
        Subscription.from_json({"subscription": {"flights": streams}}, "/x")


@pytest.mark.parametrize(
    "value",
    [
        {"subscription": {"a": 1, "b": 1}, "pattern": "white_list"},
        {"subscription": {}, "pattern": "black_list"},
        {"subscription": {"a": 1}, "pattern": "grey_list"},
        {"subscription": []},
        {},
    ],
)
def test_an_invalid_subscription_is_refused(value):
    with pytest.raises(MalformedValue):
        Subscription.from_json(value, "/x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity", 0),
        ("capacity", 1.5),
        ("capacity", 1 << 63),
        ("rejoin_grace_ms", -1),
        ("rejoin_grace_ms", 7 * 24 * 3600 * 1000 + 1),
        ("session_timeout_ms", "6000"),
        ("mode", "lazy"),
        ("rack", 7),
        ("assignor", ["range"]),
    ],
)
def test_the_error_for_a_value_out_of_range_names_the_registrations_field(field, value):
    with pytest.raises(MalformedValue, match=field):
        Member.from_json({"subscription": {"t": 1}, field: value}, "c", 1, "/x")
