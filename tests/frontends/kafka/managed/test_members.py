"""KIP-848 members on the machine of members, without a clock, sockets or ZooKeeper."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.members import (
    JOIN,
    LEAVE,
    LEAVE_FOR_NOW,
    Commit,
    Committed,
    ConsumerGroupMembers,
    Heartbeat,
    HeartbeatAnswer,
)
from kafka_coord.frontends.kafka.managed.pace import JOIN_S
from kafka_coord.frontends.kafka.managed.topics import Topics
from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.model import StartFetcher, StartPoint, StopFetcher, TopicPartition
from tests.frontends.machine.house import House, tp

SESSION_S = 45.0
ID = b"flights-identity"
FLIGHTS = Topics(frozenset({"flights"}))


def owned(*partitions: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((ID, partition) for partition in partitions)


def flights(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(map(tp, partitions))


class Play:
    """The members with a machine, whose registrations succeed at once."""

    def __init__(self) -> None:
        self.house = House()
        self.identities = {"flights": ID}
        self.topic_ids: dict[str, bytes] = {}
        """By member: the partitions in its ledger."""
        self.members = ConsumerGroupMembers(self.house.machine, self.identities.get, session_timeout_s=SESSION_S)
        self.stores: list[instructions.WriteMember] = []
        self._tokens = itertools.count(1)
        self._incarnations = itertools.count(500)
        self.answers: dict[object, Any] = {}

    def pump(self) -> None:
        """Passes everything on until nothing is left."""
        while True:
            for one in (found := self.house.taken(object)):  # type: ignore[type-abstract]
                if isinstance(one, get_args(instructions.ToClient)):
                    self.members.receive(one, self.topic_ids)
                elif isinstance(one, instructions.WriteRegistration):
                    wanted = one.wanted
                    member = MemberId(wanted.group, wanted.consumer, next(self._incarnations))
                    self.house.tell(stimuli.RegistrationWritten(wanted, member))
                elif isinstance(one, instructions.ReadMember):
                    self.house.tell(stimuli.MemberRead(one.member, flights(0, 1), ()))
                elif isinstance(one, instructions.WriteMember):
                    self.stores.append(one)
            arrived, answers = self.members.take()
            self.house.tell(*arrived)
            self.answers |= {answer.token: answer for answer in answers}
            if not arrived and not found:
                return

    def beat(self, epoch: int, member_id: str = "m1", consumer: str = "", **more: Any) -> Any:
        """The answer to a heartbeat, or ``None`` if it waits."""
        token = self.last_token = next(self._tokens)
        key = ("delays", consumer or member_id)
        if epoch == JOIN:
            more = {"topics": FLIGHTS, "owned": owned()} | more
        beat = Heartbeat(token, key, member_id, epoch, is_static=bool(consumer), **more)
        self.members.heartbeat(beat, self.house.now)
        self.pump()
        return self.answers.get(token)

    def commit(self, epoch: int, offset: int, partition: int = 0, member_id: str = "m1") -> Any:
        token = next(self._tokens)
        self.members.commit(
            Commit(token, ("delays", member_id), member_id, epoch, {tp(partition): offset}), self.house.now
        )
        self.pump()
        while self.write():
            pass
        return self.answers.get(token)

    def send(
        self, generation: int, *, start: tuple[int, ...] = (), stop: tuple[int, ...] = (), who: str = "m1"
    ) -> None:
        """Puts a command into the member's channel."""
        member = self.house.machine.members["delays", who].id
        partitions = {tp(number): StartPoint(0) for number in start}
        command: StartFetcher | StopFetcher = StartFetcher(generation, 1, member.incarnation, partitions, "test")
        if stop:
            halted = self.house.stop(member, *stop)
            command = StopFetcher(generation, 1, member.incarnation, halted.partitions, "test")
        self.house.send(member, command)
        self.pump()

    def write(self) -> list[instructions.WriteMember]:
        """Lets ZooKeeper accept all writes. Returns them."""
        written, self.stores = self.stores, []
        for store in written:
            self.house.written(store)
        self.pump()
        return written

    def holding(self, *partitions: int, generation: int = 3, software: str = "") -> int:
        """``m1`` has joined and owns these. Returns its epoch."""
        self.beat(JOIN, software=software)
        self.send(generation, start=partitions)
        self.beat(generation, owned=owned(*partitions), topics=FLIGHTS)
        assert [store.acknowledges is not None for store in self.write()] == [True]
        return generation


def test_a_join_is_answered_when_there_is_something_to_give() -> None:
    play = Play()
    assert play.beat(JOIN) is None
    play.send(3, start=(0, 1))
    assert play.answers[1] == HeartbeatAnswer(1, Error.NONE, "m1", 3, flights(0, 1), owned(0, 1))
    assert play.beat(3, owned=owned()).assignment is None, "it has been told"
    assert play.write() == []
    play.beat(3, owned=owned(0, 1))
    (store,) = play.write()
    assert store.acknowledges is not None


def test_a_heartbeat_is_held_until_there_is_news() -> None:
    play = Play()
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
    play = Play()
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


def test_a_join_that_is_repeated_counts_as_life() -> None:
    play = Play()
    play.beat(JOIN)
    for _ in range(2):
        play.house.pass_time(SESSION_S * 0.9)
        play.beat(JOIN)
    assert play.write() == [], "its membership has not ended"


def test_a_join_that_gets_nothing_is_answered_in_the_end() -> None:
    play = Play()
    assert play.beat(JOIN) is None
    play.members.tick(play.house.now + JOIN_S / 2)
    play.pump()
    assert play.answers == {}
    assert play.members.due() == play.house.now + JOIN_S
    play.members.tick(play.house.now + JOIN_S)
    play.pump()
    assert play.answers[1] == HeartbeatAnswer(1, Error.NONE, "m1", 1, frozenset())


def test_what_is_to_be_stopped_is_acknowledged_by_owning_it_no_longer() -> None:
    play = Play()
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
    play = Play()
    epoch = play.holding(0)
    play.send(4, stop=(0,))
    play.beat(epoch, owned=owned())
    assert play.write() == []
    play.beat(epoch, owned=owned())
    assert len(play.write()) == 1


def test_who_still_owns_partitions_of_a_topic_made_anew_under_its_name_has_not_stopped_them() -> None:
    play = Play()
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
    play = Play()
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
    play = Play()
    play.beat(JOIN)
    play.topic_ids["flights"] = b"earlier-identity"
    play.send(3, start=(0,))
    assert play.answers[1].ids == {(b"earlier-identity", 0)}


def test_a_member_that_ends_while_it_resumes_is_unknown() -> None:
    play = Play()
    found = MemberId("delays", "m1", 7)
    play.house.tell(stimuli.MemberFound(found, RegistrationOptions(SESSION_S, False, "m1")))
    play.members.heartbeat(Heartbeat(1, ("delays", "m1"), "m1", 5, owned=owned(0, 1)), play.house.now)
    play.house.tell(*play.members.take()[0])
    play.house.tell(stimuli.MemberRead(found, flights(0, 1), ()), stimuli.RegistrationDeleted(found))
    play.pump()
    assert play.answers[1].error is Error.UNKNOWN_MEMBER_ID


def test_wrong_epochs_and_members() -> None:
    play = Play()
    epoch = play.holding(0)
    assert play.beat(epoch + 1).error is Error.FENCED_MEMBER_EPOCH
    assert play.beat(epoch, "m2").error is Error.UNKNOWN_MEMBER_ID
    assert play.commit(epoch + 1, 7).error is Error.STALE_MEMBER_EPOCH
    assert play.commit(epoch, 7, member_id="m2").error is Error.UNKNOWN_MEMBER_ID
    assert play.commit(epoch, 7, partition=9).error is Error.STALE_MEMBER_EPOCH


def test_a_commit_is_answered_when_it_is_stored() -> None:
    play = Play()
    epoch = play.holding(0)
    assert play.commit(epoch, 7).error is Error.NONE
    play.members.commit(Commit("c", ("delays", "m1"), "m1", epoch, {tp(0): 8}), play.house.now)
    play.pump()
    assert "c" not in play.answers
    assert [store.offsets for store in play.write()] == [{tp(0): 8}]
    assert play.answers["c"] == Committed("c", Error.NONE)


def test_who_commits_in_partitions_it_was_told_to_start_has_started_them() -> None:
    play = Play()
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
    assert play.commit(4, 9, partition=1).error is Error.NONE
    assert play.commit(2, 9, partition=1).error is Error.STALE_MEMBER_EPOCH, "it never had that epoch"


def test_a_subscription_changes_in_place() -> None:
    play = Play()
    epoch = play.holding(0)
    before = play.house.machine.members["delays", "m1"].id
    assert play.beat(epoch, topics=Topics(regex="gat.*")) is None, "it is not written yet"
    (store,) = play.write()
    assert store.subscription == Topics(FLIGHTS.names, "gat.*").subscription()
    answer = play.answers[play.last_token]
    assert (answer.error, answer.epoch) == (Error.NONE, epoch)
    assert play.house.machine.members["delays", "m1"].id == before
    assert play.commit(epoch, 7).error is Error.NONE, "it holds what it held"
    assert play.beat(epoch, topics=Topics(regex="gat.*")) is not None, "that is no change"
    play.beat(epoch, topics=Topics(regex=""))
    assert [store.subscription for store in play.write()] == [FLIGHTS.subscription()]


def test_a_subscription_that_cannot_be_written_is_asked_for_again() -> None:
    play = Play()
    epoch = play.holding(0)
    play.beat(epoch, topics=Topics(regex="gat.*"))
    (store,) = play.stores
    play.stores.clear()
    play.house.written(store, trouble=stimuli.Trouble.FAILED)
    play.pump()
    assert play.answers[play.last_token].error is Error.COORDINATOR_NOT_AVAILABLE
    play.beat(epoch, topics=Topics(FLIGHTS.names, "gat.*"))
    assert [store.subscription for store in play.write()] == [Topics(FLIGHTS.names, "gat.*").subscription()]


def test_a_static_member_tells_its_instance_id_only_when_it_joins() -> None:
    play = Play()
    play.beat(JOIN, consumer="i1")
    play.send(3, start=(0,), who="i1")
    assert play.beat(3, owned=owned(0)).error is Error.NONE
    assert len(play.write()) == 1
    assert play.commit(3, 7).error is Error.NONE

    later = Play()
    later.house.tell(stimuli.MemberFound(MemberId("delays", "i1", 7), RegistrationOptions(SESSION_S, False, "m1")))
    assert later.beat(5, owned=owned(0, 1)).error is Error.NONE, "an earlier term knew it"


@pytest.mark.parametrize(("epoch", "for_good"), [(LEAVE, True), (LEAVE_FOR_NOW, False)])
def test_a_static_member_leaves(epoch: int, for_good: bool) -> None:
    play = Play()
    play.beat(JOIN, consumer="i1")
    assert play.beat(JOIN, "m2", consumer="i1").error is Error.UNRELEASED_INSTANCE_ID
    assert play.beat(epoch, consumer="i1") is None
    (store,) = play.write()
    assert (store.leaves, store.for_good) == (True, for_good)
    assert max(play.answers.items())[1] == HeartbeatAnswer(3, Error.NONE, "m1", epoch)
    assert play.beat(JOIN, "m2", consumer="i1") is None, "the instance id is free"


def test_a_member_of_an_earlier_term_goes_on_with_what_it_holds() -> None:
    play = Play()
    for name in ("m1", "m2"):
        play.house.tell(stimuli.MemberFound(MemberId("delays", name, 7), RegistrationOptions(SESSION_S, False, name)))
    assert play.commit(5, 70).error is Error.COORDINATOR_LOAD_IN_PROGRESS
    assert play.beat(5, owned=owned(0, 1)) == HeartbeatAnswer(2, Error.NONE, "m1", 5, flights(0, 1), owned(0, 1))
    assert play.commit(5, 70).error is Error.NONE
    assert play.beat(5, "m3").error is Error.UNKNOWN_MEMBER_ID


def test_who_is_evicted_is_told_and_what_waits_is_answered() -> None:
    play = Play()
    epoch = play.holding(0)
    play.members.commit(Commit("c", ("delays", "m1"), "m1", epoch, {tp(0): 8}), play.house.now)
    play.pump()
    play.house.tell(stimuli.RegistrationDeleted(play.house.machine.members["delays", "m1"].id))
    play.pump()
    assert play.answers["c"] == Committed("c", Error.UNKNOWN_MEMBER_ID)
    assert play.beat(epoch).error is Error.UNKNOWN_MEMBER_ID


def test_when_the_term_ends_everybody_looks_for_the_coordinator() -> None:
    play = Play()
    assert play.beat(JOIN) is None
    play.members.end()
    play.pump()
    assert play.answers[1].error is Error.NOT_COORDINATOR
