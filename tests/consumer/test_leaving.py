"""Tests of which offsets a leave stores, and when."""

from __future__ import annotations

import pytest

from kafka_coord.errors import MembershipLost, StoreUnavailable
from kafka_coord.model import PartitionSet
from tests.consumer.stepped import PARTITION, Member
from tests.coordinator.clock import ManualClock


@pytest.fixture
def member() -> Member:
    made = Member()
    made.hold()
    return made


def test_a_leave_waits_for_the_records_in_hand_and_stores_their_offsets(member: Member) -> None:
    member.connector.close(5.0)
    member.connector.step()
    assert member.channel.attempts == []
    assert member.stopped == []
    woken = member.woken

    assert not member.application.poll(10), "no more records may be handed out"
    assert member.woken > woken
    member.connector.step()

    assert member.channel.attempts == [{PARTITION: 10}]
    assert member.stopped == [PartitionSet.of([PARTITION])]
    assert member.connector.done


def test_offsets_of_records_still_in_hand_at_the_timeout_are_not_stored(member: Member) -> None:
    member.application.poll(10)  # the application returns from the first ten records, and has ten more in hand
    member.connector.close(5.0)
    while member.step_when_due():
        assert member.channel.attempts == []
    assert member.clock.monotonic() == pytest.approx(ManualClock().monotonic() + 5.0)
    assert member.channel.attempts == [{PARTITION: 10}]


def test_a_leave_does_not_wait_for_an_application_that_will_not_return(member: Member) -> None:
    member.connector.close(5.0, in_hand=lambda: False)
    member.connector.step()
    assert member.channel.attempts == [{}]
    assert member.connector.done


def test_each_attempt_to_leave_stores_the_offsets_consumed_by_then(member: Member) -> None:
    member.channel.failures = [StoreUnavailable("away"), StoreUnavailable("away")]
    member.connector.close(5.0, in_hand=lambda: False)
    member.connector.step()
    member.application.finish()
    for _ in range(2):
        member.clock.advance(1.0)
        member.connector.step()
    assert member.channel.attempts == [{}, {PARTITION: 10}, {PARTITION: 10}]
    assert len(member.stopped) == 1
    assert member.connector.done


def test_a_leave_whose_reply_was_lost_does_not_count_as_a_lost_membership(member: Member) -> None:
    member.application.finish()
    member.channel.failures = [StoreUnavailable("the reply was lost"), MembershipLost("no longer registered")]
    member.connector.close(5.0)
    member.connector.step()
    member.connector.step()
    member.connector.step()
    assert member.connector.done
    assert (member.lost, member.connector.counters.losses) == ([], 0)


def test_without_zookeeper_a_leave_ends_at_its_timeout(member: Member) -> None:
    member.application.finish()
    member.channel.failures = [StoreUnavailable("away")] * 100
    member.connector.close(5.0)
    while member.step_when_due():
        assert not member.connector.done
    assert member.connector.done
    assert member.clock.monotonic() < ManualClock().monotonic() + 6.0


def test_the_application_may_commit_while_the_leave_waits_for_it(member: Member) -> None:
    member.connector.close(5.0)
    member.connector.step()
    member.application.finish()
    late = {PARTITION: 10}
    before = member.connector.commit({PARTITION: 5})
    member.channel.commit = lambda registration, offsets: frozenset()  # type: ignore[method-assign]
    member.connector.step()
    assert before.result(0) is None
    assert member.channel.attempts == [late]
    assert member.connector.commit(late).result(0) is None, "the leave itself has stored this offset"
    assert member.connector.commit({PARTITION: 11}).exception(0) is not None
