"""What a new term gives the members of earlier terms, and when the clock of their sessions stands still."""

from __future__ import annotations

import pytest

from kafka_coord.classic_groups.sessions import AttentiveClock, Heard, Sessions

GROUP, A, B = "delays", "a-1", "b-2"
SESSION_S = 120.0


def sessions(*happened: tuple[int, float] | Heard) -> Sessions:
    """Reads a log. Each entry is a record's term and time in seconds, or a note that the same term writes then."""
    found = Sessions()
    for one in happened:
        if isinstance(one, Heard):
            found.noted(one)
        else:
            found.passed(one[0], round(one[1] * 1000))
    return found


def left_s(found: Sessions, member_id: str = A, session_s: float = SESSION_S) -> float:
    return found.left_s(GROUP, member_id, session_s)


def heard(term: int, **left_s: float | None) -> Heard:
    names = {"a": A, "b": B}
    return Heard(
        term, {(GROUP, names[key]): None if left is None else round(left * 1000) for key, left in left_s.items()}
    )


def test_a_member_that_the_last_term_has_heard_gets_a_full_session():
    found = sessions((5, 0), (5, 10), heard(5, a=None), (5, 4_000))
    assert left_s(found) == SESSION_S


def test_one_that_it_has_not_heard_gets_what_remains():
    found = sessions((5, 0), (5, 10), heard(5, a=110, b=None), (5, 60))
    assert left_s(found) == 110 - 50
    assert left_s(found, B) == SESSION_S


def test_without_a_note_everybody_gets_a_full_session():
    assert left_s(sessions()) == left_s(sessions((1, 0), (1, 50), (2, 60), (2, 90))) == SESSION_S


def test_a_member_that_joined_after_the_note_gets_a_full_session():
    found = sessions((5, 0), (5, 10), heard(5, b=110), (5, 500))
    assert left_s(found) == SESSION_S


def test_terms_that_are_too_short_for_a_note_take_their_time_from_everybody():
    found = sessions((5, 0), (5, 10), heard(5, a=110, b=None), (5, 30), (6, 500), (6, 508), (7, 700), (7, 709))
    assert left_s(found) == 110 - 20 - 8 - 9
    assert left_s(found, B) == SESSION_S - 8 - 9


def test_an_outage_between_terms_takes_nothing():
    found = sessions((5, 0), (5, 10), heard(5, a=110), (6, 10_000), (7, 90_000))
    assert left_s(found) == 110


def test_a_member_gets_at_least_30_s_or_its_session_if_that_is_shorter():
    found = sessions((5, 0), (5, 10), heard(5, a=20), (5, 3_000))
    assert left_s(found) == 30
    assert left_s(found, session_s=6) == 6


def test_terms_that_alternate_do_not_keep_a_dead_member():
    """Terms of 70 s, each of which hears only b: a's session of 120 s ends in the second."""
    found, given = sessions((1, 0), (1, 10), heard(1, a=None, b=None), (1, 70)), []
    for term in range(2, 6):
        given.append(left_s(found))
        began = term * 1_000
        for at, note in ((0, None), (10, heard(term, a=given[-1] - 10, b=None)), (70, None)):
            found.passed(term, (began + at) * 1000)
            if note is not None:
                found.noted(note)
    assert given == [120, 50, 30, 30]
    assert left_s(found, B) == SESSION_S


def test_a_note_in_several_records_is_one_note():
    found = sessions((5, 0), (5, 10), heard(5, a=110), heard(5, b=90))
    assert (left_s(found), left_s(found, B)) == (110, 90)


def test_a_newer_note_replaces_all_records_of_an_older_one():
    found = sessions((5, 0), (5, 10), heard(5, a=110), heard(5, b=90), (6, 20), (6, 30), heard(6, a=None))
    assert (left_s(found), left_s(found, B)) == (SESSION_S, SESSION_S)


def test_a_wall_clock_that_goes_back_counts_as_no_time():
    found = sessions((5, 100), (5, 110), heard(5, a=110), (5, 50), (5, 60))
    assert left_s(found) == 100


@pytest.mark.parametrize("leads", [True, False])
def test_the_clock_stands_still_in_a_stall_and_while_the_instance_may_be_deposed(leads: bool):
    clock = AttentiveClock(1_000.0)
    clock.step_began(1_000.25, leads=leads)
    clock.step_began(1_060.25, leads=True)
    assert clock.at(1_060.25) == pytest.approx(1_000.25 + (0.5 if leads else 0.0))
    assert clock.monotonic(1_010.0) == pytest.approx(1_010.0 + 60.0 - (0.5 if leads else 0.0))


def test_a_timer_set_for_a_time_of_the_clock_finds_it_reached():
    """The first case of a rounding error: the timer was set for the same moment again and again."""
    clock = AttentiveClock(1_000.0)
    clock.step_began(1_000.0 + 4.757778325866184, leads=False)
    for due in [1019.7418560967977, *(1_000 + n / 7 for n in range(1_000))]:
        assert clock.at(clock.monotonic(due)) >= due
