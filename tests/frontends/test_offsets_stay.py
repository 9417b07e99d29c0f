"""Neither a lost reply of ZooKeeper nor a failed write moves a committed offset back."""

from __future__ import annotations

from kafka_coord.errors import MultiFailed, NoAuth
from kafka_coord.zk import layout
from tests.frontends.simulated import TOPIC, SimulatedConsumer, SimulatedHouse


def test_a_commit_whose_reply_was_lost_does_not_overwrite_the_next_owners_commit() -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register().owning({0: 100})
    stop = s1.told_to_stop(0)
    s1.say_commit({0: 130})
    s1.answer(stop, {0: 140})

    offset_path = layout.offset("delays", TOPIC, 0)
    lost: list[str] = []

    def loses_each_write_once(doing: str) -> bool:
        if offset_path in doing and doing.startswith("multi") and doing not in lost:
            lost.append(doing)
            return True
        return False

    house.around.loses = loses_each_write_once
    given_on = _until_given_on(house, s1)

    assert lost
    assert given_on, "the stop was not acknowledged"
    house.turn(5)
    assert house.offset(0) == 200


def _until_given_on(house: SimulatedHouse, consumer: SimulatedConsumer) -> bool:
    """Whether the stop was acknowledged. If so, the next owner immediately commits the offset 200."""
    for _ in range(10):
        house.clock.now += 0.2
        house.turn()
        if not consumer.commands():
            house.commit_as_another(0, 200)
            return True
    return False


def test_offsets_of_a_failed_write_are_discarded_once_their_partition_is_given_up() -> None:
    """The write of the ping's offsets fails, but the membership continues. The acknowledgement after it succeeds."""
    house = SimulatedHouse()
    s1 = house.consumer().register().owning({0: 100, 1: 100})
    stop = s1.told_to_stop(0)
    house.clock.now += 4.0
    house.turn()
    ping = s1.asked("ping")
    assert ping is not None
    s1.answer(ping, {0: 130, 1: 131})
    house.clock.now += 0.2

    path = layout.offset("delays", TOPIC, 1)
    refused = MultiFailed("may not be written", path, 4, NoAuth("may not be written", path))

    def refuses_what_the_ping_brought(doing: str) -> None:
        if doing.startswith("multi") and path in doing:
            s1.answer(stop, {0: 140})  # arrives while the ping's offsets are being written
            house.around.takes = refuses_again
            raise refused

    def refuses_again(doing: str) -> None:
        if doing.startswith("multi") and path in doing:
            house.around.takes = lambda _doing: None
            raise refused

    house.around.takes = refuses_what_the_ping_brought
    assert _until_given_on(house, s1)
    for _ in range(5):
        house.clock.now += 2.0
        house.turn()
        for asked in iter(lambda: s1.asked("ping"), None):
            s1.answer(asked, {1: 150})
    assert house.offset(0) == 200
    assert house.offset(1) == 150
