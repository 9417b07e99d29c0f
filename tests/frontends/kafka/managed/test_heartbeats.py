"""KIP-848 members on the machine of members, without a clock, sockets or ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.heartbeat_hold import JOIN_S, STEADY_S
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE, LEAVE_FOR_NOW, Heartbeat, HeartbeatAnswer
from kafka_coord.frontends.kafka.managed.member import Commit, Committed
from kafka_coord.frontends.kafka.managed.topics import Topics
from kafka_coord.frontends.members.machine import stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.model import CommandType, CommittedOffset, StartFetcher, StartPoint, TopicPartition
from tests.frontends.kafka.managed.play import FLIGHTS, ID, SESSION_S, Play, flights
from tests.frontends.machine.house import tp


def owned(*partitions: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((ID, partition) for partition in partitions)


class Beats(Play):
    """Play of KIP-848 members."""

    def beat(self, epoch: int, member_id: str = "m1", consumer: str = "", **more: Any) -> Any:
        """The answer to a heartbeat, or ``None`` if it waits."""
        token = self.fresh_token()
        key = ("delays", consumer or member_id)
        if epoch == JOIN:
            more = {"topics": FLIGHTS, "owned": owned()} | more
        beat = Heartbeat(token, key, member_id, bool(consumer), epoch, **more)
        return self.ask(beat)

    def holding(self, *partitions: int, generation: int = 3, software: str = "") -> int:
        """``m1`` has joined and owns these. Returns its epoch."""
        self.beat(JOIN, software=software)
        self.target(m1=partitions)
        self.send(generation, start=partitions)
        self.beat(generation, owned=owned(*partitions), topics=FLIGHTS)
        assert [store.acknowledges is not None for store in self.write()] == [True]
        return generation


def test_a_join_is_answered_when_there_is_something_to_give() -> None:
    play = Beats()
    assert play.beat(JOIN) is None
    play.send(3, start=(0, 1))
    assert play.answers[1] == HeartbeatAnswer(1, Error.NONE, "m1", 3, flights(0, 1), owned(0, 1))
    assert play.beat(3, owned=owned()).assignment is None, "it has been told"
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
    assert play.beat(epoch) is not None, "an acknowledgement may wait behind it"
    assert play.beat(epoch, owned=owned(0)) is None
    play.write()
    play.send(5, start=(2,))
    assert max(play.answers.items())[1].assignment == flights(0, 2)


def test_a_held_heartbeat_ends_when_its_client_sends_something_else_or_is_gone() -> None:
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
    play.members.gone(*who, play.last_token)
    play.send(4, stop=(0,))
    assert play.last_token not in play.answers
    assert play.beat(epoch).assignment == flights()


JAVA = "apache-kafka-java"


def test_a_java_client_that_joins_is_told_its_whole_share_at_once() -> None:
    play = Beats()
    assert play.beat(JOIN, software=JAVA) is None
    play.target(m1=(0, 1, 2))
    play.send(3, start=(0,))
    assert len(play.write()) == 1, "the next part comes only when this one is acknowledged"
    assert play.told() is None
    play.send(3, start=(1, 2))
    assert (play.told().epoch, play.told().assignment) == (3, flights(0, 1, 2))


def test_a_java_client_that_joins_does_not_wait_for_the_rest_for_long() -> None:
    play = Beats()
    play.beat(JOIN, software=JAVA)
    play.send(3, start=(0,))
    play.write()
    play.members.tick(play.house.now + JOIN_S)
    play.pump()
    assert (play.told().assignment, play.told().interval_s) == (flights(0), STEADY_S)
    play.send(3, start=(1,))
    assert play.beat(3, owned=owned(0)).assignment == flights(0, 1)


def test_a_java_client_that_is_a_member_is_told_each_part_at_once() -> None:
    play = Beats()
    epoch = play.holding(0, software=JAVA)
    assert play.beat(epoch) is None
    play.target(m1=(0, 1, 2))
    play.send(4, start=(1,))
    assert play.told().assignment == flights(0, 1)


@pytest.mark.parametrize("software", [JAVA, "librdkafka"])
def test_a_client_that_sends_all_fields_unasked_is_told_its_assignment(software: str) -> None:
    """It may still be carrying out an earlier assignment, although it owns the partitions of this one."""
    play = Beats()
    epoch = play.holding(0, software=software)
    assert play.beat(epoch, owned=owned(0), topics=FLIGHTS).assignment == flights(0)


def test_a_java_client_whose_hold_ends_too_early_is_asked_for_the_heartbeat_again() -> None:
    play = Beats()
    epoch = play.holding(0, software=JAVA)
    assert play.beat(epoch) is None
    play.members.interrupted("delays", "m1", play.last_token, play.house.now)
    play.pump()
    assert play.told().error is Error.COORDINATOR_LOAD_IN_PROGRESS
    assert play.beat(epoch, owned=owned(0), topics=FLIGHTS) is None, "with everything in it; it knows its assignment"
    play.send(4, start=(1,))
    assert play.told().assignment == flights(0, 1)
    assert play.beat(epoch, owned=owned(0), topics=FLIGHTS).assignment == flights(0, 1), "it may have lost that"


def test_a_join_that_is_repeated_counts_as_life() -> None:
    play = Beats()
    play.beat(JOIN)
    for _ in range(2):
        play.house.pass_time(SESSION_S * 0.9)
        play.beat(JOIN)
    assert play.write() == [], "its membership has not ended"


def test_a_join_that_gets_nothing_is_answered_in_the_end() -> None:
    play = Beats()
    assert play.beat(JOIN) is None
    play.members.tick(play.house.now + JOIN_S / 2)
    play.pump()
    assert play.answers == {}
    assert play.members.due() == play.house.now + JOIN_S
    play.members.tick(play.house.now + JOIN_S)
    play.pump()
    assert play.answers[1] == HeartbeatAnswer(1, Error.NONE, "m1", 1, frozenset())


def test_what_is_to_be_stopped_is_acknowledged_by_owning_it_no_longer() -> None:
    play = Beats()
    epoch = play.holding(0, 1)
    play.send(4, stop=(1,))
    told = play.beat(epoch)
    assert (told.epoch, told.assignment) == (epoch, flights(0))
    play.beat(epoch, owned=owned(0, 1))
    assert play.write() == [], "it still owns it"
    after = play.beat(epoch, owned=owned(0))
    assert after.epoch == 4
    (store,) = play.write()
    assert store.acknowledges is not None
    assert play.beat(epoch).error is Error.NONE, "the answer with the new epoch may be lost"


def test_nothing_is_acknowledged_before_the_client_was_told() -> None:
    play = Beats()
    epoch = play.holding(0)
    play.send(4, stop=(0,))
    play.beat(epoch, owned=owned())
    assert play.write() == []
    play.beat(epoch, owned=owned())
    assert len(play.write()) == 1


def test_who_still_owns_partitions_of_a_topic_made_anew_under_its_name_has_not_stopped_them() -> None:
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


def test_a_start_of_partitions_of_a_topic_that_is_gone_does_not_wait_for_them() -> None:
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


def test_the_ids_in_a_members_ledger_count_whatever_has_the_topics_name_now() -> None:
    play = Beats()
    play.beat(JOIN)
    play.topic_ids["flights"] = b"earlier-identity"
    play.send(3, start=(0,))
    assert play.answers[1].ids == {(b"earlier-identity", 0)}


def test_a_member_that_ends_while_it_resumes_is_unknown() -> None:
    play = Beats()
    found = MemberId("delays", "m1", 7)
    play.house.tell(stimuli.MemberFound(found, RegistrationOptions(SESSION_S, False, "m1", "consumer")))
    play.members.arrived(Heartbeat(1, ("delays", "m1"), "m1", False, 5, owned=owned(0, 1)), play.house.now)
    play.house.tell(*play.members.take()[0])
    play.house.tell(stimuli.MemberRead(found, flights(0, 1), ()), stimuli.RegistrationDeleted(found))
    play.pump()
    assert play.answers[1].error is Error.UNKNOWN_MEMBER_ID


def test_wrong_epochs_and_members() -> None:
    play = Beats()
    epoch = play.holding(0)
    assert play.beat(epoch + 1).error is Error.FENCED_MEMBER_EPOCH
    assert play.beat(epoch, "m2").error is Error.UNKNOWN_MEMBER_ID
    assert play.commit(epoch + 1, 7).error is Error.STALE_MEMBER_EPOCH
    assert play.commit(epoch, 7, member_id="m2").error is Error.UNKNOWN_MEMBER_ID
    assert play.commit(epoch, 7, partition=9).error is Error.STALE_MEMBER_EPOCH


def test_an_epoch_of_the_past_is_good_only_right_after_the_next_one() -> None:
    play = Beats()
    play.holding(0, 1, 2)
    play.send(4, start=(3,))
    play.beat(3, owned=owned(0, 1, 2))
    play.beat(4, owned=owned(0, 1, 2, 3))
    assert play.beat(3, owned=owned(0, 1, 2)).error is Error.NONE, "the answer with the new one may be lost"
    assert play.beat(3, owned=owned(0, 1, 2, 7)).error is Error.FENCED_MEMBER_EPOCH, "nobody gave it the seventh"
    assert play.beat(2, owned=owned(0, 1, 2)).error is Error.FENCED_MEMBER_EPOCH


def test_the_epoch_of_another_member_is_no_ones_own() -> None:
    play = Beats()
    play.holding(0, 1)
    play.beat(JOIN, "m2")
    play.send(5, start=(2,), who="m2")
    assert play.told().epoch == 5
    assert play.beat(5).error is Error.FENCED_MEMBER_EPOCH
    assert play.beat(3, "m2").error is Error.FENCED_MEMBER_EPOCH
    assert play.beat(5, "m2", owned=owned(2)).error is Error.NONE


def test_who_owns_what_nobody_gave_it_gets_nothing_by_that() -> None:
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
        assert play.write() == [], "whoever owns too much has not shown what it gave up"
    play.beat(epoch, owned=owned(0))
    assert [store.acknowledges is not None for store in play.write()] == [True]


def test_a_part_of_what_was_asked_for_acknowledges_nothing() -> None:
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


def test_a_client_that_never_acknowledges_is_told_again_and_keeps_its_epoch() -> None:
    play = Beats()
    epoch = play.holding(0, 1, software="librdkafka")
    play.send(4, stop=(1,))
    for _ in range(3):
        answer = play.beat(epoch, owned=owned(0, 1), topics=FLIGHTS)
        assert (answer.epoch, answer.assignment) == (epoch, flights(0)), "it is not held"
    assert play.write() == []


def test_a_commit_is_answered_when_it_is_stored() -> None:
    play = Beats()
    epoch = play.holding(0)
    assert play.commit(epoch, 7).error is Error.NONE
    play.members.commit(Commit("c", ("delays", "m1"), "m1", epoch, 0, {tp(0): 8}), play.house.now)
    play.pump()
    assert "c" not in play.answers
    assert [store.offsets for store in play.write()] == [{tp(0): 8}]
    assert play.answers["c"] == Committed("c", Error.NONE)


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


def test_a_commit_without_a_leader_epoch_makes_the_one_before_void() -> None:
    play = Beats()
    epoch = play.holding(0)
    for details in ({}, {"metadata": "gate A"}):
        play.commit(epoch, 8, leader_epoch=5)
        play.commit(epoch, 9, **details)
        assert dict(play.members.leader_epochs("delays")) == {}


def test_who_commits_in_partitions_it_was_told_to_start_has_started_them() -> None:
    play = Beats()
    play.beat(JOIN)
    play.send(3, start=(0,))
    assert play.commit(3, 7).error is Error.NONE, "its heartbeat that says so may come later"
    play.send(4, stop=(0,))
    assert play.commit(3, 8).error is Error.NONE
    play.beat(3)
    play.beat(3, owned=owned())
    play.write()
    play.send(5, start=(1,))
    assert play.commit(4, 9, partition=1).error is Error.STALE_MEMBER_EPOCH, "it has not been told yet"
    play.beat(4)
    assert play.commit(5, 9, partition=1).error is Error.NONE
    assert play.commit(4, 9, partition=1).error is Error.STALE_MEMBER_EPOCH, "it owned nothing at that epoch"
    assert play.commit(2, 9, partition=1).error is Error.STALE_MEMBER_EPOCH, "it never had that epoch"


def test_a_late_commit_of_the_membership_before_is_refused() -> None:
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
    assert play.beat(epoch, topics=Topics(regex="gat.*")) is None, "it is not written yet"
    (store,) = play.write()
    assert store.subscription == Topics(FLIGHTS.names, "gat.*").subscription()
    answer = play.told()
    assert (answer.error, answer.epoch) == (Error.NONE, epoch)
    assert play.house.machine.members["delays", "m1"].id == before
    assert play.commit(epoch, 7).error is Error.NONE, "it holds what it held"
    assert play.beat(epoch, topics=Topics(regex="gat.*")) is not None, "that is no change"
    play.beat(epoch, topics=Topics(regex=""))
    assert [store.subscription for store in play.write()] == [FLIGHTS.subscription()]


def test_a_subscription_that_cannot_be_written_is_asked_for_again() -> None:
    play = Beats()
    epoch = play.holding(0)
    play.beat(epoch, topics=Topics(regex="gat.*"))
    (store,) = play.stores
    play.stores.clear()
    play.house.written(store, trouble=stimuli.Trouble.FAILED)
    play.pump()
    assert play.told().error is Error.COORDINATOR_NOT_AVAILABLE
    play.beat(epoch, topics=Topics(FLIGHTS.names, "gat.*"))
    assert [store.subscription for store in play.write()] == [Topics(FLIGHTS.names, "gat.*").subscription()]


def test_a_static_member_tells_its_instance_id_only_when_it_joins() -> None:
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
    assert later.beat(5, owned=owned(0, 1)).error is Error.NONE, "an earlier term knew it"


@pytest.mark.parametrize(("epoch", "for_good"), [(LEAVE, True), (LEAVE_FOR_NOW, False)])
def test_a_static_member_leaves(epoch: int, for_good: bool) -> None:
    play = Beats()
    play.beat(JOIN, consumer="i1")
    assert play.beat(JOIN, "m2", consumer="i1").error is Error.UNRELEASED_INSTANCE_ID
    assert play.beat(epoch, consumer="i1") is None
    (store,) = play.write()
    assert (store.leaves, store.for_good) == (True, for_good)
    assert max(play.answers.items())[1] == HeartbeatAnswer(3, Error.NONE, "m1", epoch)
    assert play.beat(JOIN, "m2", consumer="i1") is None, "the instance id is free"


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
    assert play.beat(3, consumer="i1").error is Error.FENCED_INSTANCE_ID, "the process before"
    assert play.commit(3, 9, member_id="m1").error is Error.UNKNOWN_MEMBER_ID
    assert play.beat(4, "m2", consumer="i1").error is Error.NONE


def test_a_member_of_an_earlier_term_goes_on_with_what_it_holds() -> None:
    play = Beats()
    play.of_an_earlier_term("m1", "m2")
    assert play.commit(5, 70).error is Error.COORDINATOR_LOAD_IN_PROGRESS
    assert play.beat(5, owned=owned(0, 1)) == HeartbeatAnswer(2, Error.NONE, "m1", 5, flights(0, 1), owned(0, 1))
    assert play.commit(5, 70).error is Error.NONE
    assert play.beat(5, "m3").error is Error.UNKNOWN_MEMBER_ID


def test_nobody_has_an_epoch_that_no_term_can_have_told() -> None:
    play = Beats()
    play.of_an_earlier_term()
    assert play.beat(6, owned=owned(0, 1)).error is Error.FENCED_MEMBER_EPOCH
    assert play.commit(6, 70).error is Error.STALE_MEMBER_EPOCH
    assert play.beat(JOIN) is None, "it is a new incarnation, and gets its partitions anew"

    ledger_unreadable = Beats()
    ledger_unreadable.generation = None
    ledger_unreadable.of_an_earlier_term()
    assert ledger_unreadable.beat(6, owned=owned(0, 1)).error is Error.NONE


def test_an_answer_of_an_earlier_term_may_be_lost() -> None:
    for owns, error in ((owned(0), Error.NONE), (owned(0, 1, 2), Error.FENCED_MEMBER_EPOCH)):
        play = Beats()
        play.of_an_earlier_term()
        answer = play.beat(3, owned=owns)
        assert answer.error is error
        assert error or (answer.epoch, answer.assignment) == (5, flights(0, 1))


def test_the_first_answer_of_a_term_has_what_the_member_was_told_in_the_one_before() -> None:
    play = Beats()
    play.of_an_earlier_term()
    play.outstanding = (play.house.command_id(CommandType.START_FETCHER),)
    assert play.beat(5, owned=owned(0, 1, 2)) is None, "the command is not known yet"
    assert play.commit(5, 70).error is Error.COORDINATOR_LOAD_IN_PROGRESS
    play.send(5, start=(2,))
    assert play.told().assignment == flights(0, 1, 2)
    assert [store.acknowledges is not None for store in play.write()] == [True], "who owns it was told to start it"
    assert play.commit(5, 70, partition=2).error is Error.NONE


def test_a_command_that_cannot_be_read_keeps_nobody_waiting() -> None:
    play = Beats()
    play.of_an_earlier_term()
    play.outstanding = (play.house.command_id(CommandType.START_FETCHER),)
    assert play.beat(5, owned=owned(0, 1)) is None
    play.house.now += JOIN_S
    play.members.tick(play.house.now)
    play.pump()
    assert play.told().assignment == flights(0, 1)


def test_an_acknowledgement_that_was_answered_and_not_written_is_asked_for_again() -> None:
    play = Beats()
    play.of_an_earlier_term()
    play.outstanding = (play.house.command_id(CommandType.STOP_FETCHER),)
    assert play.beat(5, owned=owned(0)) is None
    play.send(5, stop=(1,))
    assert play.told().assignment == flights(0)
    assert play.write() == [], "it may be the first to hear of it"
    assert play.beat(5, owned=owned(0)).error is Error.NONE
    assert [store.acknowledges is not None for store in play.write()] == [True]


def test_who_is_evicted_is_told_and_what_waits_is_answered() -> None:
    play = Beats()
    epoch = play.holding(0)
    play.members.commit(Commit("c", ("delays", "m1"), "m1", epoch, 0, {tp(0): 8}), play.house.now)
    play.pump()
    play.house.tell(stimuli.RegistrationDeleted(play.house.machine.members["delays", "m1"].id))
    play.pump()
    assert play.answers["c"] == Committed("c", Error.UNKNOWN_MEMBER_ID)
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


def test_when_the_term_ends_everybody_looks_for_the_coordinator() -> None:
    play = Beats()
    assert play.beat(JOIN) is None
    play.members.end()
    play.pump()
    assert play.answers[1].error is Error.NOT_COORDINATOR
