"""In-memory groups with a fake coordinator, which sends commands to members as the real one does."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.channel.zookeeper import Holder
from kafka_coord.consumer.settings import stream_count
from kafka_coord.coordinator.assignors import AssignmentInputs, built_in_assignors
from kafka_coord.errors import MembershipLost
from kafka_coord.model import (
    NO_OFFSET,
    NO_PARTITIONS,
    Command,
    CommandId,
    CommandType,
    Member,
    PartitionSet,
    StartFetcher,
    StartPoint,
    StopFetcher,
    TopicInfo,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.testing.fake_log import FakeLogs
from kafka_coord.zk.store import Watcher, WatchEvent, WatchType

SESSION = 1
"""The id of every session. One is enough, because the fake's sessions never end."""


@dataclass(slots=True)
class _Joined:
    """A member. ``owned`` holds its partitions, including those in commands that it has yet to acknowledge."""

    registration: Registration
    member: Member
    owned: PartitionSet = NO_PARTITIONS
    commands: dict[CommandId, Command] = field(default_factory=dict)
    watchers: list[Watcher] = field(default_factory=list)

    def awaits(self, kind: type[Command]) -> bool:
        """Returns whether the member has yet to acknowledge a command of the given kind."""
        return any(isinstance(command, kind) for command in self.commands.values())


class FakeGroups:
    """All groups. Thread-safe. ``logs`` holds the topics."""

    def __init__(self, logs: FakeLogs) -> None:
        self.lock = threading.RLock()
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.members: dict[str, dict[str, _Joined]] = {}
        self._targets: dict[str, Mapping[str, PartitionSet]] = {}
        self._logs = logs
        self._numbers = itertools.count(1)

    def join(self, group: str, consumer: str, value: bytes) -> Registration:
        member = Member.from_json(fields.load(value, consumer), consumer, next(self._numbers), consumer)
        registration = Registration(group, consumer, member.incarnation, 0, SESSION)
        self.members.setdefault(group, {})[consumer] = _Joined(registration, member)
        self.rebalance(group)
        return registration

    def remove(self, group: str, consumer: str) -> None:
        joined = self.members.get(group, {}).pop(consumer, None)
        if joined is not None:
            self._tell(joined, WatchType.DELETED)
            self.rebalance(group)

    def of(self, registration: Registration) -> _Joined:
        """Returns the registered member. Raises :class:`MembershipLost` if that incarnation is not registered."""
        joined = self.members.get(registration.group, {}).get(registration.consumer)
        if joined is None or joined.registration != registration:
            raise MembershipLost(
                f"consumer {registration.consumer!r} is no longer registered in group {registration.group!r} as this"
                " incarnation"
            )
        return joined

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._logs.topics)

    def rebalance(self, group: str) -> None:
        """Computes the target, stops the partitions that move, and starts the partitions that no member holds."""
        with self.lock:
            members = self.members.get(group, {})
            if not members:
                return
            with self._logs.changed:
                partitions = {name: frozenset(range(len(logs))) for name, logs in self._logs.topics.items()}
            chosen = {name: joined.member for name, joined in sorted(members.items())}
            subscribed = {n: tuple(sorted(t for t in partitions if m.subscription.wants(t))) for n, m in chosen.items()}
            topics = {
                t: TopicInfo(t, partitions[t], t) for t in sorted({t for names in subscribed.values() for t in names})
            }
            current = {name: had for name, had in self._targets.get(group, {}).items() if name in members}
            assignor = built_in_assignors()[next(iter(chosen.values())).assignor or "sticky"]
            target = assignor.assign(AssignmentInputs(chosen, topics, subscribed, current)).members
            self._targets[group] = target
            self._command(group, members, target)

    def _command(self, group: str, members: Mapping[str, _Joined], target: Mapping[str, PartitionSet]) -> None:
        generation = next(self._numbers)
        for name, joined in members.items():
            moving = joined.owned - target[name]
            if moving and not joined.awaits(StopFetcher) and not joined.awaits(StartFetcher):
                incarnation = joined.registration.incarnation
                self._send(joined, StopFetcher(generation, 1, incarnation, moving, "they move"))
        held = PartitionSet.union(joined.owned for joined in members.values())
        stored = self.offsets.setdefault(group, {})
        for name, joined in members.items():
            free = sorted(target[name] - held)
            if free and not joined.awaits(StartFetcher):
                joined.owned |= PartitionSet.of(free)
                streams = itertools.cycle(range(stream_count(joined.member.subscription)))
                starts = {tp: StartPoint(stored.get(tp, NO_OFFSET), next(streams)) for tp in free}
                self._send(
                    joined, StartFetcher(generation, 1, joined.registration.incarnation, starts, "no member holds them")
                )

    def _send(self, joined: _Joined, command: Command) -> None:
        number = next(self._numbers)
        prefix = "stop" if command.type is CommandType.STOP_FETCHER else "start"
        joined.commands[CommandId(number, command.type, f"{prefix}-{number:010d}")] = command
        self._tell(joined, WatchType.CHILD)

    def _tell(self, joined: _Joined, what: WatchType) -> None:
        watchers, joined.watchers = joined.watchers, []
        for watcher in watchers:
            watcher(WatchEvent(what, ""))

    def store(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        """Stores offsets. Returns the topics that do not exist."""
        self.of(registration)
        gone = frozenset(tp.topic for tp in offsets if tp.topic not in self._logs.topics)
        kept = {tp: offset for tp, offset in offsets.items() if tp.topic not in gone}
        self.offsets.setdefault(registration.group, {}).update(kept)
        return gone


class FakeChannel:
    """Implements :class:`kafka_coord.channel.interface.MemberChannel`."""

    def __init__(self, groups: FakeGroups, group: str, consumer: str) -> None:
        self._groups = groups
        self.group = group
        self.consumer = consumer
        self._mine: Registration | None = None

    def register(self, value: bytes) -> Registration | Holder:
        with self._groups.lock:
            holder = self._groups.members.get(self.group, {}).get(self.consumer)
            if holder is not None and holder.registration != self._mine:
                return Holder(holder.registration.incarnation, SESSION, holder.member)
            self._mine = self._groups.join(self.group, self.consumer, value)
            return self._mine

    def abandon(self, registration: Registration) -> None:
        """Does nothing: :meth:`register` replaces the registration."""

    def was_evicted(self, registration: Registration) -> bool:
        return not self.is_registered(registration)

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        with self._groups.lock:
            try:
                joined = self._groups.of(registration)
            except MembershipLost:
                return False
            if watcher is not None:
                joined.watchers.append(watcher)
            return True

    def is_still_its_own(self, registration: Registration) -> bool:
        return self.is_registered(registration)

    @property
    def rebalance_timeout_s(self) -> float:
        return math.inf

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        with self._groups.lock:
            joined = self._joined()
            if watcher is not None:
                joined.watchers.append(watcher)
            return tuple(sorted(joined.commands)), ()

    def _joined(self) -> _Joined:
        if self._mine is None:
            raise MembershipLost("the consumer has not registered yet")
        return self._groups.of(self._mine)

    def unwatch(self) -> None:
        """Does nothing: all that a watcher does is wake its owner."""

    def read(self, command: CommandId) -> Command | None:
        with self._groups.lock:
            return self._joined().commands.get(command)

    def drop(self, command: CommandId) -> None:
        """Does nothing: the fake never sends a command for another incarnation."""

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        with self._groups.lock:
            return self._groups.store(registration, offsets)

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        self.commit(registration, offsets)
        return offsets

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        with self._groups.lock:
            gone = self._groups.store(registration, offsets)
            joined = self._groups.of(registration)
            done = joined.commands.pop(command, None)
            if isinstance(done, StopFetcher):
                joined.owned -= done.partitions
            self._groups.rebalance(self.group)
            return gone

    def leave(self, registration: Registration, offsets: Offsets, *, for_good: bool = False) -> frozenset[str]:
        del for_good
        with self._groups.lock:
            gone = self._groups.store(registration, offsets)
            self._groups.remove(self.group, self.consumer)
            return gone

    def await_ends(self, registration: Registration, reasons: Mapping[TopicPartition, str]) -> None:
        """Does nothing: every end of the fake cluster can be listed."""

    def keep_ends(self, registration: Registration, ends: Offsets) -> Offsets:
        with self._groups.lock:
            self._groups.of(registration)
            stored = self._groups.offsets.setdefault(self.group, {})
            return {tp: stored.setdefault(tp, end) for tp, end in ends.items() if tp.topic in self._groups.topics}

    def refuse(self, registration: Registration, topics: Mapping[str, str]) -> None:
        """Does nothing: the fake cluster forbids nothing."""

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Does nothing: there are no znodes."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        with self._groups.lock:
            stored = self._groups.offsets.get(self.group, {})
            return {tp: stored.get(tp) for tp in partitions}
