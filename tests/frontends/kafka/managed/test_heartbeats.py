"""Tests of KIP-848 members on the membership machine, without a clock, sockets or ZooKeeper."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.heartbeat_hold import JOIN_S, NOT_HELD_S, STEADY_S
from kafka_coord.frontends.kafka.managed.heartbeats import (
    JOIN,
    LEAVE,
    LEAVE_FOR_NOW,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from kafka_coord.frontends.kafka.managed.member import MemberCommit, MemberCommitted
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.members.machine import stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.model import CommandType, CommittedOffset, StartFetcher, StartPoint, TopicPartition
from tests.frontends.kafka.managed.play import FLIGHTS, SESSION_S, flights
from tests.frontends.kafka.managed.plays import Beats, owned
from tests.frontends.machine.house import tp


def test_a_join_is_answered_when_partitions_are_available() -> None:
    play = Beats()
    assert play.beat(JOIN) is None
    play.send(3, start=(0, 1))
    assert play.answers[1] == HeartbeatAnswer(1, Error.NONE, "m1", 3, flights(0, 1), owned(0, 1))
    assert play.beat(3, owned=owned()).assignment is None, "the client has its assignment already"
    assert play.write() == []
    play.beat(3, owned=owned(0, 1))
    (store,) = play.write()
    assert store.acknowledges is not None


def test_a_heartbeat_is_held_until_there_is_news() -> None:
    play = Beats()
    epoch = play.holding(0, 1, software="librdkafka")
    assert play.beat(epoch) is None, "it is held"
    play.send(4, stop=(1,))
    assert max(play.answers.items())[1].assignment == flights(0)
    assert play.beat(epoch) is not None, "an acknowledgement may follow this heartbeat"
    assert play.beat(epoch, owned=owned(0)) is None
    play.write()
    play.send(5, start=(2,))
    assert max(play.answers.items())[1].assignment == flights(0, 2)


def test_a_held_heartbeat_ends_when_its_client_sends_another_request_or_disconnects() -> None:
    play = Beats()
    epoch = play.holding(0, software="librdkafka")
    assert play.beat(epoch) is None
    play.house.now += 0.4
    who, token = ("delays", "m1"), play.last_token
    play.members.interrupted(*who, "another", play.house.now)
    play.pump()
    assert token not in play.answers
    play.members.interrupted(*who, token, play.house.now)
    play.pump()
    assert (play.answers[token].assignment, round(play.answers[token].interval_s, 3)) == (None, 0.4)
    assert play.beat(epoch) is None
    play.members.gone(*who, play.last_token, play.house.now, by_client=False)
    play.send(4, stop=(0,))
    assert play.last_token not in play.answers
    assert play.beat(epoch).assignment == flights()


JAVA = "apache-kafka-java"
IMPATIENT = [("kgo 1.18", 3.0), (JAVA, 4.5), ("librdkafka 2.8", 1.0)]
"""Clients, and after how long they give a held heartbeat up."""


@pytest.mark.parametrize(("software", "waited_s"), IMPATIENT)
@pytest.mark.parametrize("asks_elsewhere", [False, True])
def test_a_client_that_gives_a_held_heartbeat_up_is_answered_at_once_from_then_on(
    software: str, waited_s: float, *, asks_elsewhere: bool
) -> None:
    play = Beats()
    epoch = play.holding(0, software=software)
    assert play.beat(epoch) is None
    play.pass_time(10.0)
    assert play.beat(epoch) is None, "librdkafka's interval has grown"
    play.pass_time(waited_s)
    if not asks_elsewhere:
        play.members.gone("delays", "m1", play.last_token, play.house.now, by_client=True)
    fields = {"owned": owned(0), "topics": FLIGHTS}  # a client repeats them all
    for _ in range(5):
        assert play.beat(epoch, **fields).interval_s >= NOT_HELD_S, "else, it would send heartbeats without a pause"
        play.pass_time(5.0)
        fields = {}


@pytest.mark.parametrize("software", ["kgo 1.18", JAVA, "librdkafka 2.8"])
def test_heartbeats_are_held_again_after_this_instance_closed_the_connection_or_was_late(software: str) -> None:
    play = Beats()
    epoch = play.holding(0, software=software)
    assert play.beat(epoch) is None
    play.members.gone("delays", "m1", play.last_token, play.house.now + 0.5, by_client=False)
    assert play.beat(epoch) is None
    play.house.now += 30.0  # suspended
    play.members.gone("delays", "m1", play.last_token, play.house.now, by_client=True)
    assert play.beat(epoch) is None


def test_the_join_of_a_client_that_gave_its_first_one_up_is_answered_soon() -> None:
    play = Beats()
    assert play.beat(JOIN, software="kgo 1.18") is None
    play.pass_time(3.0)
    play.members.gone("delays", "m1", play.last_token, play.house.now, by_client=True)
    assert play.beat(JOIN, software="kgo 1.18") is None
    play.pass_time(1.0)
    assert play.told().error is Error.NONE


def test_a_joining_java_client_gets_its_whole_share_in_one_answer() -> None:
    play = Beats()
    assert play.beat(JOIN, software=JAVA) is None
    play.target(m1=(0, 1, 2))
    play.send(3, start=(0,))
    assert len(play.write()) == 1, "the next part can only follow the acknowledgement of this one"
    assert play.told() is None
    play.send(3, start=(1, 2))
    assert (play.told().epoch, play.told().assignment) == (3, flights(0, 1, 2))


def test_a_joining_java_client_does_not_wait_long_for_the_rest_of_its_share() -> None:
    play = Beats()
    play.beat(JOIN, software=JAVA)
    play.send(3, start=(0,))
    play.write()
    play.members.tick(play.house.now + JOIN_S)
    play.pump()
    assert (play.told().assignment, play.told().interval_s) == (flights(0), STEADY_S)
    play.send(3, start=(1,))
    assert play.beat(3, owned=owned(0)).assignment == flights(0, 1)


def test_a_java_client_that_is_a_member_gets_each_part_of_its_share_at_once() -> None:
    play = Beats()
    epoch = play.holding(0, software=JAVA)
    assert play.beat(epoch) is None
    play.target(m1=(0, 1, 2))
    play.send(4, start=(1,))
    assert play.told().assignment == flights(0, 1)


@pytest.mark.parametrize("software", [JAVA, "librdkafka"])
def test_a_client_that_sends_all_fields_without_being_asked_gets_its_assignment(software: str) -> None:
    """The client may still be carrying out an earlier assignment, although it owns the partitions of the newest."""
    play = Beats()
    epoch = play.holding(0, software=software)
    assert play.beat(epoch, owned=owned(0), topics=FLIGHTS).assignment == flights(0)


def test_a_java_client_whose_hold_is_interrupted_early_is_asked_to_repeat_the_heartbeat() -> None:
    play = Beats()
    epoch = play.holding(0, software=JAVA)
    assert play.beat(epoch) is None
    play.members.interrupted("delays", "m1", play.last_token, play.house.now)
    play.pump()
    assert play.told().error is Error.COORDINATOR_LOAD_IN_PROGRESS
    assert play.beat(epoch, owned=owned(0), topics=FLIGHTS) is None, "the client already knows its assignment"
    play.send(4, start=(1,))
    assert play.told().assignment == flights(0, 1)
    assert play.beat(epoch, owned=owned(0), topics=FLIGHTS).assignment == flights(0, 1), "the answer may have been lost"


def test_a_repeated_join_counts_as_a_sign_of_life() -> None:
    play = Beats()
    play.beat(JOIN)
    for _ in range(2):
        play.house.pass_time(SESSION_S * 0.9)
        play.beat(JOIN)
    assert play.write() == [], "the membership must not end"


def test_a_join_that_gets_no_partitions_is_answered_at_its_limit() -> None:
    play = Beats()
    assert play.beat(JOIN) is None
    play.members.tick(play.house.now + JOIN_S / 2)
    play.pump()
    assert play.answers == {}
    assert play.members.due() == play.house.now + JOIN_S
    play.members.tick(play.house.now + JOIN_S)
    play.pump()
    assert play.answers[1] == HeartbeatAnswer(1, Error.NONE, "m1", 1, frozenset())


def test_a_stop_is_acknowledged_when_the_client_no_longer_owns_the_partitions() -> None:
    play = Beats()
    epoch = play.holding(0, 1)
    play.send(4, stop=(1,))
    told = play.beat(epoch)
    assert (told.epoch, told.assignment) == (epoch, flights(0))
    play.beat(epoch, owned=owned(0, 1))
    assert play.write() == [], "the client still owns the partition"
    after = play.beat(epoch, owned=owned(0))
    assert after.epoch == 4
    (store,) = play.write()
    assert store.acknowledges is not None
    assert play.beat(epoch).error is Error.NONE, "the answer with the new epoch may be lost"


def test_a_stop_is_not_acknowledged_before_the_client_has_received_it() -> None:
    play = Beats()
    epoch = play.holding(0)
    play.send(4, stop=(0,))
    play.beat(epoch, owned=owned())
    assert play.write() == []
    play.beat(epoch, owned=owned())
    assert len(play.write()) == 1


def test_a_client_has_not_stopped_partitions_of_a_recreated_topic_while_it_owns_the_old_ones() -> None:
    play = Beats()
    epoch = play.holding(0, 1)
    play.identities["flights"] = b"another-identity"
    play.send(4, stop=(0, 1))
    assert play.beat(epoch).ids == owned()
    play.beat(epoch, owned=owned(0))
    assert play.write() == []
    play.beat(epoch, owned=owned())
    assert [store.acknowledges is not None for store in play.write()] == [True]
    play.send(5, start=(0,))
    assert play.beat(4).ids == {(b"another-identity", 0)}


def test_a_start_is_acknowledged_without_the_partitions_of_a_deleted_topic() -> None:
    play = Beats()
    play.identities["fares"] = b"fares-identity"
    play.beat(JOIN)
    member = play.house.machine.members["delays", "m1"].id
    starts = {tp(0): StartPoint(0), TopicPartition("fares", 0): StartPoint(0)}
    play.house.send(member, StartFetcher(3, 1, member.incarnation, starts, "test"))
    play.pump()
    play.beat(3, owned=owned(0))
    assert (play.write(), play.members.doubtful) == ([], {"flights", "fares"})
    play.identities["fares"] = b"another-identity"
    play.beat(3)
    assert [store.acknowledges is not None for store in play.write()] == [True]


def test_the_topic_ids_in_a_members_ledger_are_used_even_if_the_topic_was_recreated() -> None:
    play = Beats()
    play.beat(JOIN)
    play.topic_ids["flights"] = b"earlier-identity"
    play.send(3, start=(0,))
    assert play.answers[1].ids == {(b"earlier-identity", 0)}


def test_a_term_tells_which_members_it_has_heard_and_what_is_left_of_the_others_sessions() -> None:
    play = Beats()
    play.of_an_earlier_term("m1", "m2")
    play.pass_time(10.0)
    play.beat(5)
    left_ms = play.members.left_ms(play.house.now)
    assert left_ms["delays", "m1"] is None
    assert left_ms["delays", "m2"] == pytest.approx((SESSION_S - 10.0) * 1000)


def test_a_member_that_ends_while_it_resumes_is_unknown() -> None:
    play = Beats()
    found = MemberId("delays", "m1", 7)
    play.house.tell(stimuli.MemberFound(found, RegistrationOptions(SESSION_S, False, "m1", "consumer")))
    play.members.arrived(ConsumerHeartbeat(1, ("delays", "m1"), "m1", False, 5, owned=owned(0, 1)), play.house.now)
    play.house.tell(*play.members.take()[0])
    play.house.tell(stimuli.MemberRead(found, flights(0, 1), ()), stimuli.RegistrationDeleted(found))
    play.pump()
    assert play.answers[1].error is Error.UNKNOWN_MEMBER_ID


def test_requests_with_a_wrong_epoch_or_member_are_refused() -> None:
    play = Beats()
    epoch = play.holding(0)
    assert play.beat(epoch + 1).error is Error.FENCED_MEMBER_EPOCH
    assert play.beat(epoch, "m2").error is Error.UNKNOWN_MEMBER_ID
    assert play.commit(epoch + 1, 7).error is Error.STALE_MEMBER_EPOCH
    assert play.commit(epoch, 7, member_id="m2").error is Error.UNKNOWN_MEMBER_ID
    assert play.commit(epoch, 7, partition=9).error is Error.STALE_MEMBER_EPOCH


def test_the_previous_epoch_is_accepted_only_from_a_client_that_may_have_lost_the_newest() -> None:
    play = Beats()
    play.holding(0, 1, 2)
    play.send(4, start=(3,))
    play.beat(3, owned=owned(0, 1, 2))
    play.beat(4, owned=owned(0, 1, 2, 3))
    assert play.beat(3, owned=owned(0, 1, 2)).error is Error.NONE, "the client may have lost the newer answer"
    assert play.beat(3, owned=owned(0, 1, 2, 7)).error is Error.FENCED_MEMBER_EPOCH, "it was never given partition 7"
    assert play.beat(2, owned=owned(0, 1, 2)).error is Error.FENCED_MEMBER_EPOCH


def test_a_member_with_the_epoch_of_another_member_is_fenced() -> None:
    play = Beats()
    play.holding(0, 1)
    play.beat(JOIN, "m2")
    play.send(5, start=(2,), who="m2")
    assert play.told().epoch == 5
    assert play.beat(5).error is Error.FENCED_MEMBER_EPOCH
    assert play.beat(3, "m2").error is Error.FENCED_MEMBER_EPOCH
    assert play.beat(5, "m2", owned=owned(2)).error is Error.NONE


def test_a_client_that_claims_partitions_it_was_not_given_does_not_get_them() -> None:
    play = Beats()
    epoch = play.holding(0, 1)
    unknown = frozenset({(b"no-such-topic-id", 0)})
    whole = play.beat(epoch, owned=owned(0, 1, 2) | unknown, topics=FLIGHTS)
    assert (whole.error, whole.assignment, play.write()) == (Error.NONE, flights(0, 1), [])
    assert play.commit(epoch, 7, partition=2).error is Error.STALE_MEMBER_EPOCH
    play.send(4, stop=(1,))
    play.beat(epoch)
    for extra in (owned(2), unknown):
        play.beat(epoch, owned=owned(0) | extra)
        assert play.write() == [], "a client that claims unknown partitions has not shown that it stopped any"
    play.beat(epoch, owned=owned(0))
    assert [store.acknowledges is not None for store in play.write()] == [True]


def test_a_command_is_not_acknowledged_before_all_of_it_is_carried_out() -> None:
    play = Beats()
    play.beat(JOIN)
    play.send(3, start=(0, 1, 2))
    play.beat(3, owned=owned(0, 1))
    assert play.write() == []
    play.beat(3, owned=owned(0, 1, 2))
    assert len(play.write()) == 1
    play.send(4, stop=(1, 2))
    play.beat(3)
    play.beat(3, owned=owned(0, 2))
    assert play.write() == []
    assert play.beat(3, owned=owned(0)).epoch == 4
    assert len(play.write()) == 1


def test_a_client_that_never_acknowledges_gets_its_assignment_again_and_keeps_its_epoch() -> None:
    play = Beats()
    epoch = play.holding(0, 1, software="librdkafka")
    play.send(4, stop=(1,))
    for _ in range(3):
        answer = play.beat(epoch, owned=owned(0, 1), topics=FLIGHTS)
        assert (answer.epoch, answer.assignment) == (epoch, flights(0)), "the heartbeat must not be held"
    assert play.write() == []


def test_a_commit_is_answered_once_it_is_stored() -> None:
    play = Beats()
    epoch = play.holding(0)
    assert play.commit(epoch, 7).error is Error.NONE
    play.members.commit(MemberCommit("c", ("delays", "m1"), "m1", epoch, 0, {tp(0): 8}), play.house.now)
    play.pump()
    assert "c" not in play.answers
    assert [store.offsets for store in play.write()] == [{tp(0): 8}]
    assert play.answers["c"] == MemberCommitted("c", Error.NONE)


def test_a_commit_that_arrives_late_on_an_earlier_connection_does_not_replace_a_newer_one() -> None:
    play = Beats()
    epoch = play.holding(0)
    assert play.commit(epoch, 10, connection=2).error is Error.NONE
    assert play.commit(epoch, 9, connection=1).error is Error.COORDINATOR_NOT_AVAILABLE
    assert play.write() == []
    assert play.commit(epoch, 11, connection=2).error is Error.NONE


def test_metadata_is_stored_with_the_commit_and_a_leader_epoch_when_the_partition_is_given_up() -> None:
    play = Beats()
    epoch = play.holding(0, 1)
    play.commit(epoch, 7, leader_epoch=5, metadata="gate A")
    assert play.written_details == [{tp(0): CommittedOffset(7, 5, "gate A")}]
    for partition in (0, 1):
        play.commit(epoch, 8, partition, leader_epoch=5)
        assert play.written_details == [{}]
    last = CommittedOffset(8, 5)
    assert dict(play.members.leader_epochs("delays")) == {tp(0): last, tp(1): last}
    play.send(4, stop=(1,))
    play.beat(epoch)
    play.beat(epoch, owned=owned(0))
    assert [store.details for store in play.write()] == [{tp(1): last}]
    assert dict(play.members.leader_epochs("delays")) == {tp(0): last}
    play.beat(LEAVE)
    assert [store.details for store in play.write()] == [{tp(0): last}]


def test_a_commit_without_a_leader_epoch_discards_the_previous_leader_epoch() -> None:
    play = Beats()
    epoch = play.holding(0)
    for details in ({}, {"metadata": "gate A"}):
        play.commit(epoch, 8, leader_epoch=5)
        play.commit(epoch, 9, **details)
        assert dict(play.members.leader_epochs("delays")) == {}


def test_a_commit_in_a_partition_shows_that_the_client_has_started_it() -> None:
    play = Beats()
    play.beat(JOIN)
    play.send(3, start=(0,))
    assert play.commit(3, 7).error is Error.NONE, "the heartbeat that acknowledges the start may come later"
    play.send(4, stop=(0,))
    assert play.commit(3, 8).error is Error.NONE
    play.beat(3)
    play.beat(3, owned=owned())
    play.write()
    play.send(5, start=(1,))
    assert play.commit(4, 9, partition=1).error is Error.STALE_MEMBER_EPOCH, "the client has not received the start yet"
    play.beat(4)
    assert play.commit(5, 9, partition=1).error is Error.NONE
    assert play.commit(4, 9, partition=1).error is Error.STALE_MEMBER_EPOCH, "it owned no partitions in that epoch"
    assert play.commit(2, 9, partition=1).error is Error.STALE_MEMBER_EPOCH, "the client never had that epoch"


def test_a_commit_for_a_topic_that_was_made_anew_is_refused_until_the_client_has_the_new_epoch() -> None:
    """Until the client has acknowledged the stop, its epoch is the member's, and clients repeat a refused commit before
    a revocation; the commit counts for the earlier topic. From then on, the epoch is stale."""
    play = Beats()
    epoch = play.holding(0, 1)
    play.identities["flights"] = b"another-identity"
    play.send(4, stop=(0,))
    assert play.commit(epoch, 500).error is Error.NONE, "it is stored under the earlier id, so it counts for nobody"
    play.beat(epoch, owned=owned(0, 1))
    play.beat(epoch, owned=owned(1))
    play.write()
    assert play.commit(epoch, 500).error is Error.STALE_MEMBER_EPOCH
    play.send(5, start=(0,))
    assert play.commit(epoch, 500).error is Error.STALE_MEMBER_EPOCH, "the position is that of the earlier topic"
    assert play.commit(epoch, 500, partition=1).error is Error.NONE, "the client has kept this partition"
    assert play.beat(4).epoch == 5
    assert play.commit(epoch, 500).error is Error.STALE_MEMBER_EPOCH
    assert play.commit(5, 3).error is Error.NONE


def test_a_late_commit_of_the_previous_membership_is_refused() -> None:
    """Both memberships begin with the same epoch, before the client has any partitions."""
    play = Beats()
    play.beat(JOIN)
    play.pass_time(30.0)
    first = play.told()
    assert first.assignment == frozenset()
    play.send(5, start=(0,))
    play.beat(first.epoch, owned=owned())
    assert play.commit(first.epoch, 7).error is Error.STALE_MEMBER_EPOCH
    assert play.commit(5, 7).error is Error.NONE


def test_a_subscription_changes_in_place() -> None:
    play = Beats()
    epoch = play.holding(0)
    before = play.house.machine.members["delays", "m1"].id
    assert play.beat(epoch, topics=ManagedTopics(regex="gat.*")) is None, "the subscription is not written yet"
    (store,) = play.write()
    assert store.subscription == ManagedTopics(FLIGHTS.names, "gat.*").subscription()
    answer = play.told()
    assert (answer.error, answer.epoch) == (Error.NONE, epoch)
    assert play.house.machine.members["delays", "m1"].id == before
    assert play.commit(epoch, 7).error is Error.NONE, "the client keeps its partitions"
    assert play.beat(epoch, topics=ManagedTopics(regex="gat.*")) is not None, "the subscription has not changed"
    play.beat(epoch, topics=ManagedTopics(regex=""))
    assert [store.subscription for store in play.write()] == [FLIGHTS.subscription()]


def test_a_client_repeats_a_subscription_that_could_not_be_written() -> None:
    play = Beats()
    epoch = play.holding(0)
    play.beat(epoch, topics=ManagedTopics(regex="gat.*"))
    (store,) = play.stores
    play.stores.clear()
    play.house.written(store, trouble=stimuli.Trouble.FAILED)
    play.pump()
    assert play.told().error is Error.COORDINATOR_NOT_AVAILABLE
    play.beat(epoch, topics=ManagedTopics(FLIGHTS.names, "gat.*"))
    assert [store.subscription for store in play.write()] == [ManagedTopics(FLIGHTS.names, "gat.*").subscription()]


def test_a_static_member_need_not_repeat_its_instance_id_after_the_join() -> None:
    play = Beats()
    play.beat(JOIN, consumer="i1")
    play.send(3, start=(0,), who="i1")
    assert play.beat(3, owned=owned(0)).error is Error.NONE
    assert len(play.write()) == 1
    assert play.commit(3, 7).error is Error.NONE

    later = Beats()
    later.house.tell(
        stimuli.MemberFound(MemberId("delays", "i1", 7), RegistrationOptions(SESSION_S, False, "m1", "consumer"))
    )
    assert later.beat(5, owned=owned(0, 1)).error is Error.NONE, "the instance id was given in an earlier term"


@pytest.mark.parametrize(("epoch", "for_good"), [(LEAVE, True), (LEAVE_FOR_NOW, False)])
def test_a_static_member_leaves(epoch: int, for_good: bool) -> None:
    play = Beats()
    play.beat(JOIN, consumer="i1")
    assert play.beat(JOIN, "m2", consumer="i1").error is Error.UNRELEASED_INSTANCE_ID
    assert play.beat(epoch, consumer="i1") is None
    (store,) = play.write()
    assert (store.leaves, store.for_good) == (True, for_good)
    assert max(play.answers.items())[1] == HeartbeatAnswer(3, Error.NONE, "m1", epoch)
    assert play.beat(JOIN, "m2", consumer="i1") is None, "the instance id must be free again"


def test_a_static_member_returns_as_another_process() -> None:
    play = Beats()
    play.beat(JOIN, consumer="i1")
    play.send(3, start=(0,), who="i1")
    play.beat(3, owned=owned(0), consumer="i1")
    play.write()
    assert play.beat(LEAVE_FOR_NOW, consumer="i1") is None
    assert [store.for_good for store in play.write()] == [False]
    assert play.beat(JOIN, "m2", consumer="i1") is None
    play.send(4, start=(0,), who="i1")
    assert play.told().assignment == flights(0)
    assert play.beat(3, consumer="i1").error is Error.FENCED_INSTANCE_ID, "the former process must be fenced"
    assert play.commit(3, 9, member_id="m1").error is Error.UNKNOWN_MEMBER_ID
    assert play.beat(4, "m2", consumer="i1").error is Error.NONE


def test_a_member_of_an_earlier_term_keeps_its_partitions() -> None:
    play = Beats()
    play.of_an_earlier_term("m1", "m2")
    assert play.commit(5, 70).error is Error.COORDINATOR_LOAD_IN_PROGRESS
    assert play.beat(5, owned=owned(0, 1)) == HeartbeatAnswer(2, Error.NONE, "m1", 5, flights(0, 1), owned(0, 1))
    assert play.commit(5, 70).error is Error.NONE
    assert play.beat(5, "m3").error is Error.UNKNOWN_MEMBER_ID


def test_a_member_with_an_epoch_that_no_term_can_have_sent_is_fenced() -> None:
    play = Beats()
    play.of_an_earlier_term()
    assert play.beat(6, owned=owned(0, 1)).error is Error.FENCED_MEMBER_EPOCH
    assert play.commit(6, 70).error is Error.STALE_MEMBER_EPOCH
    assert play.beat(JOIN) is None, "a new incarnation waits for its partitions"

    ledger_unreadable = Beats()
    ledger_unreadable.generation = None
    ledger_unreadable.of_an_earlier_term()
    assert ledger_unreadable.beat(6, owned=owned(0, 1)).error is Error.NONE


def test_a_client_that_lost_an_answer_of_an_earlier_term_gets_its_assignment_again() -> None:
    for owns, error in ((owned(0), Error.NONE), (owned(0, 1, 2), Error.FENCED_MEMBER_EPOCH)):
        play = Beats()
        play.of_an_earlier_term()
        answer = play.beat(3, owned=owns)
        assert answer.error is error
        assert error or (answer.epoch, answer.assignment) == (5, flights(0, 1))


def test_a_terms_first_answer_waits_for_the_commands_of_the_previous_term() -> None:
    play = Beats()
    play.of_an_earlier_term()
    play.outstanding = (play.house.command_id(CommandType.START_FETCHER),)
    assert play.beat(5, owned=owned(0, 1, 2)) is None, "the command has not been read yet"
    assert play.commit(5, 70).error is Error.COORDINATOR_LOAD_IN_PROGRESS
    play.send(5, start=(2,))
    assert play.told().assignment == flights(0, 1, 2)
    assert [store.acknowledges is not None for store in play.write()] == [True], "its owner must know the start"
    assert play.commit(5, 70, partition=2).error is Error.NONE


def test_an_unreadable_command_delays_the_answer_only_up_to_its_limit() -> None:
    play = Beats()
    play.of_an_earlier_term()
    play.outstanding = (play.house.command_id(CommandType.START_FETCHER),)
    assert play.beat(5, owned=owned(0, 1)) is None
    play.house.now += JOIN_S
    play.members.tick(play.house.now)
    play.pump()
    assert play.told().assignment == flights(0, 1)


def test_a_new_term_sends_a_stop_again_if_its_acknowledgement_was_not_written() -> None:
    play = Beats()
    play.of_an_earlier_term()
    play.outstanding = (play.house.command_id(CommandType.STOP_FETCHER),)
    assert play.beat(5, owned=owned(0)) is None
    play.send(5, stop=(1,))
    assert play.told().assignment == flights(0)
    assert play.write() == [], "the client may not have received the stop before"
    assert play.beat(5, owned=owned(0)).error is Error.NONE
    assert [store.acknowledges is not None for store in play.write()] == [True]


def test_an_evicted_member_is_unknown_and_its_waiting_requests_are_answered() -> None:
    play = Beats()
    epoch = play.holding(0)
    play.members.commit(MemberCommit("c", ("delays", "m1"), "m1", epoch, 0, {tp(0): 8}), play.house.now)
    play.pump()
    play.house.tell(stimuli.RegistrationDeleted(play.house.machine.members["delays", "m1"].id))
    play.pump()
    assert play.answers["c"] == MemberCommitted("c", Error.UNKNOWN_MEMBER_ID)
    assert play.beat(epoch).error is Error.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("ends", ["its registration is deleted", "its term"])
def test_a_held_heartbeat_is_answered_when_its_member_ends(ends: str) -> None:
    play = Beats()
    epoch = play.holding(0, software="librdkafka")
    assert play.beat(epoch) is None
    if ends == "its term":
        play.members.end()
    else:
        play.house.tell(stimuli.RegistrationDeleted(play.house.machine.members["delays", "m1"].id))
    play.pump()
    error = Error.NOT_COORDINATOR if ends == "its term" else Error.UNKNOWN_MEMBER_ID
    assert play.told().error is error
    assert play.members.due() == float("inf")


def test_waiting_requests_are_answered_not_coordinator_when_the_term_ends() -> None:
    play = Beats()
    assert play.beat(JOIN) is None
    play.members.end()
    play.pump()
    assert play.answers[1].error is Error.NOT_COORDINATOR
