"""Tests of what a member says about topics and coordinators that do not exist."""

from __future__ import annotations

import logging

import pytest

from kafka_coord.consumer.troubles import Absences, Present
from kafka_coord.errors import StoreUnavailable
from kafka_coord.model import Subscription
from kafka_coord.testing.fake_cluster import FakeCluster
from tests.waiting import eventually

pytest_plugins = ["kafka_coord.testing.fixtures"]


class Member:
    """A member whose looks the test answers."""

    def __init__(self, subscription: Subscription, assignor: str | None = None) -> None:
        self.topics: set[str] = set()
        self.elected: bool | None = True
        self.known: frozenset[str] = frozenset()
        self.away = False
        self.now = 0.0
        self.assignor = self.told = ""
        self.absences = Absences(
            *("g", "c", self.look),
            subscription=lambda: subscription,
            known=lambda: self.known,
            assignor=assignor,
            told=lambda: self.told,
        )

    def look(self, subscription: Subscription, known: frozenset[str]) -> Present:
        del subscription
        if self.away:
            raise StoreUnavailable("away")
        return Present(frozenset(self.topics) | known, self.elected, self.assignor)

    def pass_s(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.absences.step(self.now)) <= until:
            self.now = due
        self.now = until


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage() for one in caplog.records if one.name == Absences.__module__ and one.levelno >= logging.WARNING
    ]


def test_a_missing_topic_is_said_once_and_again_after_it_has_existed(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(Subscription.to(["flights", "filghts"]))
    member.topics = {"flights"}
    member.pass_s(3_600)
    (said,) = warnings(caplog)
    assert "filghts" in said
    assert "flights" not in said.replace("filghts", "")
    member.topics |= {"filghts"}
    member.pass_s(60)
    member.topics -= {"filghts"}
    member.pass_s(60)
    assert len(warnings(caplog)) == 2


def test_a_topic_that_becomes_missing_later_is_said_alone(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(Subscription.to(["a", "b"]))
    member.topics = {"a"}
    member.pass_s(60)
    member.topics = set()
    member.pass_s(60)
    assert [": a consumer" in one for one in warnings(caplog)] == [False, True]


def test_a_pattern_that_matches_nothing_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(Subscription.matching("flights-[0-9]{1,3}"))
    member.topics = {"flights", "__consumer_offsets"}
    member.pass_s(3_600)
    (said,) = warnings(caplog)
    assert "flights-[0-9]{1,3}" in said


def test_a_member_with_everything_it_needs_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for subscription in (Subscription.to(["flights"]), Subscription.matching("fl.*")):
        member = Member(subscription)
        member.known = frozenset({"flights"})
        member.pass_s(3_600)
    assert not warnings(caplog)


def test_an_election_that_is_quickly_over_is_not_said_and_a_missing_coordinator_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = Member(Subscription.to(["flights"]))
    member.topics = {"flights"}
    member.elected = False
    member.pass_s(3)
    member.elected = True
    member.pass_s(60)
    assert not warnings(caplog)
    member.elected = False
    member.pass_s(3_600)
    (said,) = warnings(caplog)
    assert "no coordinator is elected" in said


def test_nothing_is_said_of_what_could_not_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(Subscription.to(["flights"]))
    member.away = True
    member.pass_s(600)
    assert not warnings(caplog)


def test_a_consumer_says_at_warning_which_of_its_topics_does_not_exist(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("flights")
    fake_cluster.consumer(group="g", topics=["flights", "filghts"])
    eventually(lambda: any("filghts" in one for one in warnings(caplog)), within_s=10)


def test_an_assignor_that_the_group_does_not_use_is_said_once_with_the_one_in_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = Member(Subscription.to(["flights"]), assignor="stciky")
    member.topics = {"flights"}
    member.pass_s(60)
    assert warnings(caplog) == [], "the group has no target yet"
    member.assignor = "sticky"
    member.pass_s(3_600)
    (said,) = warnings(caplog)
    assert said.startswith("the group uses the assignor sticky, not stciky consumer=c group=g: ")


def test_a_member_that_cannot_look_is_told_the_other_assignor_by_its_command(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(Subscription.to(["flights"]), assignor="stciky")
    member.topics, member.elected = {"flights"}, None
    member.pass_s(60)
    assert warnings(caplog) == []
    member.told = "sticky"
    member.pass_s(3_600)
    (said,) = warnings(caplog)
    assert said.startswith("the group uses the assignor sticky, not stciky consumer=c group=g: ")


def test_an_assignor_that_the_group_is_about_to_use_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(Subscription.to(["flights"]), assignor="range")
    member.topics, member.assignor = {"flights"}, "sticky"
    member.pass_s(1)
    member.assignor = "range"
    member.pass_s(3_600)
    assert warnings(caplog) == []
    nobody_asked = Member(Subscription.to(["flights"]))
    nobody_asked.topics, nobody_asked.assignor = {"flights"}, "weighted"
    nobody_asked.pass_s(3_600)
    assert warnings(caplog) == []
