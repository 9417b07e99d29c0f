"""When the listener for Kafka clients is ready."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.frontends.kafka.instances import WITHOUT_BROKER_S, Readiness


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_ready_once_every_partition_that_its_broker_leads_now_is_loaded() -> None:
    one = Readiness(Clock())
    one.loaded({1}, {1, 2, 3})
    assert (one.is_ready, one.reason) == (False, "2 of 3 partitions of the groups log to be loaded")
    one.loaded({1}, {1})  # the others have moved away
    assert (one.is_ready, one.reason) == (True, "")


def test_a_broker_that_leads_nothing_makes_it_ready() -> None:
    one = Readiness(Clock())
    one.loaded(set(), set())
    assert one.is_ready


def test_a_partition_that_moves_here_later_does_not_take_readiness_back() -> None:
    one = Readiness(Clock())
    one.loaded(set(), set())
    one.loaded(set(), {4})
    assert (one.is_ready, one.reason) == (True, "1 of 1 partitions of the groups log to be loaded")
    one.broker_failed("it is gone")
    assert one.is_ready


def test_without_its_broker_it_is_ready_after_30_s_and_says_why() -> None:
    clock = Clock()
    one = Readiness(clock)
    one.broker_failed("connection refused")
    clock.now += WITHOUT_BROKER_S - 1
    assert not one.is_ready
    clock.now += 1
    assert one.is_ready
    assert one.reason == "its broker, which cannot be reached: connection refused"
    one.loaded(set(), set())
    assert (one.is_ready, one.reason) == (True, "")


def test_a_broker_that_never_answers_counts_as_unreachable() -> None:
    clock = Clock()
    one = Readiness(clock)
    clock.now += WITHOUT_BROKER_S
    assert one.is_ready


def test_slow_loading_is_no_unreachable_broker() -> None:
    clock = Clock()
    one = Readiness(clock)
    one.loaded(set(), {1})
    clock.now += 10 * WITHOUT_BROKER_S
    assert not one.is_ready
