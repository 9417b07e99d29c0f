"""Time in which the gateway did not run does not count as members' silence, whatever delayed the gateway."""

from __future__ import annotations

import pytest

from kafka_coord.zk import layout
from tests.frontends.simulated import TOPIC, SimulatedConsumer, SimulatedHouse

SESSION_S = 4.0


def consumers(house: SimulatedHouse, count: int = 20) -> list[SimulatedConsumer]:
    made = [house.consumer(f"c{number}").register(session_timeout_ms=int(SESSION_S * 1000)) for number in range(count)]
    for number, consumer in enumerate(made):
        consumer.owning({number: 10})
    return made


def pass_time(house: SimulatedHouse, seconds: float, answering: list[SimulatedConsumer]) -> None:
    """Advances the clock for a healthy gateway. The consumers in ``answering`` answer their pings."""
    for _ in range(round(seconds / 0.25)):
        house.clock.now += 0.25
        house.turn()
        answer_pings(answering)


def answer_pings(consumers: list[SimulatedConsumer]) -> None:
    for number, consumer in enumerate(consumers):
        for ping in iter(lambda c=consumer: c.asked("ping"), None):  # type: ignore[misc]
            consumer.answer(ping, {number: 20})


@pytest.mark.parametrize("where", ["exists", "read", f"multi Check {layout.COORDINATOR_EPOCH}, Check"])
def test_a_slow_zookeeper_in_the_middle_of_a_step_causes_no_expiries(where: str) -> None:
    """A request of a step delays the gateway for longer than every session timeout. Then all consumers answer."""
    house = SimulatedHouse()
    members = consumers(house)
    pass_time(house, 2.0, members)
    stood: list[str] = []

    def stands_still(doing: str) -> None:
        if doing.startswith(where) and not stood:
            stood.append(doing)
            house.clock.now += 1.5 * SESSION_S

    house.around.takes = stands_still
    for _ in range(20):
        house.clock.now += 0.25
        house.other.set(layout.registration("delays", "c0"), house.other.get(layout.registration("delays", "c0")).data)
        asked = members[0].say("committed", offsets={TOPIC: {"0": 0}})
        house.turn()
        members[0].answer_to(asked)
        answer_pings(members)
    assert stood
    pass_time(house, SESSION_S, members)
    assert house.gateway.consumers == len(members)
    assert house.gateway.statistics.expired == 0


def test_a_freeze_of_the_gateway_causes_no_expiries_and_silent_members_expire_later() -> None:
    house = SimulatedHouse()
    silent, *others = consumers(house)
    pass_time(house, 1.0, [silent, *others])
    house.clock.now += 60.0
    house.turn()
    assert house.gateway.consumers == 20
    pass_time(house, SESSION_S - 2.0, others)
    assert house.gateway.consumers == 20, "the silent consumer's session timeout has not passed yet"
    pass_time(house, 2.5, others)
    assert house.gateway.consumers == 19
    assert silent.peer.closed
    assert not any(consumer.peer.closed for consumer in others)


def test_the_gateway_does_not_count_silence_while_it_is_not_certain_to_lead() -> None:
    house = SimulatedHouse()
    members = consumers(house, 3)
    leads, house.leadership_view.leads = house.leadership_view.leads, lambda: False  # type: ignore[method-assign]
    pass_time(house, 3 * SESSION_S, [])
    house.leadership_view.leads = leads  # type: ignore[method-assign]
    pass_time(house, 2.0, members)
    assert house.gateway.consumers == 3


def test_an_instance_that_may_be_deposed_does_not_confirm_pings() -> None:
    """The next coordinator counts a consumer's session from its own election. Answers that the consumer sends after
    that election must not extend its lease."""
    house = SimulatedHouse()
    (member,) = consumers(house, 1)
    pass_time(house, 1.0, [])
    house.clock.now += 1.0
    house.turn()
    leads, house.leadership_view.leads = house.leadership_view.leads, lambda: False  # type: ignore[method-assign]
    *others, ping = iter(lambda: member.asked("ping"), None)
    for asked in (*others, ping):
        member.answer(asked, {})
    house.turn(3)
    assert member.asked("ping") is None
    house.leadership_view.leads = leads  # type: ignore[method-assign]
    house.turn(2)
    assert [asked.frame["heard"] for asked in iter(lambda: member.asked("ping"), None)][-1] == ping.id


def test_the_age_of_the_last_step_grows_while_zookeeper_is_away() -> None:
    house = SimulatedHouse()
    house.turn()
    assert house.gateway.step_age_s == 0.0
    house.store.disconnect()
    house.clock.now += 7.0
    house.gateway.step()
    assert house.gateway.step_age_s == 7.0
