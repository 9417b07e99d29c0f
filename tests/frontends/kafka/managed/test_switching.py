"""Tests of static members that come back under the other protocol, on the membership machine, without a clock, sockets
or ZooKeeper."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE, LEAVE_FOR_NOW, ConsumerHeartbeat
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from tests.frontends.kafka.managed.play import flights
from tests.frontends.kafka.managed.plays import FLIGHTS, Beats, Classic, owned

INSTANCE = "i1"


class Switching(Classic, Beats):
    """A play whose members have the instance id ``i1``: the classic ones ``c1`` and ``c2``, and the KIP-848 ones ``k1``
    and ``k2``."""

    def classic(self, member_id: str = "c1") -> int:
        """Makes a classic member join and get a partition. Returns the number of its held heartbeat."""
        self.join(member_id=member_id, instance=INSTANCE, is_new=True)
        self.send(3, start=(0,), who=INSTANCE)
        assert self.share(3, member_id, INSTANCE) == flights(0)
        self.write()
        assert self.beat_classic(member_id) is None
        return self.last_token

    def beat_classic(self, member_id: str = "c1") -> Error | None:
        return Classic.beat(self, 3, member_id, INSTANCE)  # type: ignore[return-value]

    def beat_848(self, epoch: int, member_id: str) -> Error | None:
        answer = Beats.beat(self, epoch, member_id, INSTANCE)
        return None if answer is None else Error(answer.error)

    def error_of(self, token: int) -> Error | None:
        return self.answers[token].error if token in self.answers else None


def left(play: Switching) -> list[tuple[bool, bool]]:
    """Lets ZooKeeper accept the writes. Returns which of them end a membership, and whether for good."""
    return [(store.leaves, store.for_good) for store in play.write()]


def test_a_kip_848_client_takes_the_place_of_a_classic_member_with_its_instance_id() -> None:
    play = Switching()
    held = play.classic()
    assert play.beat_848(JOIN, "k1") is None, "UNRELEASED_INSTANCE_ID is fatal to librdkafka and the Java client"
    join = play.last_token
    assert play.error_of(held) is Error.FENCED_INSTANCE_ID, "the held request must be answered at once"
    assert play.beat_classic() is Error.FENCED_INSTANCE_ID
    assert play.commit(3, 9, member_id="c1", instance=INSTANCE).error is Error.FENCED_INSTANCE_ID
    play.write()
    play.send(4, start=(0,), who=INSTANCE)
    assert (play.answers[join].member_id, play.answers[join].assignment) == ("k1", flights(0))


def test_the_place_of_the_classic_member_is_kept_for_the_kip_848_client() -> None:
    play = Switching()
    play.classic()
    play.beat_848(JOIN, "k1")
    assert left(play) == [(True, False)]


def test_the_former_classic_client_is_fenced_whatever_it_sends() -> None:
    play = Switching()
    play.classic()
    play.beat_848(JOIN, "k1")
    assert play.join(member_id="c1", instance=INSTANCE).error is Error.FENCED_INSTANCE_ID, "while it is replaced"
    play.write()
    play.send(4, start=(0,), who=INSTANCE)
    assert play.beat_classic() is Error.FENCED_INSTANCE_ID, "UNKNOWN_MEMBER_ID would make it take the place back"
    assert play.sync(3, "c1", INSTANCE).error is Error.FENCED_INSTANCE_ID
    assert play.join(member_id="c1", instance=INSTANCE).error is Error.FENCED_INSTANCE_ID


def test_the_held_join_of_a_classic_client_is_fenced_while_its_subscription_is_written() -> None:
    play = Switching()
    play.classic()
    assert play.join(member_id="c1", instance=INSTANCE, topics=ManagedTopics(frozenset({"weather"}))) is None
    held = play.last_token
    play.beat_848(JOIN, "k1")
    assert play.error_of(held) is Error.FENCED_INSTANCE_ID


def test_a_kip_848_client_takes_the_place_of_a_classic_member_of_an_earlier_term() -> None:
    play = Switching()
    play.of_an_earlier_term(INSTANCE, resume_key="c1", protocol="classic")
    assert play.beat_848(JOIN, "k1") is None
    join = play.last_token
    assert play.beat_classic() is Error.FENCED_INSTANCE_ID
    assert left(play) == [(True, False)]
    play.send(6, start=(0, 1), who=INSTANCE)
    assert play.answers[join].member_id == "k1"


def test_a_former_classic_client_is_fenced_by_a_term_that_has_not_heard_its_successor() -> None:
    play = Switching()
    play.of_an_earlier_term(INSTANCE, resume_key="k1", protocol="consumer")
    assert play.beat_classic() is Error.FENCED_INSTANCE_ID


def test_a_kip_848_client_that_repeats_its_join_still_takes_the_place() -> None:
    play = Switching()
    play.classic()
    play.beat_848(JOIN, "k1")
    first = play.last_token
    assert play.beat_848(JOIN, "k1") is None
    again = play.last_token
    assert play.error_of(first) is Error.COORDINATOR_LOAD_IN_PROGRESS
    play.write()
    play.send(4, start=(0,), who=INSTANCE)
    assert play.answers[again].member_id == "k1"


@pytest.mark.parametrize("epoch", [LEAVE, LEAVE_FOR_NOW])
def test_a_client_that_leaves_while_it_takes_a_place_does_not_keep_out_its_next_process(epoch: int) -> None:
    play = Switching()
    play.classic()
    play.beat_848(JOIN, "k1")
    join = play.last_token
    assert play.beat_848(epoch, "k1") is Error.NONE
    assert play.error_of(join) is Error.UNKNOWN_MEMBER_ID
    assert left(play) == [(True, False)]
    assert play.beat_848(JOIN, "k2") is None, "UNRELEASED_INSTANCE_ID is fatal"
    play.send(4, start=(0,), who=INSTANCE)
    assert play.error_of(play.last_token) is Error.NONE
    assert play.beat_classic() is Error.FENCED_INSTANCE_ID


def test_a_client_that_leaves_before_the_member_of_an_earlier_term_is_resumed_leaves_that_member_its_place() -> None:
    play = Switching()
    play.of_an_earlier_term(INSTANCE, resume_key="c1", protocol="classic")
    join, leave = play.fresh_token(), play.fresh_token()
    for token, epoch in ((join, JOIN), (leave, LEAVE)):  # before ZooKeeper has answered
        beat = ConsumerHeartbeat(token, ("delays", INSTANCE), "k1", True, epoch, owned=owned(), topics=FLIGHTS)
        play.members.arrived(beat, play.house.now)
    play.pump()
    assert (play.error_of(join), play.error_of(leave)) == (Error.UNKNOWN_MEMBER_ID, Error.NONE)
    assert left(play) == []
    assert play.beat_classic() is not Error.FENCED_INSTANCE_ID


@pytest.mark.parametrize("is_of_earlier_term", [False, True])
def test_a_client_whose_process_ends_while_it_takes_a_place_does_not_keep_out_its_next_process(
    is_of_earlier_term: bool,
) -> None:
    play = Switching()
    if is_of_earlier_term:
        play.of_an_earlier_term(INSTANCE, resume_key="c1", protocol="classic")
    else:
        play.classic()
    join = play.fresh_token()
    beat = ConsumerHeartbeat(join, ("delays", INSTANCE), "k1", True, JOIN, owned=owned(), topics=FLIGHTS)
    play.members.arrived(beat, play.house.now)  # ZooKeeper does not answer
    play.members.gone("delays", "k1", join, play.house.now, by_client=True)
    play.pump()
    assert play.beat_848(JOIN, "k2") is None, "UNRELEASED_INSTANCE_ID is fatal"
    play.write()
    play.send(4, start=(0,), who=INSTANCE)
    assert play.error_of(play.last_token) is Error.NONE


@pytest.mark.parametrize("is_written", [False, True])
def test_of_two_kip_848_clients_the_first_takes_the_place_of_a_classic_member(is_written: bool) -> None:
    play = Switching()
    play.classic()
    play.beat_848(JOIN, "k1")
    if is_written:
        play.write()
    assert play.beat_848(JOIN, "k2") is Error.UNRELEASED_INSTANCE_ID, "both are alive"


def test_two_living_kip_848_clients_do_not_take_each_others_place() -> None:
    play = Switching()
    play.of_an_earlier_term(INSTANCE, resume_key="k1", protocol="consumer")
    assert play.beat_848(JOIN, "k2") is Error.UNRELEASED_INSTANCE_ID, "a member of an earlier term counts as alive"


def test_a_classic_client_takes_the_place_of_a_kip_848_member() -> None:
    play = Switching()
    play.beat_848(JOIN, "k1")
    play.send(3, start=(0,), who=INSTANCE)
    play.beat_848(3, "k1")
    held = play.last_token
    assert play.join(member_id="c1", instance=INSTANCE, is_new=True) is None
    join = play.last_token
    assert play.error_of(held) in {Error.NONE, Error.FENCED_INSTANCE_ID}
    assert play.beat_848(3, "k1") is Error.FENCED_INSTANCE_ID
    assert left(play) == [(True, False)]
    play.send(4, start=(0,), who=INSTANCE)
    assert play.answers[join].member_id == "c1"
    assert play.beat_848(3, "k1") is Error.FENCED_INSTANCE_ID


def test_a_classic_client_takes_the_place_of_a_kip_848_member_that_left_temporarily() -> None:
    play = Switching()
    play.beat_848(JOIN, "k1")
    play.beat_848(LEAVE_FOR_NOW, "k1")
    assert left(play) == [(True, False)]
    assert play.join(member_id="c1", instance=INSTANCE, is_new=True) is None
    play.send(4, start=(0,), who=INSTANCE)
    assert play.told().member_id == "c1"


def test_a_dynamic_kip_848_client_does_not_take_the_place_of_a_classic_member_with_the_same_name() -> None:
    play = Switching()
    play.join(member_id="m1")
    play.send(3, start=(0,))
    assert Beats.beat(play, JOIN, "m1").error is Error.UNRELEASED_INSTANCE_ID
