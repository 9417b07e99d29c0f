"""Coordinators that take turns keep no dead member for ever, and no living one loses its session."""

from __future__ import annotations

import logging

import pytest

from kafka_coord.channel.frames import AnsweredRequest
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.frontends.simulated import SimulatedConsumer, SimulatedHouse

SESSION_S = 120.0


def registered(house: SimulatedHouse, name: str, session_s: float = SESSION_S) -> SimulatedConsumer:
    return house.consumer(name).register(session_timeout_ms=round(session_s * 1000))


def resume(consumer: SimulatedConsumer) -> None:
    consumer.connect()
    consumer.say(
        "resume", group=consumer.group, consumer_id=consumer.name, incarnation=consumer.incarnation, resume_key="k"
    )
    consumer.house.turn(2)


def term_of(house: SimulatedHouse, seconds: float, *living: SimulatedConsumer) -> None:
    """A new coordinator serves for so long. The living come back to it and answer."""
    house.elect_anew()
    for consumer in living:
        resume(consumer)
    for _ in range(round(seconds / 0.25)):
        house.clock.now += 0.25
        house.turn()
        for consumer in living:
            for ping in iter(lambda c=consumer: c.asked("ping"), None):  # type: ignore[misc]
                consumer.answer(ping)


def is_member(house: SimulatedHouse, consumer: SimulatedConsumer) -> bool:
    return house.other.exists(layout.registration(consumer.group, consumer.name)) is not None


@pytest.mark.parametrize("seconds", [5.0, 40.0])
def test_a_dead_member_ends_although_coordinators_take_turns(seconds: float) -> None:
    house = SimulatedHouse()
    dead, alive = registered(house, "dead"), registered(house, "alive")
    served_s = 0.0
    while is_member(house, dead) and served_s < 3 * SESSION_S:
        term_of(house, seconds, alive)
        served_s += seconds
    if seconds > 30:
        assert SESSION_S <= served_s <= SESSION_S + seconds
    else:  # each term gives it 30 s; only a term that lasts so long removes it
        assert left_of(house, dead) == pytest.approx(30_000 - seconds * 1000, abs=2_500)
        term_of(house, 31.0, alive)
        assert not is_member(house, dead)
    assert is_member(house, alive)


def left_of(house: SimulatedHouse, consumer: SimulatedConsumer) -> int | None:
    value = fields.load(house.other.get(layout.HEARD).data, layout.HEARD)
    return value["left_ms"].get(consumer.group, {}).get(f"{consumer.name} {consumer.incarnation}")


def test_members_that_registered_in_one_transaction_are_told_apart() -> None:
    """They have the same czxid."""
    house = SimulatedHouse()
    registering = {one: one.say_register(session_timeout_ms=120_000) for one in map(house.consumer, ("dead", "alive"))}
    house.turn()
    for one, number in registering.items():
        answer = one.answer_to(number)
        assert isinstance(answer, AnsweredRequest)
        one.incarnation = answer.frame["incarnation"]
    dead, alive = registering
    assert dead.incarnation == alive.incarnation
    term_of(house, 40.0, alive)
    assert left_of(house, dead) == pytest.approx(80_000, abs=2_500)
    assert left_of(house, alive) is None


def test_a_member_that_a_term_has_heard_gets_a_full_session_again() -> None:
    house = SimulatedHouse()
    one, other = registered(house, "one"), registered(house, "other")
    term_of(house, 80.0, other)
    assert left_of(house, one) == pytest.approx(40_000, abs=2_500)
    term_of(house, 20.0, one, other)
    assert left_of(house, one) is None
    term_of(house, SESSION_S - 5.0, other)
    assert is_member(house, one)
    term_of(house, 31.0, other)
    assert not is_member(house, one)


def test_an_outage_between_terms_takes_nothing_from_a_session() -> None:
    house = SimulatedHouse()
    one = registered(house, "one")
    term_of(house, 20.0)
    house.leadership_view.held = None
    house.turn()
    house.clock.now += 10 * SESSION_S
    house.reconnect()
    term_of(house, 90.0)
    assert is_member(house, one)
    resume(one)
    assert is_member(house, one)


def test_a_member_with_a_short_session_is_not_noted_and_a_quiet_term_writes_nothing() -> None:
    house = SimulatedHouse()
    one, brief = registered(house, "one"), registered(house, "brief", 20.0)
    term_of(house, 15.0, one)
    assert is_member(house, brief)
    assert house.other.exists(layout.HEARD) is None


def test_a_note_that_cannot_be_read_gives_everybody_a_full_session_and_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = SimulatedHouse()
    one = registered(house, "one")
    term_of(house, 60.0)
    house.other.set(layout.HEARD, b"garbage")
    with caplog.at_level(logging.WARNING):
        term_of(house, SESSION_S - 5.0)
    assert "cannot read which socket consumers were heard" in caplog.text
    assert is_member(house, one)
    assert left_of(house, one) is not None


def test_a_member_that_returns_is_answered_only_once_the_note_no_longer_calls_it_silent() -> None:
    """Its lease begins anew with the answer. A coordinator that follows at once must wait for as long."""
    house = SimulatedHouse()
    one = registered(house, "one")
    term_of(house, 80.0)
    assert left_of(house, one) is not None
    one.connect()
    number = one.say("resume", group=one.group, consumer_id=one.name, incarnation=one.incarnation, resume_key="k")
    noted: list[bool] = []

    def lost(doing: str) -> bool:
        if layout.HEARD in doing:
            noted.append(True)
        return layout.HEARD in doing and len(noted) == 1

    house.around.loses = lost
    for _ in range(40):
        house.turn()
        if (answer := one.answer_to(number)) is not None:
            break
        house.clock.now += 0.05
    assert isinstance(answer, AnsweredRequest)
    assert noted
    assert left_of(house, one) is None
    term_of(house, SESSION_S - 5.0)
    assert is_member(house, one)
