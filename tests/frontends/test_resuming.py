"""A consumer that resumes continues with exactly the partitions it holds. These tests use a simulated ZooKeeper."""

from __future__ import annotations

import pytest

from kafka_coord.channel.frames import AnsweredRequest, RefusedRequest
from kafka_coord.model import NO_PARTITIONS, Ledger, PartitionSet, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.frontends.machine.invariants import ValidatedMachine
from tests.frontends.simulated import TOPIC, SimulatedConsumer, SimulatedHouse


def partitions(*numbers: int) -> PartitionSet:
    return PartitionSet.of(TopicPartition(TOPIC, number) for number in numbers)


def write_ledger(consumer: SimulatedConsumer, owned: PartitionSet, stopping: PartitionSet = NO_PARTITIONS) -> bytes:
    """Writes the consumer's ledger, as the coordinator would, and returns its value."""
    path = layout.ledger(consumer.group, consumer.name)
    value = fields.dump(Ledger(consumer.name, consumer.incarnation, owned, stopping, generation=1).to_json())
    consumer.house.other.ensure_path(path)
    consumer.house.other.set(path, value)
    return value


def resume(consumer: SimulatedConsumer) -> int:
    """Sends ``resume`` on a new connection, and returns the request's id."""
    consumer.connect()
    wanted = {"group": consumer.group, "consumer_id": consumer.name, "incarnation": consumer.incarnation}
    return consumer.say("resume", **wanted, resume_key="k")


@pytest.mark.parametrize("elected_anew", [False, True])
def test_a_consumer_that_resumes_cannot_commit_a_partition_whose_stop_it_acknowledged(
    elected_anew: bool,
) -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register().owning({0: 100, 1: 100})
    write_ledger(s1, owned=partitions(1), stopping=partitions(0))
    s1.answer(s1.told_to_stop(0), {0: 140})
    house.turn(2)
    assert (s1.commands(), house.offset(0)) == ((), 140)

    if elected_anew:
        house.elect_anew()
    asked = resume(s1)
    house.turn(2)
    assert isinstance(s1.answer_to(asked), AnsweredRequest)
    given_up = s1.say_commit({0: 150})
    house.turn(2)
    refused = s1.answer_to(given_up)
    assert isinstance(refused, RefusedRequest)
    assert refused.code == "bad-value"
    own = s1.say_commit({1: 130})
    house.turn(2)
    assert isinstance(s1.answer_to(own), AnsweredRequest)
    assert (house.offset(0), house.offset(1)) == (140, 130)


@pytest.mark.parametrize("elected_anew", [False, True])
def test_a_consumer_that_resumes_cannot_commit_a_partition_whose_start_it_has_not_acknowledged(
    elected_anew: bool,
) -> None:
    """The topic may have been created again in the meantime, so the old offset may belong to deleted records."""
    house = SimulatedHouse()
    s1 = house.consumer().register().owning({0: 100, 1: 100})
    write_ledger(s1, owned=partitions(1), stopping=partitions(0))
    s1.answer(s1.told_to_stop(0), {0: 140})
    house.turn(2)
    write_ledger(s1, owned=partitions(0, 1), stopping=NO_PARTITIONS)
    s1.told_to_start({0: 0})

    if elected_anew:
        house.elect_anew()
    asked = resume(s1)
    house.turn(2)
    assert isinstance(s1.answer_to(asked), AnsweredRequest)
    early = s1.say_commit({0: 140})
    house.turn(2)
    assert isinstance(s1.answer_to(early), RefusedRequest)
    own = s1.say_commit({1: 130})
    house.turn(2)
    assert isinstance(s1.answer_to(own), AnsweredRequest)


def test_a_stopping_partition_can_be_committed_until_its_stop_is_acknowledged() -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register().owning({0: 100})
    write_ledger(s1, owned=NO_PARTITIONS, stopping=partitions(0))
    s1.told_to_stop(0)
    house.elect_anew()
    resume(s1)
    house.turn(2)
    stop = s1.asked("stop-fetcher")
    assert stop is not None
    s1.answer(stop, {0: 140})
    house.turn(2)
    assert (s1.commands(), house.offset(0)) == ((), 140)


@pytest.mark.parametrize("is_forbidden", [False, True])
def test_a_leave_stores_offsets_even_if_the_ledger_was_unreadable_after_the_election(
    is_forbidden: bool,
) -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register().owning({0: 100})
    path = layout.ledger(s1.group, s1.name)
    value = write_ledger(s1, owned=partitions(0))
    if is_forbidden:
        house.forbid(path)
    else:
        house.other.set(path, b"damaged")
    house.elect_anew()

    asked = resume(s1)
    for _ in range(4):
        house.clock.now += 0.4
        house.turn(2)
    assert s1.hear() == []

    house.allow()
    house.other.set(path, value)
    house.clock.now += 0.4
    house.turn(2)
    house.clock.now += 0.4
    house.turn(2)
    assert isinstance(s1.answer_to(asked), AnsweredRequest)
    left = s1.say("leave", offsets={TOPIC: {"0": 160}})
    house.turn(2)
    assert isinstance(s1.answer_to(left), AnsweredRequest)
    assert house.offset(0) == 160


def test_a_consumer_that_resumes_with_an_unreadable_ledger_has_no_known_generation() -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register().owning({0: 100})
    write_ledger(s1, owned=partitions(0))
    house.other.set(layout.ledger(s1.group, s1.name), b"damaged")
    asked = resume(s1)
    house.turn(2)
    assert isinstance(s1.answer_to(asked), AnsweredRequest)
    assert house.gateway.term is not None
    machine = house.gateway.term.machine
    assert isinstance(machine, ValidatedMachine)
    (resumed,) = [line for line in machine.story(s1.group, s1.name) if "Resumed(" in line]
    assert resumed.endswith("generation=None)")


def test_an_unreadable_registration_does_not_prevent_another_consumers_resume() -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register()
    house.consumer("s2", group="other").register()
    house.forbid(layout.registration("other", "s2"))
    house.elect_anew()
    asked = resume(s1)
    house.turn(2)
    assert isinstance(s1.answer_to(asked), AnsweredRequest)


def test_a_silent_member_whose_registration_was_unreadable_at_the_election_is_expired() -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register()
    path = layout.registration(s1.group, s1.name)
    value = house.other.get(path).data
    house.other.set(path, b"damaged")
    house.elect_anew()
    house.other.set(path, value)
    for _ in range(60):
        house.clock.now += 0.25
        house.turn()
        if house.other.exists(path) is None:
            break
    assert house.other.exists(path) is None
