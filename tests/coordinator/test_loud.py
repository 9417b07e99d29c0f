"""Tests that a coordinator that cannot decide reports this repeatedly in the log, and in its health answer."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.errors import KafkaCoordError
from kafka_coord.zk import layout
from kafka_coord.zk.election import COMPLAIN_AGAIN_S
from tests.coordinator.harness import World
from tests.coordinator.led import Led
from tests.simulation.scheduler import VirtualClock
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import SimulatedStore, connected_store
from tests.waiting import eventually

EPOCH_HELD = "cannot elect anyone: /consumers/coordinator_epoch holds 'garbage'"


class Stepped:
    """An instance on a simulated ZooKeeper. The test runs it one turn at a time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = SimulatedZooKeeper()
        self.store = self.connected()
        self.service = CoordinatorService(self.connected(), 1, options=CoordinatorOptions())

    def connected(self) -> SimulatedStore:
        return connected_store(self.server, self.clock, timeout_ms=600_000)

    def turn(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        for store in (self.store, self.service._store):
            while store.has_notification():  # type: ignore[attr-defined]
                store.deliver()  # type: ignore[attr-defined]
            store.heartbeat()  # type: ignore[attr-defined]
        self.service.turn()


def test_the_log_says_why_an_instance_whose_epoch_changed_steps_down(caplog: pytest.LogCaptureFixture) -> None:
    world = Stepped()
    world.turn()
    world.turn()
    assert world.service.leads
    world.store.set(layout.COORDINATOR_EPOCH, b"garbage")

    world.turn()

    (said,) = [line for line in caplog.messages if "stepped down" in line]
    assert said.endswith(
        "someone wrote to or deleted /consumers/coordinator_epoch, so this instance can no longer write"
    )


def test_an_unreadable_epoch_is_logged_every_minute_and_reported_as_the_obstacle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Stepped()
    world.store.ensure_path(layout.COORDINATOR_EPOCH)
    world.store.set(layout.COORDINATOR_EPOCH, b"garbage")

    minutes = 3
    with caplog.at_level(logging.ERROR):
        for _ in range(minutes * round(COMPLAIN_AGAIN_S)):
            world.turn()

    said = [record for record in caplog.records if EPOCH_HELD in record.getMessage()]
    assert len(said) in {minutes, minutes + 1}
    assert not world.service.leads
    assert EPOCH_HELD in world.service.obstacle

    world.store.set(layout.COORDINATOR_EPOCH, b"4")
    world.turn()
    assert world.service.obstacle == ""
    assert world.service.leadership is not None
    assert world.service.leadership.epoch == 5


def test_an_elected_instance_whose_epoch_is_damaged_reports_that_no_instance_coordinates() -> None:
    world = Stepped()
    world.turn()
    assert world.service.leads
    world.store.set(layout.COORDINATOR_EPOCH, b"garbage")
    assert world.service.coordinator is not None
    world.service.coordinator.handler.deposed = True  # the result of its next fenced write

    for _ in range(3):
        world.turn()

    assert not world.service.leads
    assert EPOCH_HELD in world.service.obstacle
    assert "no instance is coordinating" in world.service._status


def test_a_startup_that_fails_because_of_a_defect_is_logged_every_minute_and_repeated(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Stepped()
    world.store.ensure_path(layout.broker_topic("flights"))

    def surrogate(*_arguments: object) -> None:
        raise UnicodeError("a lone surrogate")

    monkeypatch.setattr("kafka_coord.coordinator.coordinator.ConsumerCoordinator._read_what_is_listed", surrogate)
    with caplog.at_level(logging.ERROR):
        for _ in range(130):
            world.turn()
    said = [record for record in caplog.records if "a lone surrogate" in record.getMessage()]
    assert len(said) in {2, 3}
    assert "a lone surrogate" in world.service.obstacle
    assert not world.service.leads
    assert world.store.exists(layout.COORDINATOR) is None, "another instance may try"

    monkeypatch.undo()
    for _ in range(5):
        world.turn()
    assert world.service.leads
    assert world.service.obstacle == ""


def test_the_age_of_the_handler_grows_while_a_step_lasts() -> None:
    led = Led("flights", 4)
    led.clock.now += 5
    assert led.handler.age_s() == pytest.approx(5)
    led.handler.step()
    assert led.handler.age_s() == 0
    ages = []
    led.join("g", "c1")

    def hang(_store: SimulatedStore, doing: str) -> None:
        if doing.startswith("read"):
            led.clock.now += 30
            ages.append(led.handler.age_s())

    led.store._around.before_effect = hang  # type: ignore[method-assign]
    led.handler.step()
    assert ages[0] >= 30
    assert led.handler.age_s() == 0


def test_a_group_whose_decoding_fails_affects_neither_the_handler_nor_other_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    led = Led("flights", 4)
    for group in ("g1", "g2", "g3"):
        led.join(group, "c1")
    monkeypatch.setattr("kafka_coord.coordinator.image.decode_settings", _only_of("g1", "g3"))
    for group in ("g1", "g2", "g3"):
        led.store.set(layout.group(group), b'{"version":1}')
    led.handler.step()
    assert led.handler.failed_passes == 1
    assert [group for group in ("g1", "g2", "g3") if led.store.exists(layout.assignment(group))] == ["g1", "g3"]


def _only_of(*groups: str) -> Any:
    from kafka_coord.model import GroupSettings

    def decode(where: str, _node: object) -> GroupSettings:
        if where.rpartition("/")[2] not in groups:
            raise UnicodeError("a lone surrogate")
        return GroupSettings()

    return decode


@pytest.mark.zookeeper
def test_when_a_handler_ends_its_instance_ends_too_and_another_is_elected(world: World) -> None:
    first = world.instance(1).start_elected()
    second = world.instance(2).start()
    assert first.service.handler_age_s() is not None
    coordinator = first.service.coordinator

    def defect(_timeout_s: float) -> bool:
        raise ValueError("a defect")

    coordinator.handler._step = defect
    coordinator.queue.request("delays")

    eventually(lambda: second.service.leads)
    with pytest.raises(KafkaCoordError, match="the rebalance request handler ended"):
        first.service.wait(10)
    assert first.service.handler_age_s() is None


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "has not settled" in record.getMessage()]


def run(led: Led, seconds: int) -> None:
    for _ in range(seconds):
        led.clock.now += 1
        while led.store.has_notification():
            led.store.deliver()
        while led.handler.step():
            pass


def test_a_partition_without_an_owner_is_logged_every_minute_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    led = Led("flights", 4)
    led.store.ensure_path(layout.offset("g", "flights", 2))
    led.store.set(layout.offset("g", "flights", 2), b"x")
    led.join("g", "c1")
    run(led, 1)
    for command in led.store.children(layout.channel("g", "c1")):
        led.store.delete(layout.command("g", "c1", command))
    run(led, 20)
    assert led.handler.stuck_groups() == [], "a rebalance in progress is not stuck yet"

    run(led, 200)

    said = warnings_of(caplog)
    assert len(said) in {3, 4}
    assert all("1 partition without an owner" in one for one in said)
    assert all("offsets/flights/2 is unreadable" in one for one in said)
    (found,) = led.handler.stuck_groups()
    assert (found.group, found.ownerless) == ("g", 1)
    assert found.for_s > 200

    led.store.set(layout.offset("g", "flights", 2), b"7")
    run(led, 5)
    for command in led.store.children(layout.channel("g", "c1")):
        led.store.delete(layout.command("g", "c1", command))
    run(led, 5)
    assert led.handler.stuck_groups() == []
    assert len(warnings_of(caplog)) == len(said)


def test_a_group_that_cannot_be_decided_is_logged_every_minute_with_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led("flights", 4)
    monkeypatch.setattr("kafka_coord.coordinator.image.decode_settings", _only_of("g2"))
    for group in ("g1", "g2"):
        led.join(group, "c1")
        led.store.set(layout.group(group), b'{"version":1}')
    run(led, 200)
    said = [one for one in warnings_of(caplog) if "group=g1" in one]
    assert len(said) in {3, 4}
    assert all("the last pass failed: a lone surrogate" in one for one in said)
    assert "g1" in {found.group for found in led.handler.stuck_groups()}
    monkeypatch.undo()
    run(led, 10)
    assert "g1" not in {found.group for found in led.handler.stuck_groups() if "the last pass failed" in found.reason}
