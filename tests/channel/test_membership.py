"""Tests of the consumer's end of the socket channel as a state machine without I/O: its inputs and outputs."""

from __future__ import annotations

import pytest

from kafka_coord.channel.membership import ChannelChanged, HangUp, Membership, NotYet, Send, SessionChanged, WakeWaiters
from kafka_coord.channel.operations import Registration
from kafka_coord.errors import NoAuth, StoreUnavailable
from kafka_coord.model import Member, Subscription, TopicPartition
from kafka_coord.zk.store import SessionState

MEMBER = Member("c1", 0, Subscription.to(["flights"]), session_timeout_ms=10_000)
REGISTERED = {
    "v": 1, "id": 1, "type": "answer",
    "consumer_id": "c1", "incarnation": 99, "session_timeout_ms": 10_000, "ping_interval_ms": 3_333, "epoch": 1,
}  # fmt: skip


@pytest.fixture
def membership() -> Membership:
    return Membership("delays", "c1", resume_key="mine", auto_commit=True)


def registered(membership: Membership, at: float = 0.0) -> Registration:
    membership.connected(at)
    with pytest.raises(NotYet):
        membership.register(MEMBER, at)
    membership.received(REGISTERED, at + 1.0)
    found = membership.register(MEMBER, at + 1.0)
    membership.instructions()
    return found


def test_a_connection_and_a_registration_give_their_instructions_in_order(membership: Membership) -> None:
    membership.connected(0.0)
    assert membership.instructions() == [SessionChanged(SessionState.CONNECTED), WakeWaiters()]
    with pytest.raises(NotYet):
        membership.register(MEMBER, 0.5)
    (send,) = membership.instructions()
    assert isinstance(send, Send)
    assert (send.frame["id"], send.frame["type"]) == (1, "register")
    with pytest.raises(NotYet):
        membership.register(MEMBER, 0.6)
    assert membership.instructions() == [], "the request must be sent once"
    membership.received(REGISTERED, 0.9)
    assert membership.instructions() == [WakeWaiters()]
    assert membership.register(MEMBER, 0.9).incarnation == 99
    assert membership.lease_deadline() == 0.5 + 9.0, "the lease must begin when the request was sent"


def test_the_lease_depends_only_on_the_given_times(membership: Membership) -> None:
    registered(membership)
    membership.lost()
    membership.connected(8.9)
    assert [i.frame["type"] for i in membership.instructions() if isinstance(i, Send)] == ["resume"]
    membership.lost()
    membership.connected(9.1)
    resume = next(i for i in membership.instructions() if isinstance(i, Send))
    assert (resume.frame["type"], membership.lease_deadline()) == ("resume", 9.0)


def test_a_lease_that_begins_again_says_when(membership: Membership) -> None:
    registered(membership)
    began = membership.lease_began()
    membership.lost()
    membership.connected(20.0)
    resume = next(i for i in membership.instructions() if isinstance(i, Send))
    assert membership.lease_began() == began
    membership.received({"v": 1, "id": resume.frame["id"], "type": "answer", "outstanding": []}, 20.5)
    assert (membership.lease_began(), membership.lease_deadline()) == (20.5, 29.0)


def test_after_a_failed_send_no_request_is_sent_on_that_connection(membership: Membership) -> None:
    found = registered(membership)
    membership.received({"v": 1, "id": 1, "type": "ping", "heard": 0, "done": 0}, 2.0)
    assert [type(i) for i in membership.instructions()] == [Send]
    membership.send_failed("broken pipe")
    with pytest.raises(StoreUnavailable, match="broken pipe"):
        membership.commit(found, {TopicPartition("flights", 0): 1})
    assert membership.instructions() == []
    assert membership.lease_deadline() == 9.0, "the membership must continue"


def test_the_end_of_a_membership_is_reported_before_the_connection_counts_as_usable(
    membership: Membership,
) -> None:
    registered(membership)
    membership.lost()
    membership.connected(3.0)
    membership.instructions()
    refusal = {"v": 1, "id": 1, "type": "error", "code": "unknown-membership", "message": "gone"}
    membership.received(refusal, 4.0)
    lost, connected = SessionChanged(SessionState.LOST), SessionChanged(SessionState.CONNECTED)
    assert membership.instructions() == [lost, WakeWaiters(), ChannelChanged(), connected, WakeWaiters(), WakeWaiters()]


def test_abandon_closes_the_connection(membership: Membership) -> None:
    membership.abandon(registered(membership))
    assert membership.instructions() == [HangUp()]
    assert membership.registration is None


def test_a_response_before_the_close_reaches_the_caller(membership: Membership) -> None:
    found = registered(membership)
    with pytest.raises(NotYet):
        membership.leave(found, {}, for_good=True)
    membership.received({"v": 1, "id": 2, "type": "answer", "refused": ["gone"]}, 2.0)
    membership.lost()
    assert membership.leave(found, {}, for_good=True) == {"gone"}
    with pytest.raises(StoreUnavailable):
        membership.leave(found, {}, for_good=True)


def test_a_refusal_before_the_close_reaches_the_caller_and_the_next_connection_starts_over(
    membership: Membership,
) -> None:
    membership.connected(0.0)
    refusal = {"v": 1, "type": "error", "code": "not-authenticated", "message": "no user has this"}
    with pytest.raises(NotYet):
        membership.register(MEMBER, 0.0)
    membership.received({"id": 1, **refusal}, 0.1)
    membership.lost()
    with pytest.raises(NoAuth):
        membership.register(MEMBER, 0.2)
    membership.connected(1.0)
    with pytest.raises(NotYet):
        membership.register(MEMBER, 1.0)
    membership.received({"id": 1, **refusal}, 1.1)
    membership.lost()
    membership.connected(2.0)
    with pytest.raises(NotYet):
        membership.register(MEMBER, 2.0)


def test_after_a_resume_a_leave_waits_until_an_outstanding_start_is_sent_again(
    membership: Membership,
) -> None:
    found, tp = registered(membership), TopicPartition("flights", 0)
    start = {"command": "start-0000000001", "generation": 1, "epoch": 1, "incarnation": 99}
    start |= {"v": 1, "id": 1, "type": "start-fetcher", "partitions": {"flights": {"0": {"offset": 5, "stream": 0}}}}
    membership.received(start, 2.0)
    (command,) = membership.outstanding()
    with pytest.raises(NotYet):
        membership.acknowledge(found, command, {tp: 5})
    membership.lost()
    membership.connected(3.0)
    membership.received({"v": 1, "id": 1, "type": "answer", "outstanding": ["start-0000000001"]}, 3.1)
    membership.instructions()
    with pytest.raises(NotYet):
        membership.leave(found, {tp: 9}, for_good=True)
    assert membership.instructions() == [], "the coordinator would drop the offset"
    membership.received({**start, "id": 1}, 3.2)
    with pytest.raises(NotYet):
        membership.leave(found, {tp: 9}, for_good=True)
    sent = [one.frame for one in membership.instructions() if isinstance(one, Send)]
    assert [(frame["type"], frame.get("offsets")) for frame in sent] == [
        ("answer", {"flights": {"0": 5}}),
        ("leave", {"flights": {"0": 9}}),
    ]


def test_a_confirmation_of_an_earlier_offer_is_not_taken_for_one_of_the_same_offset_after_a_seek_back(
    membership: Membership,
) -> None:
    registration, tp = registered(membership), TopicPartition("flights", 0)

    def ping(number: int, heard: int) -> None:
        membership.received({"v": 1, "id": number, "type": "ping", "heard": heard, "done": 0}, 1.0 + number)

    assert membership.auto_commit(registration, {tp: 2}) == {}
    ping(1, 0)
    assert membership.auto_commit(registration, {tp: 0}) == {}
    ping(2, 0)
    ping(3, 1)
    assert membership.auto_commit(registration, {tp: 2}) == {}, "0 is stored after what was confirmed"
    ping(4, 2)
    assert membership.auto_commit(registration, {}) == {tp: 0}
    ping(5, 4)
    assert membership.auto_commit(registration, {}) == {tp: 2}
