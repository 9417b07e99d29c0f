"""Tests of the membership machine, without a clock, sockets or ZooKeeper."""

from __future__ import annotations

import pytest

from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.machine import MAX_UNANSWERED_PROBES, READ_AGAIN_S
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions, Trouble
from kafka_coord.model.assignment import CommandType
from tests.frontends.machine.house import OPTIONS, SESSION_S, House, tp
from tests.frontends.machine.invariants import InvariantBroken

# --- offsets -----------------------------------------------------------------------------------------------------


def test_a_member_has_at_most_one_write_in_progress() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    (stop,) = house.send(member, house.stop(member, 0))
    house.tell(stimuli.CommitWanted(1, 7, {tp(0): 130}), stimuli.CommandAcknowledged(1, stop, {tp(0): 140}))
    commit = house.one(instructions.WriteMember)
    assert commit.offsets == {tp(0): 130}
    assert house.pass_time(1.0) == []
    house.written(commit)
    acknowledgement = house.one(instructions.WriteMember)
    assert (acknowledgement.acknowledges, acknowledgement.offsets) == (stop, {tp(0): 140})
    house.written(commit)
    assert house.taken(instructions.WriteMember) == [], "the second report of an outcome must have no effect"
    assert house.state(member).has_unwritten


def test_offsets_of_a_failed_write_are_stored_with_the_acknowledgement_that_follows() -> None:
    """A clean handover repeats no record, so this offset must not be lost. If it were written later, it would overwrite
    an offset of the next owner."""
    house = House()
    member = house.holding(house.register(), 0, 1)
    (stop,) = house.send(member, house.stop(member, 0))
    house.pass_time(2.0)
    house.answer_probes({0: 130, 1: 131})
    house.pass_time(0.25)
    offers = house.one(instructions.WriteMember)
    house.tell(stimuli.CommandAcknowledged(1, stop, {}))
    house.written(offers, Trouble.FAILED)
    acknowledgement = house.one(instructions.WriteMember)
    assert acknowledgement.offsets == {tp(0): 130}
    house.written(acknowledgement)
    assert house.state(member).reported == {tp(1): 131}


def test_offsets_of_a_failed_write_do_not_replace_a_later_commit() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.pass_time(2.0)
    house.answer_probes({0: 130})
    house.pass_time(0.25)
    offers = house.one(instructions.WriteMember)
    house.tell(stimuli.CommitWanted(1, 7, {tp(0): 150}))
    house.written(offers, Trouble.FAILED)
    house.written(house.one(instructions.WriteMember))
    assert house.state(member).reported == {}


def test_a_commit_of_a_partition_that_the_member_does_not_hold_is_refused() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.tell(stimuli.CommitWanted(1, 7, {tp(1): 5}))
    assert house.one(instructions.AnswerCommit).refused is instructions.Refused.NOT_HELD
    (stop,) = house.send(member, house.stop(member, 0))
    house.tell(stimuli.CommandAcknowledged(1, stop, {}), stimuli.CommitWanted(1, 8, {tp(0): 5}))
    assert house.one(instructions.AnswerCommit).refused is instructions.Refused.NOT_HELD


# --- heard and done ----------------------------------------------------------------------------------------------


def test_a_probe_is_reported_as_heard_once_the_offsets_in_its_answer_are_stored() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.pass_time(2.0)
    house.answer_probes({0: 10})
    house.pass_time(0.25)
    store = house.one(instructions.WriteMember)
    assert house.taken(instructions.Probe) == []
    house.written(store)
    assert house.one(instructions.Probe).heard == house.state(member).newest_answer > 0


def test_a_probe_is_not_reported_as_heard_before_all_earlier_ones_are_answered() -> None:
    house = House()
    member = house.register()
    house.pass_time(4.0)
    first, second = house.taken(instructions.Probe)
    house.tell(stimuli.ProbeAnswered(1, second.number, {}))
    assert house.state(member).heard < first.number
    house.tell(stimuli.ProbeAnswered(1, first.number, {}))
    assert house.state(member).heard == second.number


def test_a_probe_is_not_reported_as_heard_while_a_commit_that_replaced_its_offset_is_waiting() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.tell(stimuli.CommitWanted(1, 7, {tp(0): 5}))
    earlier = house.one(instructions.WriteMember)
    house.pass_time(2.0)
    house.answer_probes({0: 10})
    house.pass_time(0.25)
    house.tell(stimuli.CommitWanted(1, 8, {tp(0): 20}))
    house.written(earlier)
    assert house.state(member).heard == 0
    house.written(house.one(instructions.WriteMember))
    house.pass_time(2.0)
    house.answer_probes()
    assert house.state(member).heard > 0


def test_an_acknowledgement_is_reported_as_done_once_it_is_stored() -> None:
    house = House()
    member = house.register()
    (start,) = house.send(member, house.start(member, 0))
    house.tell(stimuli.CommandAcknowledged(1, start, {}))
    assert house.taken(instructions.Probe) == []
    house.written(house.one(instructions.WriteMember))
    assert house.one(instructions.Probe).done == start


def test_the_number_of_unanswered_probes_is_limited() -> None:
    house = House()
    house.register(options=RegistrationOptions(60.0))
    for _ in range(500):
        house.now += 0.25
        house.step(stimuli.HeardFrom(1))
    assert len(house.taken(instructions.Probe)) == MAX_UNANSWERED_PROBES


# --- time --------------------------------------------------------------------------------------------------------


def expiries(house: House) -> list[instructions.WriteMember]:
    return [store for store in house.taken(instructions.WriteMember) if store.leaves]


def test_a_member_is_expired_after_it_was_silent_for_its_session_timeout() -> None:
    house = House()
    member = house.register()
    house.pass_time(SESSION_S - 0.25)
    assert expiries(house) == []
    house.pass_time(0.25)
    (expiry,) = expiries(house)
    house.written(expiry)
    assert not house.is_member(member)
    assert house.one(instructions.Dismiss).connection == 1


def test_a_sleeping_computer_causes_no_expiries() -> None:
    house = House()
    house.register()
    house.pass_time(1.0)
    house.now += 10 * SESSION_S
    house.step()
    house.pass_time(SESSION_S - 2.0)
    assert expiries(house) == []
    house.pass_time(2.0)
    assert len(expiries(house)) == 1


def test_silence_does_not_count_while_the_instance_is_not_certain_to_lead() -> None:
    house = House()
    house.register()
    house.pass_time(1.0)
    house.out.clear()
    assert house.pass_time(5 * SESSION_S, leads=False) == []
    house.pass_time(SESSION_S - 2.0)
    assert expiries(house) == []


def test_a_failed_expiry_is_retried_without_offsets_and_then_again_later() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.state(member).reported[tp(0)] = 9
    house.pass_time(SESSION_S + 1)
    (expiry,) = expiries(house)
    house.written(expiry, Trouble.FAILED)
    (bare,) = expiries(house)
    assert bare.offsets == {}
    house.written(bare, Trouble.FAILED)
    assert house.is_member(member)
    house.pass_time(SESSION_S - 0.25)
    assert expiries(house) == []
    house.pass_time(1)
    assert len(expiries(house)) == 1


# --- commands ----------------------------------------------------------------------------------------------------


def test_commands_are_sent_in_order_and_one_at_a_time() -> None:
    house = House()
    member = house.register()
    first, second = house.send(member, house.start(member, 0), house.start(member, 1))
    assert house.one(instructions.Deliver).command_id == first
    house.tell(stimuli.CommandAcknowledged(1, second, {}))
    assert house.taken(instructions.WriteMember) == [], "the member acknowledged a command that it was not sent"
    house.tell(stimuli.CommandAcknowledged(1, first, {}), stimuli.CommandAcknowledged(1, first, {}))
    house.written(house.one(instructions.WriteMember))
    assert house.one(instructions.ReadCommand).command_id == second


def test_an_unreadable_command_delays_later_ones_until_it_becomes_readable() -> None:
    house = House()
    member = house.register()
    first, second = house.command_id(CommandType.START_FETCHER), house.command_id(CommandType.STOP_FETCHER)
    house.tell(stimuli.CommandsListed(member, (first, second)))
    for _ in range(3):
        assert house.one(instructions.ReadCommand).command_id == first
        house.tell(stimuli.CommandRead(member, first, None, "not JSON"))
        house.pass_time(SESSION_S / 3)
        house.answer_probes()
    assert [tell.event for tell in house.taken(instructions.ReportEvent)].count(instructions.MemberEvent.STUCK) == 1
    house.tell(stimuli.CommandRead(member, first, house.start(member, 0)))
    assert house.one(instructions.Deliver).command_id == first


def test_a_command_for_an_earlier_incarnation_is_dropped_and_one_for_a_later_one_ends_the_membership() -> None:
    house = House()
    member = house.register()
    earlier = member._replace(incarnation=member.incarnation - 1)
    (old,) = house.send(member, house.start(earlier, 0))
    assert house.one(instructions.DropCommand).command_id == old
    house.send(member, house.start(member._replace(incarnation=member.incarnation + 1), 0))
    assert house.one(instructions.Dismiss)
    assert not house.is_member(member)


# --- coming and going --------------------------------------------------------------------------------------------


def test_a_resume_waits_until_the_members_acknowledgement_is_written() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    (stop,) = house.send(member, house.stop(member, 0))
    house.tell(stimuli.CommandAcknowledged(1, stop, {}), stimuli.Disconnected(1))
    house.tell(stimuli.ResumeWanted(2, 1, member, "k"))
    assert house.taken(instructions.ReadMember) == []
    house.written(house.one(instructions.WriteMember))
    assert house.one(instructions.ReadMember).member == member
    house.tell(stimuli.MemberRead(member, frozenset(), ()))
    assert house.one(instructions.Resumed).connection == 2
    assert house.state(member).held == set()


@pytest.mark.parametrize("change", [{"resume_key": "another's"}, {"resume_key": ""}, {"incarnation": 1}])
def test_a_resume_with_a_wrong_key_or_incarnation_is_refused(change: dict[str, object]) -> None:
    house = House()
    member = house.register()
    wanted = MemberId("delays", "c1", int(str(change.get("incarnation", member.incarnation))))
    house.tell(stimuli.ResumeWanted(2, 1, wanted, str(change.get("resume_key", "k"))))
    assert house.one(instructions.RefuseResume).connection == 2
    assert house.state(member).connection == 1


def test_a_waiting_resume_is_refused_when_the_membership_ends() -> None:
    house = House()
    member = house.register()
    house.tell(stimuli.Disconnected(1), stimuli.ResumeWanted(2, 1, member, "k"), stimuli.RegistrationDeleted(member))
    assert house.one(instructions.RefuseResume).connection == 2


@pytest.mark.parametrize(("left_s", "lasts_s"), [(None, SESSION_S), (2.0, 2.0)])
def test_a_member_of_an_earlier_term_has_what_is_left_of_its_session(left_s: float | None, lasts_s: float) -> None:
    house = House()
    house.tell(stimuli.MemberFound(MemberId("delays", "c1", 7), OPTIONS, left_s))
    house.pass_time(lasts_s - 0.5)
    assert house.taken(instructions.WriteMember) == []
    house.pass_time(1.0)
    assert house.one(instructions.WriteMember).member.consumer == "c1"


def test_a_resume_waits_while_the_members_ledger_is_unreadable() -> None:
    house = House()
    member = MemberId("delays", "c1", 7)
    house.tell(stimuli.MemberFound(member, OPTIONS), stimuli.ResumeWanted(2, 1, member, "k"))
    for _ in range(3):
        assert house.one(instructions.ReadMember).member == member
        house.tell(stimuli.MemberRead(member, None, (), "its ledger is not JSON"))
        assert (
            house.taken(instructions.Resumed)
            == house.taken(instructions.RefuseResume)
            == house.taken(instructions.ReadMember)
            == []
        )
        house.pass_time(READ_AGAIN_S)
    assert [tell.event for tell in house.taken(instructions.ReportEvent)] == [instructions.MemberEvent.NOT_RESUMED]
    house.tell(stimuli.MemberRead(member, frozenset({tp(0)}), ()))
    assert house.one(instructions.Resumed).connection == 2
    house.tell(stimuli.LeaveWanted(2, 9, {tp(0): 40}))
    assert house.one(instructions.WriteMember).offsets == {tp(0): 40}


def test_a_ledger_is_not_read_again_after_the_waiting_client_disconnects() -> None:
    house = House()
    member = MemberId("delays", "c1", 7)
    house.tell(stimuli.MemberFound(member, OPTIONS), stimuli.ResumeWanted(2, 1, member, "k"))
    house.tell(stimuli.MemberRead(member, None, (), "its ledger is not JSON"), stimuli.Disconnected(2))
    house.taken(instructions.ReadMember)
    house.pass_time(2 * READ_AGAIN_S)
    assert house.taken(instructions.ReadMember) == []


def test_a_resume_needs_no_ledger_in_the_term_that_started_the_members_partitions() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.tell(stimuli.Disconnected(1), stimuli.ResumeWanted(2, 1, member, "k"))
    house.tell(stimuli.MemberRead(member, None, (), "its ledger is not JSON"))
    assert house.one(instructions.Resumed).connection == 2
    assert house.state(member).held == {tp(0)}


def test_a_resume_waits_while_the_members_commands_are_unreadable() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.tell(stimuli.Disconnected(1), stimuli.ResumeWanted(2, 1, member, "k"))
    house.tell(stimuli.MemberRead(member, None, None, "may not be read"))
    assert house.taken(instructions.RefuseResume) == []
    house.tell(stimuli.MemberRead(member, frozenset({tp(0)}), ()))
    assert house.one(instructions.Resumed).connection == 2


def test_a_second_registration_of_a_member_ends_its_earlier_incarnation() -> None:
    house = House()
    before = house.register(1)
    after = house.register(2)
    assert house.one(instructions.Dismiss).connection == 1
    assert not house.is_member(before)
    assert house.state(after).connection == 2
    house.tell(stimuli.Disconnected(1))
    assert house.state(after).connection == 2


def test_a_leave_is_answered_once_it_is_written() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.tell(stimuli.LeaveWanted(1, 9, {tp(0): 40, tp(1): 3}, for_good=True))
    leave = house.one(instructions.WriteMember)
    assert (leave.leaves, leave.for_good, leave.offsets) == (True, True, {tp(0): 40})
    house.written(leave)
    assert house.one(instructions.Farewell).request == 9
    assert not house.is_member(member)


def test_a_resumed_member_gets_one_probe_an_interval() -> None:
    house = House()
    member = house.register()
    house.pass_time(1.0)
    house.tell(stimuli.Disconnected(1), stimuli.ResumeWanted(2, 1, member, "k"), stimuli.MemberRead(member, None, ()))
    house.taken(instructions.Probe)
    house.pass_time(2.25)
    assert len(house.taken(instructions.Probe)) == 1


# --- the machine itself ------------------------------------------------------------------------------------------


def test_the_error_for_a_broken_invariant_shows_the_events_that_led_to_it() -> None:
    house = House()
    member = house.holding(house.register(), 0)
    house.state(member).reported[tp(3)] = 1
    with pytest.raises(InvariantBroken, match=r"does not hold[\s\S]*RegistrationWanted[\s\S]*Heard"):
        house.tell(stimuli.HeardFrom(1))


def test_a_story_contains_the_events_of_one_consumer() -> None:
    house = House()
    house.register(1, "c1")
    house.register(2, "c2")
    house.tell(stimuli.HeardFrom(2))
    story = house.machine.story("delays", "c2")
    assert "c1" not in "".join(story)
    assert story[-1].endswith(str(stimuli.HeardFrom(2)))


def test_the_time_of_the_next_step_excludes_time_in_which_the_machine_did_not_run() -> None:
    house = House()
    house.register(options=OPTIONS)
    assert house.machine.due() == pytest.approx(house.now + SESSION_S / 3)
    house.now += 30.5
    house.step()
    assert house.machine.due() == pytest.approx(house.now + SESSION_S / 3 - 0.5)
