"""A failure that one consumer causes affects only that consumer. These tests use a simulated ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_coord.channel.frames import AnsweredRequest, RefusedRequest
from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import StoreError
from kafka_coord.frontends.members.fenced_store import FencedStore, isolated
from kafka_coord.frontends.members.machine.instructions import WriteMember
from kafka_coord.frontends.members.machine.stimuli import MemberId
from kafka_coord.frontends.members.writes import MAX_READS, MemberZnodes, Write
from kafka_coord.frontends.socket.access import GatewayOptions
from kafka_coord.model import CommittedOffset, TopicPartition
from kafka_coord.model.json_fields import MAX_VALUE_BYTES
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store
from tests.frontends.simulated import TOPIC, SimulatedConsumer, SimulatedHouse


def subscription_of(size: int) -> dict[str, int]:
    """A subscription of about ``size`` bytes."""
    return {f"{'t' * 90}-{number:07d}": 1 for number in range(size // 104)}


def test_a_registration_too_large_to_read_back_is_refused_and_others_succeed() -> None:
    house = SimulatedHouse()
    huge, good = house.consumer("huge"), house.consumer("good")
    asked = huge.say_register(subscription=subscription_of(MAX_VALUE_BYTES + 20_000))
    asked_too = good.say_register()
    house.turn()
    refused = huge.answer_to(asked)
    assert isinstance(refused, RefusedRequest)
    assert (refused.code, refused.frame["field"]) == ("bad-subscription", "subscription")
    assert str(MAX_VALUE_BYTES) in refused.message
    assert isinstance(good.answer_to(asked_too), AnsweredRequest)


def test_registrations_too_large_for_one_request_are_written_in_several() -> None:
    house = SimulatedHouse(GatewayOptions(registrations_per_s=1_000))
    many = [house.consumer(f"c{number}") for number in range(200)]
    asked = [consumer.say_register(subscription=subscription_of(11_000)) for consumer in many]
    house.turn()
    answers = [consumer.answer_to(number) for consumer, number in zip(many, asked, strict=True)]
    assert all(isinstance(answer, AnsweredRequest) for answer in answers)


def test_a_registration_that_zookeeper_refuses_is_refused_with_the_reason_and_others_succeed() -> None:
    house = SimulatedHouse()
    many = [house.consumer(f"c{number}") for number in range(9)]
    asked = [consumer.say_register() for consumer in many]
    forbidden = layout.registration("delays", "c4")

    def takes(doing: str) -> None:
        if doing.startswith("multi") and forbidden in doing:
            raise StoreError("no such luck", forbidden)

    house.around.takes = takes
    house.turn(3)
    answers = [consumer.answer_to(number) for consumer, number in zip(many, asked, strict=True)]
    assert [isinstance(answer, AnsweredRequest) for answer in answers] == [number != 4 for number in range(9)]
    refused = answers[4]
    assert isinstance(refused, RefusedRequest)
    assert refused.message == "no such luck"


def test_requests_for_very_many_offsets_do_not_delay_other_consumers() -> None:
    house = SimulatedHouse()
    reads: list[int] = []

    def takes(doing: str) -> None:
        if doing.startswith("read"):
            reads.append(int(doing.split()[1]))

    greedy = [house.consumer(f"greedy{number}").register() for number in range(5)]
    bystander = house.consumer("bystander").register().owning({0: 5})
    house.turn(3)
    bystander.hear().clear()
    wanted = {TOPIC: {str(partition): 0 for partition in range(12_000)}}
    asked = [consumer.say("committed", offsets=wanted) for consumer in greedy]
    committed = bystander.say("committed", offsets={TOPIC: {"0": 0}})
    house.around.takes = takes
    house.turn()
    assert 0 < sum(reads) <= MAX_READS + 100
    commit = bystander.say_commit({0: 7})
    reads.clear()
    house.turn()
    assert isinstance(bystander.answer_to(commit), AnsweredRequest), (
        "the commit must wait for only one part of the large reads"
    )
    assert sum(reads) <= MAX_READS + 100
    for _ in range(5 * 12_000 // MAX_READS + 10):
        house.gateway.step()
    assert isinstance(bystander.answer_to(committed), AnsweredRequest)
    answers = [consumer.answer_to(number) for consumer, number in zip(greedy, asked, strict=True)]
    assert all(
        isinstance(answer, AnsweredRequest) and len(answer.frame["offsets"][TOPIC]) == 12_000 for answer in answers
    )


def test_a_request_whose_answer_exceeds_a_frame_is_refused_and_the_connection_stays_open() -> None:
    house = SimulatedHouse()
    s1 = house.consumer().register()
    wanted = {"t" * 200 + str(number): {"0": 0} for number in range(5_000)}
    asked = s1.say("committed", offsets=wanted)
    for _ in range(5_000 // MAX_READS + 1):
        house.turn()
    refused = s1.answer_to(asked)
    assert isinstance(refused, RefusedRequest)
    assert refused.code == "bad-value"
    assert isinstance(s1.answer_to(_committed(house, s1)), AnsweredRequest)


def _committed(house: SimulatedHouse, consumer: SimulatedConsumer) -> int:
    number = consumer.say("committed", offsets={TOPIC: {"0": 0}})
    house.turn()
    return number


def test_a_connection_with_a_promised_place_stays_open_until_then() -> None:
    house = SimulatedHouse(GatewayOptions(registrations_per_s=1, unregistered_ms=2_000))
    house.turn()
    many = [house.consumer(f"c{number}") for number in range(6)]
    asked = [consumer.say_register(session_timeout_ms=60_000) for consumer in many]
    last, number = many[-1], asked[-1]
    house.turn()
    told = last.answer_to(number)
    assert isinstance(told, RefusedRequest)
    assert told.code == "slow-down"
    assert told.frame["retry_ms"] > 3_000
    for _ in range(told.frame["retry_ms"] // 500 + 1):
        house.clock.now += 0.5
        house.turn()
    assert not last.peer.closed
    assert last.register(session_timeout_ms=60_000).incarnation


def test_a_frame_that_makes_the_gateway_fail_ends_only_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    house = SimulatedHouse()
    bad, good = house.consumer("bad").register(), house.consumer("good").register().owning({0: 5})

    def fails(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("kafka_coord.frontends.socket.gateway.read_offsets", fails)
        bad.say_commit({})
    house.turn()
    assert bad.peer.closed
    assert isinstance(_answer_to_commit(house, good), AnsweredRequest)


def test_a_consumer_that_disconnects_before_its_answer_does_not_affect_others() -> None:
    house = SimulatedHouse()
    gone, good = house.consumer("gone").register().owning({0: 5}), house.consumer("good").register().owning({1: 5})
    gone.say_commit({0: 6})
    commit = good.say_commit({1: 6})
    house.gateway.lost(gone.connection)
    house.turn()
    assert (house.offset(0), house.offset(1)) == (6, 6)
    assert isinstance(good.answer_to(commit), AnsweredRequest)


def _answer_to_commit(house: SimulatedHouse, consumer: SimulatedConsumer) -> AnsweredRequest | RefusedRequest | None:
    number = consumer.say_commit({0: 6})
    house.turn()
    return consumer.answer_to(number)


def test_only_items_that_are_refused_on_their_own_fail() -> None:
    done: list[int] = []
    failed: list[int] = []

    def do(numbers: object) -> None:
        assert isinstance(numbers, list)
        if 13 in numbers or 4 in numbers:
            raise StoreError("unlucky")
        done.extend(numbers)

    isolated(list(range(20)), do, lambda number, _error: failed.append(number))
    assert sorted(failed) == [4, 13]
    assert sorted(done + failed) == list(range(20))


def test_the_fenced_store_overrides_every_method_of_a_store() -> None:
    inherited = {name for name in vars(Store) if not name.startswith("_")} - set(vars(FencedStore))
    assert inherited == set()


def _write(number: int, **wanted: Any) -> Write:
    registration = Registration("g", "c", incarnation=7, token=1, session_id=1)
    znodes = MemberZnodes(registration, ConsumerChannel(SimulatedHouse().store, "g", "c"))
    return Write(znodes, WriteMember(MemberId("g", "c", 7), number, {}, **wanted))


def test_details_are_written_with_the_offsets() -> None:
    details = {TopicPartition(TOPIC, 0): CommittedOffset(5, metadata="checked")}
    paths = [op.path for op in _write(1, details=details).ops()]
    assert paths[-1] == layout.offset_details("g", TOPIC, 0)
