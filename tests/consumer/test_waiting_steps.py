"""When a consumer waits, goes on, and loses its membership: the connector, stepped by the test."""

from __future__ import annotations

import logging

import pytest

from kafka_coord.errors import MembershipLost, StoreUnavailable
from kafka_coord.model import CommandId, CommandType, PartitionSet, StopFetcher
from kafka_coord.zk.store import SessionState
from tests.consumer.stepped import PARTITION, REGISTRATION, Member

_LEASE_S = 5.0
STOP = CommandId(12, CommandType.STOP_FETCHER, "stop-0000000012")


def _no_answer(_watcher: object = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
    raise StoreUnavailable("no answer")


@pytest.fixture
def member() -> Member:
    """A member that holds a partition, has records in hand, and whose lease ends after a while."""
    member = Member()
    member.hold()
    member.connector.step()
    member.session.lease = member.clock.monotonic() + _LEASE_S
    return member


def silence(member: Member, seconds: float) -> None:
    """ZooKeeper has not answered for ``seconds``. The connector steps as often as it wants to."""
    member.session.state = SessionState.SUSPENDED
    until = member.clock.monotonic() + seconds
    while member.clock.monotonic() < until:
        member.step_when_due()


def answers(member: Member) -> None:
    member.session.state = SessionState.CONNECTED
    member.session.began = member.clock.monotonic()
    member.session.lease = member.clock.monotonic() + _LEASE_S


def test_until_the_lease_ends_the_consumer_hands_out(member: Member):
    member.session.state = SessionState.SUSPENDED
    member.clock.advance(_LEASE_S - 1)
    member.connector.step()
    assert member.connector.may_hand_out()
    assert not member.connector.waits


def test_then_it_waits_keeps_its_partitions_and_says_so_once(member: Member, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        silence(member, _LEASE_S + 60)
    assert (member.connector.waits, member.connector.may_hand_out()) == (True, False)
    assert member.connector.registration is not None
    assert set(member.application.held_partitions()) == {PARTITION}
    assert member.lost == []
    assert [one.levelname for one in caplog.records if one.message.startswith("waiting")] == ["WARNING"]


def test_while_it_waits_it_does_not_step_in_a_busy_loop(member: Member):
    silence(member, _LEASE_S + 1)
    due = member.connector.step()
    assert due is not None
    assert due >= member.clock.monotonic() + 0.1


def test_it_does_not_either_if_zookeeper_falls_silent_before_it_has_listed_its_channel():
    member = Member()
    member.channel.outstanding = _no_answer  # type: ignore[method-assign]
    member.session.lease = member.clock.monotonic() + _LEASE_S
    member.connector.step()
    assert member.connector.registration is not None
    member.session.state = SessionState.SUSPENDED
    due = member.connector.step()
    assert due is not None
    assert due >= member.clock.monotonic() + 0.1
    assert not member.connector.waits


def test_a_subscription_that_changes_while_it_waits_is_registered_afterwards(member: Member):
    silence(member, _LEASE_S + 1)
    member.connector.register_again()
    silence(member, 1)
    assert member.channel.registrations == 1
    member.application.finish()
    answers(member)
    for _ in range(3):
        member.connector.step()
    assert (member.channel.registrations, member.connector.counters.losses) == (2, 0)
    assert member.channel.committed_offsets == [{PARTITION: 10}]


def test_while_it_waits_no_commit_is_done(member: Member):
    silence(member, _LEASE_S + 1)
    member.application.finish()
    commit = member.connector.commit({PARTITION: 10})
    member.connector.step()
    assert not commit.done()
    answers(member)
    member.connector.step()
    assert commit.result(0) is None
    assert member.channel.committed_offsets == [{PARTITION: 10}]


def test_when_zookeeper_answers_it_hands_out_only_once_it_has_listed_its_channel(member: Member):
    silence(member, _LEASE_S + 1)
    answers(member)
    listings = member.channel.listings
    assert not member.connector.may_hand_out()
    member.connector.step()
    assert (member.channel.checks, member.channel.listings > listings) == (1, True)
    assert (member.connector.may_hand_out(), member.connector.waits) == (True, False)
    assert member.connector.counters.losses == 0


def test_a_pause_that_the_connector_has_not_noticed_counts_too(member: Member):
    """The connector's thread was busy while the lease ended and began again."""
    member.clock.advance(_LEASE_S + 1)
    answers(member)
    assert not member.connector.may_hand_out()
    member.connector.step()
    assert member.connector.may_hand_out()
    assert member.connector.counters.waits == 1


def test_a_stop_that_arrived_meanwhile_is_carried_out(member: Member):
    silence(member, _LEASE_S + 1)
    member.application.finish()
    answers(member)
    member.channel.commands[STOP] = StopFetcher(1, 1, REGISTRATION.incarnation, PartitionSet.of([PARTITION]), "moves")
    with pytest.raises(AssertionError):  # it acknowledges the stop, which the channel by hand does not answer
        member.connector.step()
    assert member.stopped == [PartitionSet.of([PARTITION])]


def test_it_loses_its_membership_if_it_was_evicted_meanwhile(member: Member):
    silence(member, _LEASE_S + 1)
    member.channel.registered = False
    answers(member)
    member.connector.step()
    assert member.lost == [PartitionSet.of([PARTITION])]


def test_it_loses_its_membership_if_its_token_was_taken_meanwhile(member: Member):
    silence(member, _LEASE_S + 1)
    member.channel.its_own = False
    answers(member)
    member.connector.step()
    assert member.lost == [PartitionSet.of([PARTITION])]


def test_it_loses_its_membership_if_its_session_has_ended_meanwhile(member: Member):
    silence(member, _LEASE_S + 1)
    commit = member.connector.commit({PARTITION: 10})
    answers(member)
    member.session.session_id = 2
    member.connector.step()
    assert member.lost == [PartitionSet.of([PARTITION])]
    with pytest.raises(MembershipLost):
        commit.result(0)


def test_a_commit_without_an_answer_is_sent_again(member: Member):
    member.application.finish()
    member.channel.unanswered = [StoreUnavailable("no answer")]
    commit = member.connector.commit({PARTITION: 10})
    member.connector.step()
    silence(member, _LEASE_S + 1)
    assert not commit.done()
    answers(member)
    member.connector.step()
    assert commit.result(0) is None


def test_a_shorter_rebalance_timeout_ends_the_handing_out_earlier(member: Member):
    member.channel.rebalance_timeout_s = 2.0
    member.session.lease = float("inf")
    listed_at = member.clock.monotonic()
    assert member.connector.hands_out_until() == listed_at + 2.0
    silence(member, 3.0)
    assert member.connector.waits
    member.session.state = SessionState.CONNECTED
    member.connector.step()
    assert (member.connector.may_hand_out(), member.connector.waits) == (True, False)


def test_the_channel_is_listed_often_enough_for_a_short_rebalance_timeout(member: Member):
    member.channel.rebalance_timeout_s = 0.6
    member.session.lease = float("inf")
    member.connector._commands.look_again()
    member.connector.step()
    until = member.clock.monotonic() + 10
    while member.clock.monotonic() < until:
        assert member.connector.may_hand_out()
        member.step_when_due()
    assert member.connector.counters.waits == 0
