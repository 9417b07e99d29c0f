"""What a leave stores and when, step by step: the connector against a channel and an application played by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.consumer.connector import Connector
from kafka_coord.errors import MembershipLost, StoreUnavailable
from kafka_coord.model import Command, CommandId, PartitionSet, StartPoint, TopicPartition
from kafka_coord.zk.store import Op, SessionListener, SessionState, Watcher
from tests.coordinator.clock import ManualClock
from tests.simulation.applications import SimulatedFetchers, SimulatedLog

PARTITION = TopicPartition("flights", 0)
REGISTRATION = Registration("g", "c", incarnation=7, token=1, session_id=1)


@dataclass
class Connected:
    """A connection that lives for as long as the test does."""

    clock: ManualClock
    state: SessionState = SessionState.CONNECTED
    session_id: int = 1
    timeout_ms: int = 10_000
    suspended_since: float | None = None

    @property
    def session(self) -> Connected:
        return self

    def lease_deadline(self) -> float:
        return float("inf")

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        del listener
        return lambda: None


@dataclass
class ChannelByHand:
    """Notes what the connector leaves with. ``failures`` are raised by the attempts to come, the first one first."""

    group: str = "g"
    consumer: str = "c"
    failures: list[Exception] = field(default_factory=list)
    attempts: list[dict[TopicPartition, int]] = field(default_factory=list)

    def register(self, value: bytes) -> Registration:
        del value
        return REGISTRATION

    def leave(self, registration: Registration, offsets: Offsets, also: Iterable[Op] = ()) -> frozenset[str]:
        assert registration == REGISTRATION
        del also
        self.attempts.append(dict(offsets))
        if self.failures:
            raise self.failures.pop(0)
        return frozenset()

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        del registration, watcher
        return True

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        del watcher
        return (), ()

    def was_evicted(self, registration: Registration) -> bool:
        del registration
        return False

    def abandon(self, registration: Registration) -> None: ...

    def unwatch(self) -> None: ...

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None: ...

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        del registration
        return offsets

    def read(self, command: CommandId) -> Command | None:
        raise AssertionError(command)

    def drop(self, command: CommandId) -> None:
        raise AssertionError(command)

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        raise AssertionError((registration, offsets))

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        raise AssertionError((registration, command, offsets))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        raise AssertionError(partitions)


class Member:
    """A member that holds one partition of 100 records and has handed out the first ten: they are in hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.channel = ChannelByHand()
        self.woken = 0
        log = SimulatedLog()
        log.topics["flights"] = 1
        log.append(PARTITION, 100)
        self.application = SimulatedFetchers(
            log,
            may_hand_out=lambda: True,
            handed=lambda _partition, _begin, _end: None,
            wake=self._wake,
            topic_of=lambda _partition: 1,
        )
        self.stopped: list[PartitionSet] = []
        self.lost: list[PartitionSet] = []
        self.connector = Connector(
            Connected(self.clock),
            self.channel,
            self.application,
            registration_value=lambda: b"",
            wake=self._wake,
            auto_commit_interval_s=None,
            on_stop=lambda partitions: self.stopped.append(PartitionSet.of(partitions)),
            on_lost=lambda partitions: self.lost.append(PartitionSet.of(partitions)),
        )
        self.connector.step()
        self.application.hold({PARTITION: StartPoint(0)})
        self.application.begin([PARTITION])
        assert self.application.poll(10)

    def _wake(self) -> None:
        self.woken += 1


@pytest.fixture
def member() -> Member:
    return Member()


def test_a_leave_waits_for_the_record_in_hand_and_counts_it(member: Member) -> None:
    member.connector.close(5.0)
    member.connector.step()
    assert member.channel.attempts == []
    assert member.stopped == []
    woken = member.woken

    assert not member.application.poll(10), "nothing more is handed out"
    assert member.woken > woken
    member.connector.step()

    assert member.channel.attempts == [{PARTITION: 10}]
    assert member.stopped == [PartitionSet.of([PARTITION])]
    assert member.connector.done


def test_what_is_still_in_hand_when_the_time_is_over_is_not_counted(member: Member) -> None:
    member.application.poll(10)  # comes back from the first ten, and has ten more in hand
    member.connector.close(5.0)
    due = member.connector.step()
    while due is not None:
        assert member.channel.attempts == []
        member.clock.advance(max(0.0, due - member.clock.monotonic()))
        due = member.connector.step()
    assert member.clock.monotonic() == pytest.approx(ManualClock().monotonic() + 5.0)
    assert member.channel.attempts == [{PARTITION: 10}]


def test_nobody_waits_for_an_application_that_will_not_come_back(member: Member) -> None:
    member.connector.close(5.0, in_hand=lambda: False)
    member.connector.step()
    assert member.channel.attempts == [{}]
    assert member.connector.done


def test_each_attempt_stores_how_far_the_application_has_come_by_then(member: Member) -> None:
    member.channel.failures = [StoreUnavailable("away"), StoreUnavailable("away")]
    member.connector.close(5.0, in_hand=lambda: False)
    member.connector.step()
    member.application.finish()
    for _ in range(2):
        member.clock.advance(1.0)
        member.connector.step()
    assert member.channel.attempts == [{}, {PARTITION: 10}, {PARTITION: 10}]
    assert len(member.stopped) == 1
    assert member.connector.done


def test_a_leave_whose_answer_was_lost_is_no_loss(member: Member) -> None:
    member.application.finish()
    member.channel.failures = [StoreUnavailable("the answer was lost"), MembershipLost("no longer registered")]
    member.connector.close(5.0)
    member.connector.step()
    member.connector.step()
    member.connector.step()
    assert member.connector.done
    assert (member.lost, member.connector.counters.losses) == ([], 0)


def test_without_zookeeper_a_leave_ends_with_its_time(member: Member) -> None:
    member.application.finish()
    member.channel.failures = [StoreUnavailable("away")] * 100
    member.connector.close(5.0)
    due = member.connector.step()
    while due is not None:
        member.clock.advance(max(0.0, due - member.clock.monotonic()))
        due = member.connector.step()
    assert member.connector.done
    assert member.clock.monotonic() < ManualClock().monotonic() + 6.0


def test_the_application_may_commit_while_the_leave_waits_for_it(member: Member) -> None:
    member.connector.close(5.0)
    member.connector.step()
    member.application.finish()
    late = {PARTITION: 10}
    before = member.connector.commit({PARTITION: 5})
    member.channel.commit = lambda registration, offsets: frozenset()  # type: ignore[method-assign]
    member.connector.step()
    assert before.result(0) is None
    assert member.channel.attempts == [late]
    assert member.connector.commit(late).result(0) is None, "stored by the leave itself"
    assert member.connector.commit({PARTITION: 11}).exception(0) is not None
