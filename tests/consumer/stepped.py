"""The connector, stepped by the test, with a scripted channel and application and a manual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kafka_coord.channel.operations import Holder, Offsets, Registration
from kafka_coord.consumer.connector import Connector
from kafka_coord.model import Command, CommandId, PartitionSet, StartPoint, TopicPartition
from kafka_coord.zk.store import Clock, SessionListener, SessionState, Watcher
from tests.coordinator.clock import ManualClock
from tests.simulation.applications import SimulatedFetchers, SimulatedLog

PARTITION = TopicPartition("flights", 0)
REGISTRATION = Registration("g", "c", incarnation=7, token=1, session_id=1)


@dataclass
class Connected:
    """A connection that lives as long as the test."""

    clock: Clock
    state: SessionState = SessionState.CONNECTED
    session_id: int = 1
    timeout_ms: int = 10_000

    @property
    def session(self) -> Connected:
        return self

    lease: float = float("inf")
    began: float = 0.0

    def lease_deadline(self) -> float:
        return self.lease

    def lease_began(self) -> float:
        return self.began

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        del listener
        return lambda: None


@dataclass
class ChannelByHand:
    """Records the connector's leaves and registrations. Attempts to leave raise ``failures`` in order, and attempts to
    register raise ``unavailable``. ``holder`` is the current holder of the name. ``commands`` are in the channel, and
    ``watcher`` is notified of new ones."""

    group: str = "g"
    consumer: str = "c"
    failures: list[Exception] = field(default_factory=list)
    attempts: list[dict[TopicPartition, int]] = field(default_factory=list)
    holder: Holder | None = None
    unavailable: list[Exception] = field(default_factory=list)
    registrations: int = 0
    registered: bool = False
    abandoned: list[Registration] = field(default_factory=list)
    commands: dict[CommandId, Command] = field(default_factory=dict)
    listings: int = 0
    checks: int = 0
    its_own: bool = True
    unanswered: list[Exception] = field(default_factory=list)
    """What the next commits raise."""
    committed_offsets: list[dict[TopicPartition, int]] = field(default_factory=list)
    rebalance_timeout_s: float = 60.0
    reads: list[CommandId] = field(default_factory=list)
    watcher: Watcher | None = None
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    awaited: dict[TopicPartition, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def register(self, value: bytes) -> Registration | Holder:
        del value
        self.registrations += 1
        if self.unavailable:
            raise self.unavailable.pop(0)
        if self.holder is not None:
            return self.holder
        self.registered = True
        return REGISTRATION

    def leave(self, registration: Registration, offsets: Offsets, *, for_good: bool = False) -> frozenset[str]:
        assert registration == REGISTRATION
        del for_good
        self.attempts.append(dict(offsets))
        if self.failures:
            raise self.failures.pop(0)
        return frozenset()

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        del registration, watcher
        return self.registered

    def is_still_its_own(self, registration: Registration) -> bool:
        del registration
        self.checks += 1
        return self.its_own

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        self.listings += 1
        self.watcher = watcher
        return tuple(self.commands), ()

    def was_evicted(self, registration: Registration) -> bool:
        del registration
        return False

    def abandon(self, registration: Registration) -> None:
        self.abandoned.append(registration)

    def unwatch(self) -> None: ...

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None: ...

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        del registration
        return offsets

    def read(self, command: CommandId) -> Command | None:
        self.reads.append(command)
        return self.commands.get(command)

    def drop(self, command: CommandId) -> None:
        raise AssertionError(command)

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        assert registration == REGISTRATION
        if self.unanswered:
            raise self.unanswered.pop(0)
        self.committed_offsets.append(dict(offsets))
        return frozenset()

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        raise AssertionError((registration, command, offsets))

    def await_ends(self, registration: Registration, reasons: Mapping[TopicPartition, str]) -> None:
        assert registration == REGISTRATION
        self.awaited |= reasons

    def keep_ends(self, registration: Registration, ends: Offsets) -> Offsets:
        assert registration == REGISTRATION
        for partition, end in ends.items():
            self.stored.setdefault(partition, end)
            self.awaited.pop(partition, None)
        return {partition: self.stored[partition] for partition in ends}

    def refuse(self, registration: Registration, topics: Mapping[str, str]) -> None:
        assert registration == REGISTRATION
        self.refusals = dict(topics)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        return {partition: self.stored.get(partition) for partition in partitions}


class Member:
    """A consumer of one partition of 100 records."""

    def __init__(self, channel: ChannelByHand | None = None) -> None:
        self.clock = ManualClock()
        self.channel = channel or ChannelByHand()
        self.woken = 0
        log = SimulatedLog()
        log.topics["flights"] = 1
        log.append(PARTITION, 100)
        self.application = SimulatedFetchers(
            log,
            may_hand_out=lambda: True,
            handed=lambda _partition, _begin, _end, _follows: None,
            wake=self._wake,
            topic_of=lambda _partition: 1,
        )
        self.stopped: list[PartitionSet] = []
        self.lost: list[PartitionSet] = []
        self.session = Connected(self.clock)
        self.connector = Connector(
            self.session,
            self.channel,
            self.application,
            registration_value=lambda: b"",
            wake=self._wake,
            auto_commit_interval_s=None,
            on_stop=lambda partitions: self.stopped.append(PartitionSet.of(partitions)),
            on_lost=lambda partitions: self.lost.append(PartitionSet.of(partitions)),
        )

    def hold(self) -> None:
        """Registers, gets the partition, and hands out the first ten records, which the application has in hand."""
        self.connector.step()
        self.application.hold({PARTITION: StartPoint(0)})
        self.application.begin([PARTITION])
        assert self.application.poll(10)

    def step_when_due(self) -> bool:
        """Moves the clock to the connector's due time, and steps it. Returns whether it continues."""
        due = self.connector.step()
        if due is None:
            return False
        self.clock.advance(max(0.0, due - self.clock.monotonic()))
        return True

    def _wake(self) -> None:
        self.woken += 1
