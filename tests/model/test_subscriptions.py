"""Tests of subscriptions, and of the cost of topic patterns."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_coord.errors import InvalidName, InvalidPattern, MalformedValue
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.model import Member, Subscription
from kafka_coord.model.member import INTERNAL_TOPICS
from kafka_coord.model.names import group_pattern
from tests.model import values


def of_0_8(pattern: str, kind: str = "white_list") -> Subscription:
    """The subscription of a Kafka 0.8 consumer."""
    return Subscription.from_json({"subscription": {pattern: 1}, "pattern": kind}, "/x")


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("flights-[0-9]{1,3}", "flights-17"),
        ("a[,b]c", "abc"),
        ('"?a"?', "a"),
        (" ?a", "a"),
        ("(?i)FLIGHTS", "flights"),
        ("a ?", "a"),
        ("[,]?a", "a"),
        (r"a\,?", "a"),
        ("|".join(["x" * 90] * 100 + ["a"]), "a"),
        ("(a{2}){2}", "aaaa"),
    ],
)
def test_a_pattern_is_the_regular_expression_that_was_written(pattern, topic):
    assert Subscription.matching(pattern).wants(topic)
    assert not Subscription.matching(pattern, exclude=True).wants(topic)


def test_a_comma_is_no_or_except_in_the_znodes_of_old_consumers():
    assert not Subscription.matching("flights,planes.*").wants("flights")
    old = of_0_8("flights,planes.*")
    assert [topic for topic in ("flights", "planes", "planes2", "trains") if old.wants(topic)] == [
        "flights",
        "planes",
        "planes2",
    ]
    assert of_0_8(r"flights-[0-9]{1\,3}").wants("flights-17")
    assert not of_0_8("flights,planes.*", "black_list").wants("planes2")


@pytest.mark.parametrize(
    ("pattern", "instead"), [("payments,orders-.*", "payments|orders-.*"), ("a{1,2},b[,]", "a{1,2}|b[,]")]
)
def test_a_list_of_group_names_in_the_old_form_is_refused_with_the_new_spelling(pattern, instead):
    with pytest.raises(InvalidPattern, match=re.escape(repr(instead))):
        group_pattern(pattern)


@pytest.mark.parametrize("pattern", ["orders-[0-9]{1,3}", "a[^],]b", r"a\,b", "payments|orders-.*"])
def test_a_comma_that_re2_reads_as_part_of_an_element_is_not_a_list(pattern):
    group_pattern(pattern)


@pytest.mark.parametrize("topic", ["myflights", "flights2", "flight", "xflightsx"])
def test_the_whole_name_must_match(topic):
    assert not Subscription.matching("flights").wants(topic)


def test_every_alternative_must_match_the_whole_name():
    subscription = Subscription.matching("a|b")

    assert subscription.wants("a")
    assert subscription.wants("b")
    assert not subscription.wants("ab")
    assert not subscription.wants("ax")


def test_blanks_and_quotes_are_removed_as_in_kafka_0_8():
    assert of_0_8(' "flights, planes" ').wants("planes")


def test_an_exclude_pattern_matches_other_topics():
    subscription = Subscription.matching("planes.*", exclude=True)

    assert subscription.wants("flights")
    assert not subscription.wants("planes1")


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_taken_only_by_name(topic):
    assert TOPIC in INTERNAL_TOPICS
    for pattern in (".*", "__.*", f"{topic}?", f"({topic}|a)x?"):
        assert not Subscription.matching(pattern).wants(topic), pattern
        assert not of_0_8(pattern).wants(topic), pattern
    assert not Subscription.matching("planes.*", exclude=True).wants(topic)
    assert not of_0_8("planes.*", "black_list").wants(topic)
    assert Subscription.matching(f"flights|{topic}").wants(topic)
    assert of_0_8(f"flights,{topic}").wants(topic)
    assert Subscription.to([topic]).wants(topic)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|a)*b", "(a*)*(a*)*(a*)*b", "(.*a){12}x", "((a?){20}a{20}|)*c"],
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
def test_any_text_is_either_a_pattern_or_refused(pattern, exclude, topic):
    try:
        subscription = Subscription.matching(pattern, exclude=exclude)
    except InvalidPattern:
        return
    subscription.wants(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "x" * 250, "flüge", "a\n"])
def test_illegal_topic_names_are_refused_with_the_rule(topic):
    with pytest.raises(InvalidName, match="a-z A-Z 0-9"):
        Subscription.to([topic])


@pytest.mark.parametrize("streams", [0, -1, 1001, True, "1", None, 1.5])
def test_a_stream_count_out_of_range_is_refused(streams):
    with pytest.raises(MalformedValue, match=r"field 'subscription' is \{'flights'"):
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
        Member.from_json({"subscription": {"t": 1}, field: value}, "/x", consumer="c", incarnation=1)
