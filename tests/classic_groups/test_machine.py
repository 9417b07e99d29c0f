"""The state machine of a client-assigned group: how and when it answers clients."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import (
    Answered,
    ConnectionLost,
    Heartbeat,
    Held,
    Joined,
    Leave,
    Left,
    Released,
    Stored,
    StoreGroup,
    Sync,
    Synced,
)
from kafka_coord.classic_groups.machine import NEW_MEMBER_JOIN_TIMEOUT_S, Group, GroupLimits
from kafka_coord.classic_groups.metadata import ClassicState
from tests.classic_groups.played import REBALANCE_S, SESSION_S, Played


def test_the_first_join_is_answered_at_once_and_its_member_leads() -> None:
    played = Played()
    found = played.answers[played.join(fresh="m1")]

    assert isinstance(found, Joined)
    assert (found.error, found.member_id, found.leader_id, found.generation_id) == (Error.NONE, "m1", "m1", 1)
    assert [member_id for member_id, _, _ in found.members] == ["m1"]
    assert played.state is ClassicState.COMPLETING_REBALANCE


def test_a_second_member_waits_until_the_first_has_joined_again() -> None:
    played = Played().stable("m1")
    second = played.join(fresh="m2")

    assert second not in played.answers
    assert played.beat("m1") is Error.REBALANCE_IN_PROGRESS
    first = played.join("m1", fresh="m1")
    assert played.answers[first].generation_id == played.answers[second].generation_id == 2
    assert len(played.answers[first].members) == 2
    assert played.answers[second].members == ()


def test_a_member_that_does_not_join_in_time_is_removed_and_the_others_go_on() -> None:
    played = Played().stable("m1", "m2")
    third = played.join(fresh="m3")
    played.join("m1", fresh="m1")
    for _ in range(12):  # m2 lives, but does not join
        played.pass_time(REBALANCE_S / 12)
        if "m2" in played.group.metadata.members:
            played.beat("m2")

    assert set(played.group.metadata.members) == {"m1", "m3"}
    assert played.answers[third].error is Error.NONE


def test_syncs_of_followers_wait_for_the_sync_of_the_leader() -> None:
    played = Played().stable("m1")
    second, first = played.join(fresh="m2"), played.join("m1", fresh="m1")
    assert played.answers[first].leader_id == "m1"
    waiting = played.sync("m2")
    assert waiting not in played.answers

    leaders = played.sync("m1", {"m1": b"one", "m2": b"two"})

    assert played.answers[waiting] == Synced(waiting, Error.NONE, "consumer", "range", b"two")
    assert played.answers[leaders].assignment == b"one"
    assert second in played.answers


def test_a_sync_is_not_answered_before_the_assignment_is_stored() -> None:
    played = Played()
    played.join(fresh="m1")
    played.holds_stores = True
    token = played.sync("m1", {"m1": b"one"})
    assert token not in played.answers
    assert played.state is ClassicState.COMPLETING_REBALANCE

    played.do(Stored(played.stores[-1], Error.NONE))

    assert played.answers[token].assignment == b"one"
    assert played.state is ClassicState.STABLE


def test_an_assignment_that_could_not_be_stored_is_not_returned_and_the_group_rebalances() -> None:
    played = Played()
    played.join(fresh="m1")
    played.store_error = Error.NOT_COORDINATOR
    token = played.sync("m1", {"m1": b"one"})

    assert played.answers[token].error is Error.NOT_COORDINATOR
    assert played.state is ClassicState.PREPARING_REBALANCE


def test_a_store_of_an_older_generation_changes_nothing() -> None:
    played = Played()
    played.join(fresh="m1")
    played.holds_stores = True
    played.sync("m1", {"m1": b"old"})
    late = played.stores[-1]
    again = played.join("m1", fresh="changed")
    assert played.answers[again].generation_id == 2

    played.do(Stored(late, Error.NONE))

    assert played.state is ClassicState.COMPLETING_REBALANCE
    assert played.group.metadata.members["m1"].assignment == b""


def test_a_member_that_is_not_heard_of_is_removed_after_its_session() -> None:
    played = Played().stable("m1", "m2")
    for _ in range(4):
        played.pass_time(SESSION_S / 3)
        assert played.beat("m1") in {Error.NONE, Error.REBALANCE_IN_PROGRESS}
    assert set(played.group.metadata.members) == {"m1"}
    assert played.state is ClassicState.PREPARING_REBALANCE


def test_a_member_whose_request_is_held_here_does_not_expire() -> None:
    played = Played().stable("m1")
    waiting = played.join(fresh="m2")
    for _ in range(5):
        played.pass_time(SESSION_S / 2)
        played.beat("m1")

    assert "m2" in played.group.metadata.members
    assert waiting not in played.answers


def test_a_new_member_whose_join_is_held_for_minutes_is_forgotten() -> None:
    played = Played().stable("m1")
    played.join("m1", fresh="m1x")  # prepares a rebalance that m1 itself completes
    played.sync("m1", {"m1": b""})
    held = played.join(fresh="m2", rebalance_timeout_s=NEW_MEMBER_JOIN_TIMEOUT_S * 3)
    for _ in range(int(NEW_MEMBER_JOIN_TIMEOUT_S // 5) + 1):
        played.pass_time(5)
        played.beat("m1")

    assert played.answers[held].error is Error.UNKNOWN_MEMBER_ID
    assert set(played.group.metadata.members) == {"m1"}


def test_a_new_client_gets_a_member_id_before_it_becomes_a_member() -> None:
    played = Played()
    first = played.join(fresh="m1", must_know_id=True)
    assert played.answers[first].error is Error.MEMBER_ID_REQUIRED
    assert played.group.metadata.members == {}

    second = played.join("m1", fresh="unused", must_know_id=True)
    assert (played.answers[second].error, played.answers[second].member_id) == (Error.NONE, "m1")


def test_a_member_id_that_is_never_used_is_forgotten() -> None:
    played = Played()
    played.join(fresh="m1", must_know_id=True)
    played.pass_time(SESSION_S + 1)
    late = played.join("m1", fresh="m1")
    assert played.answers[late].error is Error.UNKNOWN_MEMBER_ID


def test_a_newcomer_that_vanished_holds_up_no_first_join() -> None:
    played = Played()
    played.join(fresh="vanished", must_know_id=True)
    first = played.join("", fresh="m1")
    assert (played.answers[first].error, played.answers[first].member_id) == (Error.NONE, "m1")


def test_a_newcomer_that_vanished_holds_up_no_join_before_the_group_is_stable() -> None:
    played = Played()
    played.join(fresh="m1")
    played.join(fresh="vanished", must_know_id=True)
    second, again = played.join(fresh="m2"), played.join("m1")
    assert {second, again} <= played.answers.keys()


def test_a_newcomer_that_vanished_holds_up_the_rebalance_of_a_stable_group_as_in_kafka() -> None:
    played = Played().stable("m1")
    played.join(fresh="vanished", must_know_id=True)
    second = played.join(fresh="m2")
    again = played.join("m1")
    assert not {second, again} & played.answers.keys()
    played.pass_time(SESSION_S + 1)
    assert {second, again} <= played.answers.keys()


def test_a_returning_static_member_gets_its_assignment_without_a_rebalance() -> None:
    played = Played()
    played.join(fresh="s1", instance_id="i1")
    token = 901
    played.do(Sync(token, "s1", "i1", 1, assignments={"s1": b"mine"}))
    generation = played.group.metadata.generation_id

    back = played.join(fresh="s2", instance_id="i1", can_skip_assignment=True)

    found = played.answers[back]
    assert (found.error, found.member_id, found.generation_id) == (Error.NONE, "s2", generation)
    assert (found.skip_assignment, found.leader_id) == (True, "s2")
    assert played.state is ClassicState.STABLE
    old = played.do(Heartbeat(902, "s1", "i1", generation))
    assert old.error is Error.FENCED_INSTANCE_ID
    synced = played.sync("s2")
    assert played.answers[synced].assignment == b"mine"


def test_the_return_of_a_static_member_that_could_not_be_stored_is_undone() -> None:
    played = Played()
    played.join(fresh="s1", instance_id="i1")
    played.do(Sync(901, "s1", "i1", 1, assignments={"s1": b"mine"}))
    played.store_error = Error.NOT_COORDINATOR

    back = played.join(fresh="s2", instance_id="i1")

    assert played.answers[back].error is Error.NOT_COORDINATOR
    assert set(played.group.metadata.members) == {"s1"}
    assert played.do(Heartbeat(902, "s1", "i1", 1)).error is Error.NONE


def held_static_return() -> tuple[Played, int, StoreGroup]:
    """A stable group of the leader ``m1`` and the static member ``s1``. ``s1`` has returned as ``s2``, and this is not
    stored yet."""
    played = Played()
    played.join(fresh="m1")
    played.join(fresh="s1", instance_id="i1")
    played.join("m1", fresh="m1")
    played.do(Sync(901, "m1", None, 2, assignments={"m1": b"one", "s1": b"mine"}))
    played.do(Sync(902, "s1", "i1", 2))
    played.holds_stores = True
    back = played.join(fresh="s2", instance_id="i1")
    assert back not in played.answers
    return played, back, played.stores[-1]


def test_a_static_return_gets_the_generation_at_the_time_of_the_response() -> None:
    played, back, store = held_static_return()

    played.join("m1", fresh="m1", protocols="range sticky")

    found = played.answers[back]  # s2's join counts, so all members have joined and the rebalance completes
    assert (found.error, found.member_id, found.generation_id) == (Error.NONE, "s2", 3)
    played.do(Stored(store, Error.NONE))  # fails if it is answered again
    assert played.state is ClassicState.COMPLETING_REBALANCE


def test_a_static_return_that_is_stored_during_a_rebalance_joins_again_as_in_kafka() -> None:
    played, back, store = held_static_return()
    third = played.join(fresh="m3")

    played.do(Stored(store, Error.NONE))

    assert (played.answers[back].error, played.answers[back].generation_id) == (Error.NONE, 2)
    assert played.state is ClassicState.PREPARING_REBALANCE
    again = played.join("s2", fresh="s2", instance_id="i1")
    played.join("m1", fresh="m1")
    assert played.answers[again].generation_id == played.answers[third].generation_id == 3


def test_a_second_static_return_fences_the_first_while_it_is_being_written() -> None:
    played, back, store = held_static_return()

    second = played.join(fresh="s3", instance_id="i1")

    assert played.answers[back].error is Error.FENCED_INSTANCE_ID
    played.do(Stored(store, Error.NONE))
    played.do(Stored(played.stores[-1], Error.NONE))
    assert (played.answers[second].error, played.answers[second].member_id) == (Error.NONE, "s3")


def test_a_static_return_whose_write_fails_after_it_was_answered_keeps_its_place() -> None:
    played, back, store = held_static_return()
    played.join("m1", fresh="m1", protocols="range sticky")

    played.do(Stored(store, Error.NOT_COORDINATOR))

    assert played.answers[back].generation_id == 3
    assert set(played.group.metadata.members) == {"m1", "s2"}
    assert played.group.metadata.unsynced == {"m1", "s2"}


def test_a_static_return_is_answered_when_the_group_moves() -> None:
    played, back, store = held_static_return()

    played._take(played.group.end(Error.NOT_COORDINATOR))
    played.do(Stored(store, Error.NOT_COORDINATOR))

    assert played.answers[back].error is Error.NOT_COORDINATOR


def test_the_chosen_protocol_is_supported_by_all_and_preferred_by_most_members() -> None:
    played = Played()
    played.join(fresh="m1", protocols="sticky range")
    second = played.join(fresh="m2", protocols="range roundrobin sticky")
    third = played.join(fresh="m3", protocols="range sticky")
    played.join("m1", fresh="m1", protocols="sticky range")

    assert played.answers[second].protocol_name == "range"
    refused = played.join(fresh="m4", protocols="roundrobin")
    assert played.answers[refused].error is Error.INCONSISTENT_GROUP_PROTOCOL
    assert third in played.answers


def test_an_empty_groups_first_rebalance_waits_for_more_members() -> None:
    played = Played(initial_rebalance_delay_s=0.6)
    first = played.join(fresh="m1")
    played.pass_time(0.4)
    second = played.join(fresh="m2")
    played.pass_time(0.4)
    assert first not in played.answers
    played.pass_time(0.5)
    assert played.answers[first].generation_id == played.answers[second].generation_id == 1


def test_a_group_above_a_lowered_limit_keeps_those_that_join_first() -> None:
    played = Played().stable("m1", "m2")
    played.group = Group(played.group.metadata, GroupLimits(max_size=1))

    first, second = played.join("m1", protocols="sticky range"), played.join("m2")

    assert (played.answers[first].error, played.answers[second].error) == (Error.NONE, Error.GROUP_MAX_SIZE_REACHED)
    assert set(played.group.metadata.members) == {"m1"}


def test_a_static_leader_that_does_not_join_in_time_keeps_its_place_and_another_member_leads() -> None:
    played = Played()
    played.join(fresh="s1", instance_id="i1", session_timeout_s=10 * REBALANCE_S)
    second = played.join(fresh="m2")
    played.pass_time(REBALANCE_S)

    assert played.answers[second].leader_id == "m2"
    assert set(played.group.metadata.members) == {"s1", "m2"}


def test_any_client_may_commit_to_an_empty_group_without_a_generation() -> None:
    assert Played().may_commit("somebody", -1) is Error.NONE


def test_a_member_that_never_syncs_is_removed() -> None:
    played = Played().stable("m1")
    played.join(fresh="m2")
    played.join("m1", fresh="m1")
    played.sync("m1", {"m1": b"", "m2": b""})
    for _ in range(14):
        played.pass_time(REBALANCE_S / 12)
        for member in ("m1", "m2"):
            if member in played.group.metadata.members:
                played.beat(member)

    assert set(played.group.metadata.members) == {"m1"}


@pytest.mark.parametrize(
    ("member_id", "generation", "expected"),
    [
        ("m1", 1, Error.NONE),
        ("m1", 0, Error.ILLEGAL_GENERATION),
        ("m1", 2, Error.ILLEGAL_GENERATION),
        ("stranger", 1, Error.UNKNOWN_MEMBER_ID),
        ("stranger", 2, Error.UNKNOWN_MEMBER_ID),
        ("", -1, Error.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_members_of_the_generation_commit(member_id: str, generation: int, expected: Error) -> None:
    played = Played().stable("m1")
    assert played.may_commit(member_id, generation) is expected


def test_a_commit_that_arrives_late_on_an_earlier_connection_is_refused() -> None:
    group, now = Played().stable("m1").group, 0.0
    assert group.may_commit("m1", None, 1, now, connection=2) is Error.NONE
    assert group.may_commit("m1", None, 1, now, connection=1) is Error.COORDINATOR_NOT_AVAILABLE
    assert group.may_commit("m1", None, 1, now, connection=2) is Error.NONE


def test_a_commit_between_join_and_sync_is_refused() -> None:
    played = Played()
    played.join(fresh="m1")
    assert played.may_commit("m1", 1) is Error.REBALANCE_IN_PROGRESS


def test_the_last_member_that_leaves_leaves_an_empty_group_that_is_stored() -> None:
    played = Played().stable("m1")
    found = played.do(Leave(901, (("m1", None), ("stranger", None))))

    assert isinstance(found, Left)
    assert [error for _, _, error in found.members] == [Error.NONE, Error.UNKNOWN_MEMBER_ID]
    assert played.state is ClassicState.EMPTY
    assert played.stores[-1].assignments == {}


def test_a_group_that_moves_answers_all_waiting_requests() -> None:
    played = Played().stable("m1")
    waiting = played.join(fresh="m2")
    played._take(played.group.end(Error.NOT_COORDINATOR))
    assert played.answers[waiting].error is Error.NOT_COORDINATOR


JAVA = "apache-kafka-java"


def held(played: Played, member_id: str, software: str = JAVA) -> int:
    """The token of a heartbeat that is not answered yet."""
    token = next(played._numbers)
    found = played.do(Heartbeat(token, member_id, None, played.group.metadata.generation_id, software))
    assert isinstance(found, Held)
    del played.answers[token]
    played.limits_s.append(found.limit_s)
    return token


def answered_at_once(played: Played, member_id: str) -> bool:
    generation = played.group.metadata.generation_id
    return isinstance(played.do(Heartbeat(next(played._numbers), member_id, None, generation, JAVA)), Answered)


def test_held_heartbeats_are_answered_when_a_rebalance_begins() -> None:
    played = Played().stable("m1", "m2")
    beats = held(played, "m1"), held(played, "m2")

    played.join(fresh="m3")

    assert [played.answers[one].error for one in beats] == [Error.REBALANCE_IN_PROGRESS] * 2


def test_the_held_heartbeat_of_a_removed_member_is_answered_with_unknown_member_id() -> None:
    played = Played().stable("m1", "m2")
    first, second = held(played, "m1"), held(played, "m2")

    played.do(Leave("by an operator", (("m2", None),)))

    assert played.answers[second].error is Error.UNKNOWN_MEMBER_ID
    assert played.answers[first].error is Error.REBALANCE_IN_PROGRESS


def test_a_held_heartbeat_is_answered_with_not_coordinator_when_the_group_moves() -> None:
    played = Played().stable("m1")
    beat = held(played, "m1")

    played._take(played.group.end(Error.NOT_COORDINATOR))

    assert played.answers[beat].error is Error.NOT_COORDINATOR


def test_a_released_heartbeat_is_answered_only_once_and_without_an_error() -> None:
    played = Played().stable("m1")
    beat = held(played, "m1")

    for _ in range(2):
        played.do(Released(beat, "m1"))

    assert played.answers[beat].error is Error.NONE


def test_the_release_of_a_removed_members_heartbeat_changes_nothing() -> None:
    played = Played().stable("m1")
    beat = held(played, "m1")
    played.do(Leave("by an operator", (("m1", None),)))

    played.do(Released(beat, "m1"))

    assert played.answers[beat].error is Error.UNKNOWN_MEMBER_ID


def test_a_heartbeat_of_a_lost_connection_no_longer_keeps_its_member() -> None:
    played = Played().stable("m1")
    beat = held(played, "m1")

    played.do(ConnectionLost(frozenset({beat})))
    played.pass_time(SESSION_S)

    assert beat not in played.answers
    assert "m1" not in played.group.metadata.members


def test_the_heartbeats_of_a_client_that_gave_one_up_are_no_longer_held() -> None:
    played = Played().stable("m1", "m2")
    beat = held(played, "m1")
    played.pass_time(3.0)
    played.do(ConnectionLost(frozenset({beat}), by_client=True))
    for _ in range(3):
        assert answered_at_once(played, "m1")
        played.pass_time(3.0)


def test_a_heartbeat_on_another_connection_shows_that_the_held_one_was_given_up() -> None:
    played = Played().stable("m1")
    beat = held(played, "m1")
    played.pass_time(3.0)
    assert answered_at_once(played, "m1")
    assert beat in played.answers
    assert answered_at_once(played, "m1")


@pytest.mark.parametrize(("by_client", "after_s"), [(False, 1.0), (True, 4.0)])
def test_a_connection_that_this_instance_closed_and_a_late_answer_do_not_end_holds(
    *, by_client: bool, after_s: float
) -> None:
    played = Played().stable("m1")
    beat = held(played, "m1")
    played.pass_time(after_s)
    played.do(ConnectionLost(frozenset({beat}), by_client=by_client))
    held(played, "m1")


def test_heartbeats_of_a_static_members_next_process_are_held_again() -> None:
    played = Played()
    played.join(fresh="s1", instance_id="i1")
    played.do(Sync(901, "s1", "i1", 1, assignments={"s1": b"mine"}))
    assert isinstance(played.do(Heartbeat("killed while it is held", "s1", "i1", 1, JAVA)), Held)
    del played.answers["killed while it is held"]
    played.do(ConnectionLost(frozenset({"killed while it is held"}), by_client=True))
    played.join(fresh="s2", instance_id="i1")
    assert isinstance(played.do(Heartbeat("next", "s2", "i1", 1, JAVA)), Held)


def test_the_heartbeat_of_a_member_that_has_not_synced_is_not_held() -> None:
    played = Played()
    played.join(fresh="m1")

    beat = Heartbeat("b", "m1", None, played.group.metadata.generation_id, software=JAVA)

    assert played.state is ClassicState.COMPLETING_REBALANCE
    assert played.do(beat).error is Error.NONE


def test_librdkafka_sends_its_heartbeat_again_when_it_has_sent_something_else() -> None:
    """The client may have joined again or left since, so the answer must not end a newer membership."""
    played = Played().stable("m1", "m2")
    generation = played.group.metadata.generation_id
    beat = held(played, "m1", "librdkafka")
    assert played.do(Released(beat, "m1", by_client=True)).error is Error.COORDINATOR_LOAD_IN_PROGRESS

    def late(token: str) -> Error:
        return Error(played.do(Heartbeat(token, "m1", None, generation - 1, "librdkafka")).error)

    assert late("joined since") is Error.NONE
    played.do(Leave("leave", (("m1", None),)))
    assert late("left since") is Error.NONE
    played.pass_time(2.0)
    assert late("too late") is Error.UNKNOWN_MEMBER_ID


def test_a_hold_and_the_silence_after_it_stay_within_the_session_timeout() -> None:
    played = Played().stable("m1")
    played.pass_time(3.0)
    beat = held(played, "m1")
    played.pass_time(played.limits_s[-1])
    played.do(Released(beat, "m1"))
    played.pass_time(5.0)  # it sends heartbeats less often than most
    held(played, "m1")
    played.pass_time(played.limits_s[-1])
    played.do(Released(beat + 1, "m1"))
    played.pass_time(7.0)

    assert played.limits_s == [pytest.approx(SESSION_S / 3), pytest.approx(SESSION_S * 2 / 3 - 5.0)]
    assert played.beat("m1") is Error.NONE


def test_a_member_that_is_silent_for_most_of_its_session_is_not_held() -> None:
    played = Played().stable("m1")
    played.pass_time(7.0)

    assert played.do(Heartbeat("seldom", "m1", None, 1, software=JAVA)) == Answered("seldom", Error.NONE)


def test_a_refused_static_return_leaves_the_old_process_a_member_that_was_told_nothing() -> None:
    played = Played()
    played.join(fresh="s1", instance_id="i1")
    played.do(Sync(901, "s1", "i1", 1, assignments={"s1": b"mine"}))
    assert isinstance(played.do(Heartbeat(902, "s1", "i1", 1, "librdkafka 2.10")), Held)
    del played.answers[902]
    played.holds_stores = True
    back = played.join(fresh="s2", instance_id="i1")
    assert 902 not in played.answers

    played.do(Stored(played.stores[-1], Error.COORDINATOR_NOT_AVAILABLE))

    assert played.answers[back].error is Error.COORDINATOR_NOT_AVAILABLE
    assert played.answers[902].error is Error.NONE
    assert played.do(Heartbeat(903, "s1", "i1", 1)).error is Error.NONE


def test_an_id_that_the_log_never_held_is_given_up_by_a_rebalance() -> None:
    played, _, first = held_static_return()
    second = played.join(fresh="s3", instance_id="i1")

    played.do(Stored(first, Error.COORDINATOR_NOT_AVAILABLE))

    assert played.state is ClassicState.PREPARING_REBALANCE
    assert second not in played.answers


def test_the_number_of_a_refused_generation_is_not_used_again() -> None:
    played = Played()
    played.join(fresh="m1")
    played.store_error = Error.UNKNOWN_SERVER_ERROR
    refused = played.sync("m1", {"m1": b"share"})
    assert (played.answers[refused].error, played.answers[refused].assignment) == (Error.UNKNOWN_SERVER_ERROR, b"")
    played.store_error = Error.NONE
    again = played.join("m1", fresh="m1")
    assert played.answers[again].generation_id == 2


def test_a_group_that_became_empty_is_written_again_until_the_log_takes_it() -> None:
    played = Played().stable("m1")
    played.store_error = Error.COORDINATOR_NOT_AVAILABLE
    before = len(played.stores)
    played.do(Leave(950, (("m1", None),)))
    played.pass_time(2.5)
    assert len(played.stores) == before + 3
    played.store_error = Error.NONE
    played.pass_time(5)
    assert len(played.stores) == before + 4


def test_a_leader_that_syncs_twice_does_not_write_two_assignments_of_one_generation() -> None:
    played = Played()
    played.join(fresh="m1")
    played.holds_stores = True
    first = played.sync("m1", {"m1": b"one"})
    second = played.sync("m1", {"m1": b"two"})

    (store,) = [one for one in played.stores if one.by_leader]
    played.do(Stored(store, Error.NONE))

    assert played.answers[first].error is Error.REBALANCE_IN_PROGRESS
    assert played.answers[second].assignment == b"one"


def test_a_group_knows_how_its_members_went_until_that_is_stored() -> None:
    played = Played().stable("m1", "m2", "m3", "m4")
    departed = played.group.metadata.departed
    assert not departed
    played.do(Leave(901, (("m2", None),), ("c", "/h"), "User:a (client id c, h:7)"))
    played.do(Leave(902, (("m3", None),), ("admin", "/h"), "User:b (client id admin, h:8)"))
    played.join("m1", fresh="m1")
    played.pass_time(SESSION_S + 1)
    assert {name: str(how) for name, how in played.group.metadata.departed.items()} == {
        "m2": "left",
        "m3": "evicted by User:b (client id admin, h:8)",
        "m4": "expired after 10 s",
    }
    played.holds_stores = True
    played.sync("m1", {"m1": b"all"})
    assert len(played.group.metadata.departed) == 3, "not stored yet"
    played.do(Stored(played.stores[-1], Error.NONE))
    assert not played.group.metadata.departed


def test_a_member_that_does_not_rejoin_in_time_has_expired_and_a_static_one_is_replaced() -> None:
    played = Played().stable("m1", "m2")
    played.join(fresh="m3")
    played.join("m1", fresh="m1")
    for _ in range(12):
        played.pass_time(REBALANCE_S / 12)
        if "m2" in played.group.metadata.members:
            played.beat("m2")
    assert str(played.group.metadata.departed["m2"]) == "expired after 60 s"

    static = Played()
    static.join(fresh="s1", instance_id="i1")
    static.join(fresh="s2", instance_id="i1", client_id="two", client_host="/10.0.0.5")
    assert str(static.group.metadata.departed["i1"]) == "replaced by client id two (/10.0.0.5)"
