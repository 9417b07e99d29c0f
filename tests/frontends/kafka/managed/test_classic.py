"""Tests of classic members on the membership machine, without a clock, sockets or ZooKeeper."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.classic import COOPERATIVE
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.members.machine import stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from tests.frontends.kafka.managed.play import ID, SESSION_S, flights
from tests.frontends.kafka.managed.plays import Classic


def test_a_join_is_answered_when_its_client_can_have_partitions() -> None:
    play = Classic()
    assert play.join() is None
    play.send(3, start=(0, 1))
    joined = play.told()
    assert (joined.error, joined.generation_id, joined.protocol_name) == (Error.NONE, 3, COOPERATIVE)
    assert (joined.leader_id, joined.members) == ("", ()), "a managed group has no leader"
    assert play.write() == [], "the client does not know its partitions yet"
    assert play.share(3) == flights(0, 1)
    assert [store.acknowledges is not None for store in play.write()] == [True]


def test_a_sync_is_answered_once_the_acknowledgement_is_stored() -> None:
    play = Classic()
    play.join()
    play.send(3, start=(0,))
    assert play.sync(3) is None
    play.members.interrupted("delays", "m1", play.last_token, play.house.now)
    play.pump()
    assert play.told() is None, "other requests of the client must not release a SyncGroup"
    play.write()
    assert play.told().error is Error.NONE
    assert play.beat(3) is None

    slow = Classic()
    slow.join()
    slow.send(3, start=(0,))
    slow.sync(3)
    slow.pass_time(5.0)
    assert slow.told().error is Error.REBALANCE_IN_PROGRESS, "ZooKeeper is slow"


def test_a_join_that_gets_no_partitions_is_answered_before_the_session_ends() -> None:
    play = Classic()
    assert play.join() is None
    play.pass_time(SESSION_S * 2 / 3)
    assert play.told().error is Error.NONE
    assert play.share(play.told().generation_id) == flights()


def test_a_late_commit_of_the_previous_membership_is_refused() -> None:
    """Both memberships begin with the same generation. The client lost a response, so it knows only the newer one."""
    play = Classic()
    play.join()
    play.pass_time(SESSION_S * 2 / 3)
    first = play.told().generation_id
    assert play.join() is None
    play.send(5, start=(0,))
    assert play.share(play.told().generation_id) == flights(0)
    assert play.commit(first, 7).error is Error.ILLEGAL_GENERATION
    play.write()
    assert play.commit(5, 7).error is Error.NONE


def test_a_join_is_answered_at_once_if_the_target_assigns_its_client_nothing() -> None:
    play = Classic()
    play.target(m2=(0, 1))
    assert play.join() is None, "the first target does not name the member"
    play.target(m1=(), m2=(0, 1))
    assert play.told().error is Error.NONE


def test_a_join_is_held_until_the_whole_share_is_available() -> None:
    play = Classic()
    play.target(m1=(0, 1))
    play.join()
    play.send(3, start=(0,))
    assert play.told() is None, "the other partition is not available yet"
    assert [store.acknowledges is not None for store in play.write()] == [True]
    play.send(3, start=(1,))
    assert play.share(play.told().generation_id) == flights(0, 1)


def test_available_partitions_do_not_wait_long_for_the_rest_of_the_share() -> None:
    play = Classic()
    play.target(m1=(0, 1))
    play.join()
    play.send(3, start=(0,))
    play.pass_time(1.0)
    assert play.share(play.told().generation_id) == flights(0)
    play.write()
    play.send(3, start=(1,))
    assert play.beat(3) is Error.REBALANCE_IN_PROGRESS
    play.target(m1=(0, 1))
    assert play.join(0).error is Error.NONE
    assert play.share(3) == flights(0, 1)


def test_an_eager_member_waits_briefly_for_the_partitions_that_replace_its_own() -> None:
    play = Classic()
    generation = play.holding(0, 1, assignor="range")
    play.target(m1=(0, 2))
    play.send(4, stop=(1,))
    play.beat(generation)
    assert play.join(assignor="range") is None
    play.write()
    play.send(4, start=(2,))
    assert play.told().generation_id == 4
    assert play.share(4) == flights(0, 2)


def test_the_heartbeats_of_a_client_that_gave_one_up_are_no_longer_held() -> None:
    play = Classic()
    generation = play.holding(0)
    assert play.beat(generation) is None
    play.pass_time(5.0)
    play.members.gone("delays", "m1", play.last_token, play.house.now, by_client=True)
    for _ in range(3):
        assert play.beat(generation) is Error.NONE
        play.pass_time(3.0)
    assert play.join(0) is None
    play.send(4, start=(1,))
    play.share(4)
    assert play.beat(4) is Error.NONE, "a rebalance does not make it wait longer"


def test_a_client_that_gave_up_its_join_is_told_to_join_again() -> None:
    play = Classic()
    generation = play.holding(0)
    assert play.join(0) is None
    play.members.gone("delays", "m1", play.last_token, play.house.now, by_client=True)
    assert play.beat(generation) is Error.REBALANCE_IN_PROGRESS


def test_a_member_whose_share_does_not_change_keeps_its_generation() -> None:
    play = Classic()
    generation = play.holding(0)
    play.join(member_id="m2")
    play.send(4, start=(1,), who="m2")
    assert play.told().generation_id == 4
    assert play.beat(generation) is None, "it is held"
    assert play.commit(generation, 7).error is Error.NONE


def test_a_cooperative_member_gives_up_partitions_and_keeps_the_others() -> None:
    play = Classic()
    generation = play.holding(0, 1)
    assert play.beat(generation) is None
    play.send(4, stop=(1,))
    assert play.told().error is Error.REBALANCE_IN_PROGRESS
    assert play.join(0, 1).generation_id == generation
    assert play.write() == [], "the client still owns the partition"
    assert play.commit(generation, 7, partition=1).error is Error.NONE
    assert play.share(generation) == flights(0)
    assert play.beat(generation) is Error.REBALANCE_IN_PROGRESS
    play.target(m1=(0,))
    assert play.join(0).generation_id == 4
    assert [store.acknowledges is not None for store in play.write()] == [True]
    assert play.share(4) == flights(0)
    assert play.beat(4) is None
    assert play.commit(generation, 8).error is Error.NONE, "no other member has owned the partition since then"
    assert play.commit(4, 8, partition=1).error is Error.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("at_the_stop", [b"another-identity", None])
def test_a_commit_for_a_topic_that_was_made_anew_is_refused_until_the_client_has_the_new_assignment(
    at_the_stop: bytes | None,
) -> None:
    """When the stop arrives, the topic may have been deleted only."""
    play = Classic()
    generation = play.holding(0, 1)
    play.identities, play.topic_ids = {"flights": at_the_stop} if at_the_stop else {}, {"flights": ID}
    play.members.identity = play.identities.get
    play.send(4, stop=(0, 1))
    assert play.commit(generation, 500).error is Error.REBALANCE_IN_PROGRESS
    assert play.join(0, 1).generation_id == generation
    assert play.share(generation) == flights()
    assert play.beat(generation) is Error.REBALANCE_IN_PROGRESS
    play.join()
    assert play.commit(generation, 500).error is Error.REBALANCE_IN_PROGRESS
    play.write()
    play.topic_ids = {"flights": b"another-identity"}
    play.send(5, start=(0, 1))
    assert play.told().generation_id == 5
    assert play.share(5) == flights(0, 1)
    play.write()
    assert play.commit(generation, 500).error is not Error.NONE
    assert play.commit(5, 3).error is Error.NONE


def test_a_late_commit_from_before_a_partition_was_given_again_is_refused() -> None:
    """The client keeps another partition, so its earlier generations are valid for that one."""
    play = Classic()
    generation = play.holding(0, 1)
    play.send(4, stop=(0,))
    play.join(0, 1)
    assert play.share(generation) == flights(1)
    play.target(m1=(0, 1))
    play.join(1)
    play.write()
    play.send(5, start=(0,))
    assert play.told().generation_id == 5
    assert play.share(5) == flights(0, 1)
    play.write()
    assert play.commit(generation, 500).error is Error.REBALANCE_IN_PROGRESS
    assert play.commit(generation, 500, partition=1).error is Error.NONE


def test_a_client_commits_what_it_is_given_between_its_join_and_its_sync() -> None:
    """The response to its SyncGroup contains a partition of a newer generation than that to its JoinGroup."""
    play = Classic()
    generation = play.holding(0)
    play.target(m1=(0,))
    assert play.join(0).generation_id == generation
    play.send(generation + 2, start=(1,))
    assert play.commit(generation, 7, partition=1).error is Error.REBALANCE_IN_PROGRESS, "it does not know of it yet"
    play.sync(generation)
    play.write()
    assert play.commit(generation, 7, partition=1).error is Error.NONE


def test_an_eager_member_owns_nothing_when_it_joins_and_gets_its_whole_share() -> None:
    play = Classic()
    generation = play.holding(0, 1, assignor="range")
    play.send(4, stop=(1,))
    assert play.beat(generation) is Error.REBALANCE_IN_PROGRESS
    assert play.commit(generation, 7, partition=1).error is Error.NONE, "the client has not stopped the partition yet"
    play.target(m1=(0,))
    assert play.join(assignor="range").generation_id == 4
    assert [store.acknowledges is not None for store in play.write()] == [True]
    assert play.share(4) == flights(0)
    assert play.commit(generation, 8).error is Error.ILLEGAL_GENERATION
    assert play.commit(4, 8).error is Error.NONE


def test_commits_of_an_eager_member_between_its_join_and_its_sync_are_refused() -> None:
    """librdkafka repeats a commit that was refused, perhaps after it has sent a newer one."""
    play = Classic()
    generation = play.holding(0, 1, assignor="range")
    assert play.commit(generation, 8).error is Error.NONE
    assert play.join(assignor="range") is None
    assert play.commit(generation, 7).error is Error.REBALANCE_IN_PROGRESS
    play.pass_time(1.0)
    assert play.told().generation_id == generation
    assert play.commit(generation, 7).error is Error.REBALANCE_IN_PROGRESS
    assert play.share(generation) == flights(0, 1)
    assert play.commit(generation, 9).error is Error.NONE


def test_a_member_that_gains_partitions_joins_again() -> None:
    play = Classic()
    generation = play.holding(0)
    assert play.beat(generation) is None
    play.send(4, start=(1,))
    assert play.told().error is Error.REBALANCE_IN_PROGRESS
    assert play.commit(generation, 7, partition=1).error is Error.REBALANCE_IN_PROGRESS, "it is not started yet"
    assert play.join(0).generation_id == 4
    assert play.share(4) == flights(0, 1)
    assert play.commit(4, 7, partition=1).error is Error.NONE


def test_a_repeated_join_replaces_one_whose_subscription_is_being_written() -> None:
    play = Classic()
    generation = play.holding(0)
    fares = ManagedTopics(frozenset({"fares", "flights"}))
    assert play.join(0, topics=fares) is None
    first = play.last_token
    play.target(m1=(0,))
    assert play.join(0, topics=fares).generation_id == generation
    assert play.sync(generation).error is Error.NONE
    assert [store.subscription is not None for store in play.write()] == [True]
    assert play.answers[first].error is Error.REBALANCE_IN_PROGRESS
    assert play.beat(generation) is None


def test_a_stop_command_during_a_held_join_is_acknowledged_at_once() -> None:
    play = Classic()
    play.holding(0, 1)
    assert play.join(topics=ManagedTopics(frozenset({"fares"}))) is None
    assert [store.subscription is not None for store in play.write()] == [True]
    play.send(4, stop=(0, 1))
    assert [store.acknowledges is not None for store in play.write()] == [True]
    assert play.told() is None, "the member may get more partitions"
    play.send(4, start=(2,))
    assert play.told().generation_id == 4


def test_a_held_heartbeat_is_answered_at_the_clients_next_request_or_at_its_limit() -> None:
    play = Classic()
    generation = play.holding(0)
    assert play.beat(generation, software="kgo") is None
    play.members.interrupted("delays", "m1", play.last_token, play.house.now)
    play.pump()
    assert play.told().error is Error.NONE
    assert play.beat(generation) is None
    play.pass_time(SESSION_S / 3)
    assert play.told().error is Error.NONE


def test_librdkafka_sends_its_heartbeat_again_after_a_commit() -> None:
    """The answer to that heartbeat must not make the client give up a newer membership."""
    play = Classic()
    generation = play.holding(0)
    assert play.beat(generation, software="librdkafka") is None
    play.pass_time(1.0)
    play.members.interrupted("delays", "m1", play.last_token, play.house.now)
    play.pump()
    assert play.told().error is Error.COORDINATOR_LOAD_IN_PROGRESS
    play.target(m1=(0,))
    play.send(4, start=(1,))
    play.target(m1=(0, 1))
    assert play.join(0).generation_id == 4
    assert play.share(4) == flights(0, 1)
    assert play.beat(generation, software="librdkafka") is Error.NONE
    assert play.leave() is None
    play.write()
    assert play.beat(4, software="librdkafka") is Error.NONE
    play.pass_time(2.0)
    assert play.beat(4, software="librdkafka") is Error.UNKNOWN_MEMBER_ID


def test_requests_with_a_wrong_generation_or_member_are_refused() -> None:
    play = Classic()
    generation = play.holding(0)
    assert play.beat(generation + 1) is Error.ILLEGAL_GENERATION
    assert play.sync(generation + 1).error is Error.ILLEGAL_GENERATION
    assert play.commit(generation + 1, 7).error is Error.ILLEGAL_GENERATION
    assert play.beat(generation, "m2") is Error.UNKNOWN_MEMBER_ID
    assert play.sync(generation, "m2").error is Error.UNKNOWN_MEMBER_ID
    assert play.leave("m2") is Error.UNKNOWN_MEMBER_ID
    assert play.join(0, member_id="m2").error is Error.UNKNOWN_MEMBER_ID, "another member may own these partitions"


def test_a_silent_member_is_expired() -> None:
    play = Classic()
    generation = play.holding(0)
    play.house.pass_time(SESSION_S + 1)
    play.pump()
    assert [store.leaves for store in play.write()] == [True]
    assert play.beat(generation) is Error.UNKNOWN_MEMBER_ID


def test_a_member_leaves() -> None:
    play = Classic()
    play.holding(0)
    assert play.leave() is None
    assert [(store.leaves, store.for_good) for store in play.write()] == [(True, False)]
    assert play.told().error is Error.NONE


def test_a_static_client_that_returns_replaces_its_former_process() -> None:
    play = Classic()
    play.join(instance="i1", is_new=True)
    play.send(3, start=(0,), who="i1")
    assert play.share(3, instance="i1") == flights(0)
    play.write()
    assert play.beat(3, instance="i1") is None
    held = play.last_token
    assert play.join(member_id="m2", instance="i1", is_new=True) is None
    assert play.answers[held].error is Error.FENCED_INSTANCE_ID
    join = play.last_token
    assert [(store.leaves, store.for_good) for store in play.write()] == [(True, False)], "the partitions must be kept"
    play.send(3, start=(0,), who="i1")
    assert play.answers[join].member_id == "m2"
    assert play.share(3, "m2", "i1") == flights(0)
    assert play.beat(3, instance="i1") is Error.FENCED_INSTANCE_ID
    assert play.join(instance="i1").error is Error.FENCED_INSTANCE_ID
    assert play.sync(3, instance="i1").error is Error.FENCED_INSTANCE_ID
    play.write()
    assert play.leave("", "i1") is None
    assert [(store.leaves, store.for_good) for store in play.write()] == [(True, True)], "an operator removed it"


def test_a_member_of_an_earlier_term_keeps_its_partitions() -> None:
    play = Classic()
    play.of_an_earlier_term(resume_key="m1", protocol="classic")
    assert play.commit(5, 70).error is Error.COORDINATOR_LOAD_IN_PROGRESS
    assert play.beat(5) is None, "it is held"
    play.members.interrupted("delays", "m1", play.last_token, play.house.now)
    play.pump()
    assert play.told().error is Error.NONE, "the previous term may have answered only with errors"
    assert play.commit(5, 70).error is Error.NONE
    play.send(6, stop=(1,))
    assert play.beat(5) is Error.REBALANCE_IN_PROGRESS
    play.join(0, 1)
    assert [store.subscription is not None for store in play.write()] == [True], "the new term knew no subscription"
    assert play.told().generation_id == 5
    assert play.share(5) == flights(0)


def test_a_client_whose_join_was_in_an_earlier_term_joins_again() -> None:
    play = Classic()
    play.of_an_earlier_term(resume_key="m1", protocol="classic")
    assert play.sync(5).error is Error.REBALANCE_IN_PROGRESS
    play.target(m1=(0, 1))
    play.join(0, 1)
    play.write()
    play.target(m1=(0, 1))
    assert play.share(play.told().generation_id) == flights(0, 1)


def test_a_static_client_replaces_its_former_process_of_an_earlier_term() -> None:
    play = Classic()
    play.of_an_earlier_term("i1", resume_key="m1", protocol="classic")
    assert play.join(member_id="m2", instance="i1", is_new=True) is None
    assert [store.leaves for store in play.write()] == [True]
    play.send(6, start=(0, 1), who="i1")
    assert play.answers[1].member_id == "m2"


def test_a_client_of_the_other_protocol_is_unknown() -> None:
    play = Classic()
    play.house.tell(
        stimuli.MemberFound(MemberId("delays", "m1", 7), RegistrationOptions(SESSION_S, False, "m1", "consumer"))
    )
    assert play.beat(5) is Error.UNKNOWN_MEMBER_ID
    assert play.commit(5, 70).error is Error.COORDINATOR_LOAD_IN_PROGRESS


def test_waiting_requests_are_answered_not_coordinator_when_the_term_ends() -> None:
    play = Classic()
    assert play.join() is None
    play.members.end()
    play.pump()
    assert play.told().error is Error.NOT_COORDINATOR


@pytest.mark.parametrize("assignor", [COOPERATIVE, "range"])
def test_a_cooperative_client_that_drops_partitions_that_its_broker_does_not_know_yet_gets_them_again(
    assignor: str,
) -> None:
    """librdkafka drops them, leaves the group's generation as it is, and tells nobody unless it is the leader."""
    play = Classic()
    play.join(assignor=assignor)
    play.target(m1=(0,))
    play.send(3, start=(0,), later=True)
    assert play.share(3) == flights(0)
    play.write()
    for after_s in (5.0, 25.0):
        assert play.beat(3, software="librdkafka 2.8") is not Error.REBALANCE_IN_PROGRESS
        play.pass_time(after_s)
        if assignor != COOPERATIVE:
            assert play.beat(3, software="librdkafka 2.8") is not Error.REBALANCE_IN_PROGRESS
            continue
        assert play.beat(3, software="librdkafka 2.8") is Error.REBALANCE_IN_PROGRESS
        assert play.join().generation_id == 3, "nobody else is disturbed"
        assert play.share(3) == flights(0)
    play.pass_time(3600.0)
    assert play.beat(3, software="librdkafka 2.8") is not Error.REBALANCE_IN_PROGRESS
