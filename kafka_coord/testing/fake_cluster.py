"""A fake ZooKeeper, Kafka and coordinator in memory, for unit tests of applications.

The consumers are real, including their connector, fetchers and commit rules. Only librdkafka and the channel to the
coordinator are replaced by in-memory fakes.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from kafka_coord import AsyncConsumer, Consumer
from kafka_coord.channel.operations import Holder, Offsets, Registration
from kafka_coord.consumer.fetchers import FetchClients
from kafka_coord.consumer.other_clients import explained
from kafka_coord.consumer.settings import MemberSettings, stream_count
from kafka_coord.consumer.transport import Endpoint
from kafka_coord.consumer.troubles import Look, Present
from kafka_coord.coordinator.assignors import AssignmentInputs, built_in_assignors
from kafka_coord.errors import MembershipLost, NotFound
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
    Subscription,
    TopicInfo,
    TopicPartition,
)
from kafka_coord.model.offsets import Coverage
from kafka_coord.zk import SystemClock
from kafka_coord.zk.store import Clock, SessionListener, SessionState, Watcher, WatchEvent, WatchType

_LATEST, _EARLIEST = -1, -2
"""The special timestamps of Kafka's ListOffsets request."""


class FakeMessage:
    """Behaves like ``confluent_kafka.Message``."""

    def __init__(self, topic: str, partition: int, offset: int, **fields: Any) -> None:
        self._topic, self._partition, self._offset, self._fields = topic, partition, offset, fields

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._fields.get("error")

    def key(self) -> bytes | None:
        return self._fields.get("key")

    def value(self) -> bytes | None:
        return self._fields.get("value")

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._fields.get("headers")

    def timestamp(self) -> tuple[int, int]:
        return 1, self._fields["timestamp_ms"]


class FakeLogs:
    """The logs of all partitions. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.topics: dict[str, list[list[FakeMessage]]] = {}
        self.begins: dict[tuple[str, int], int] = {}

    def append(self, topic: str, partition: int, fields: Mapping[str, Any]) -> int:
        """Raises :class:`NotFound`, which says how to create the topic or the partition."""
        with self.changed:
            if not 0 <= partition < len(self.topics.get(topic, ())):
                call = f"cluster.create_topic({topic!r}, partitions={max(partition, 0) + 1})"
                raise NotFound(f"partition {partition} of topic {topic!r} does not exist; create it first with {call}")
            log = self.topics[topic][partition]
            log.append(FakeMessage(topic, partition, len(log), **fields))
            self.changed.notify_all()
            return len(log) - 1

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the log's first offset and the offset of the next record. Raises :class:`KafkaException` if the
        partition does not exist."""
        with self.changed:
            if partition not in range(len(self.topics.get(topic, ()))):
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such partition"))
            return self.begins.get((topic, partition), 0), len(self.topics[topic][partition])


class FakeClient:
    """Behaves like a ``confluent_kafka.Consumer`` with manually assigned partitions. Not thread-safe."""

    def __init__(self, logs: FakeLogs) -> None:
        self._logs = logs
        self._next: dict[tuple[str, int], int] = {}

    def incremental_assign(self, partitions: list[Any]) -> None:
        self._next |= {(one.topic, one.partition): one.offset for one in partitions}

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for one in partitions:
            del self._next[one.topic, one.partition]

    def poll(self, timeout: float) -> FakeMessage | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, limit: int, timeout: float) -> list[FakeMessage]:
        with self._logs.changed:
            found = self._take(limit)
            if not found and timeout > 0:
                self._logs.changed.wait(timeout)
                found = self._take(limit)
            return found

    def _take(self, limit: int) -> list[FakeMessage]:
        taken: list[FakeMessage] = []
        for (topic, partition), offset in list(self._next.items()):
            if topic not in self._logs.topics:
                continue
            begin, end = self._logs.bounds(topic, partition)
            at = begin if offset == OFFSET_BEGINNING else offset
            if begin <= at <= end:
                messages = self._logs.topics[topic][partition][at : at + limit - len(taken)]
                self._next[topic, partition] = at + len(messages)
                taken += messages
            elif len(taken) < limit:
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "Broker: Offset out of range")
                self._next[topic, partition] = end  # an error is reported only once
                taken.append(FakeMessage(topic, partition, at, error=error))
        return taken

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        del timeout
        return self._logs.bounds(partition.topic, partition.partition)

    def list_topics(self, topic: str, timeout: float) -> Any:
        del timeout
        led_by_nobody = SimpleNamespace(error=None, leader=-1)  # so silence is expected
        partitions = dict.fromkeys(range(len(self._logs.topics.get(topic, []))), led_by_nobody)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions, error=None)})

    def close(self) -> None:
        self._next.clear()


class FakeAdmin:
    """Behaves like ``confluent_kafka.admin.AdminClient.list_offsets``."""

    def __init__(self, logs: FakeLogs) -> None:
        self._logs = logs

    def list_offsets(self, asked: Mapping[Any, Any], **_settings: Any) -> dict[Any, Future[Any]]:
        return {partition: self._answer(partition, spec._value) for partition, spec in asked.items()}

    def _answer(self, partition: Any, time_ms: int) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            begin, end = self._logs.bounds(partition.topic, partition.partition)
        except KafkaException as error:
            answer.set_exception(error)
            return answer
        offset = {_LATEST: end, _EARLIEST: begin}.get(time_ms)
        if offset is None:
            messages = self._logs.topics[partition.topic][partition.partition][begin:]
            offset = next((one.offset() for one in messages if one.timestamp()[1] >= time_ms), -1)
        answer.set_result(SimpleNamespace(offset=offset))
        return answer


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
        self._covered: dict[str, Coverage] = {}
        self._first: dict[str, dict[str, int]] = {}
        """How many partitions each topic had when a subscription of the group first covered it."""
        self._logs = logs
        self._numbers = itertools.count(1)

    def join(self, group: str, consumer: str, value: bytes) -> Registration:
        member = Member.from_bytes(value, consumer, consumer=consumer, incarnation=next(self._numbers))
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
            self._cover(group, [one.subscription for one in chosen.values()], partitions)
            subscribed = {n: tuple(sorted(t for t in partitions if m.subscription.wants(t))) for n, m in chosen.items()}
            topics = {
                t: TopicInfo(t, partitions[t], t) for t in sorted({t for names in subscribed.values() for t in names})
            }
            current = {name: had for name, had in self._targets.get(group, {}).items() if name in members}
            assignor = built_in_assignors()[next(iter(chosen.values())).assignor or "sticky"]
            target = assignor.assign(AssignmentInputs(chosen, topics, subscribed, current)).members
            self._targets[group] = target
            self._command(group, members, target)

    def _cover(
        self, group: str, subscriptions: Sequence[Subscription], partitions: Mapping[str, frozenset[int]]
    ) -> None:
        known, first = self._covered.get(group, Coverage()), self._first.setdefault(group, {})
        for topic in partitions.keys() - first.keys():
            if any(one.wants(topic) for one in subscriptions):
                first[topic] = 0 if known.covers(topic) else len(partitions[topic])
        self._covered[group] = known.with_also(subscriptions)

    def _command(self, group: str, members: Mapping[str, _Joined], target: Mapping[str, PartitionSet]) -> None:
        generation = next(self._numbers)
        for name, joined in members.items():
            moving = joined.owned - target[name]
            if moving and not joined.awaits(StopFetcher) and not joined.awaits(StartFetcher):
                incarnation = joined.registration.incarnation
                self._send(joined, StopFetcher(generation, 1, incarnation, moving, "they move"))
        held = PartitionSet.union(joined.owned for joined in members.values())
        stored, first = self.offsets.setdefault(group, {}), self._first[group]
        for name, joined in members.items():
            free = sorted(target[name] - held)
            if free and not joined.awaits(StartFetcher):
                joined.owned |= PartitionSet.of(free)
                streams = itertools.cycle(range(stream_count(joined.member.subscription)))
                starts = {
                    tp: StartPoint(
                        stored.get(tp, NO_OFFSET), next(streams), tp not in stored and tp.partition >= first[tp.topic]
                    )
                    for tp in free
                }
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
    """Implements :class:`kafka_coord.channel.operations.MemberChannel`."""

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


class FakeCluster:
    """Topics and groups in memory. Leaving the ``with`` block closes the consumers that :meth:`consumer` has created.

    To make an application use the fake, replace the classes in its module with :attr:`Consumer` and
    :attr:`AsyncConsumer`: ``monkeypatch.setattr(app, "Consumer", cluster.Consumer)``. They ignore all addresses. The
    fake does not simulate expired sessions, transactions, permissions or ``mode="eager"``.
    """

    def __init__(self) -> None:
        self._logs = FakeLogs()
        self._groups = FakeGroups(self._logs)
        self._consumers: list[Consumer[Any, Any]] = []
        parts = {"_open_transport": staticmethod(self._transport), "_clients": _FakeClients(self._logs)}
        self.Consumer: type[Consumer[Any, Any]] = type("Consumer", (Consumer,), parts)
        self.AsyncConsumer: type[AsyncConsumer[Any, Any]] = type("AsyncConsumer", (AsyncConsumer,), parts)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Creates a topic, or adds partitions to it."""
        with self._logs.changed:
            logs = self._logs.topics.setdefault(name, [])
            logs += [[] for _ in range(partitions - len(logs))]
        for group in list(self._groups.members):
            self._groups.rebalance(group)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = 0,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Writes a record and returns its offset. Raises :class:`NotFound` if no one has created the topic, since the
        brokers of :class:`RealCluster` do not create it either."""
        when = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        written = {"value": value, "key": key, "headers": list(headers) or None, "timestamp_ms": when}
        return self._logs.append(topic, partition, written)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records before the offset ``before``, as retention does."""
        with self._logs.changed:
            self._logs.begins[topic, partition] = before

    @explained
    def consumer(self, **arguments: Any) -> Consumer[Any, Any]:
        """Returns a consumer with the given arguments."""
        consumer = self.Consumer(**arguments)
        self._consumers.append(consumer)
        return consumer

    @explained
    def async_consumer(self, **arguments: Any) -> AsyncConsumer[Any, Any]:
        """Returns a consumer for asyncio. Leaving the ``with`` block does not close it."""
        return self.AsyncConsumer(**arguments)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Returns the group's committed offsets, by partition."""
        with self._groups.lock:
            stored = self._groups.offsets.get(group, {})
            return {partition: offset for (name, partition), offset in sorted(stored.items()) if name == topic}

    def evict(self, consumer: Consumer[Any, Any] | AsyncConsumer[Any, Any]) -> None:
        """Ends the consumer's membership without notice, as a coordinator does when it evicts a slow consumer. The
        consumer registers again automatically."""
        with self._groups.lock:
            self._groups.remove(consumer.group, consumer.consumer_id)

    def _transport(
        self, endpoint: Endpoint, settings: MemberSettings, _reading: object, _wake: Callable[[], None]
    ) -> _FakeTransport:
        return _FakeTransport(
            FakeChannel(self._groups, settings.group, settings.member.consumer),
            endpoint.session_timeout(),
            lambda _subscription, _known: Present(frozenset(self._logs.topics), elected=True),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers:
            consumer.close()


class _FakeClients(FetchClients):
    message: type[Any] = FakeMessage

    def __init__(self, logs: FakeLogs) -> None:
        self._logs = logs

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        del settings
        return FakeClient(self._logs)

    def admin(self, settings: Mapping[str, Any]) -> Any:
        del settings
        return FakeAdmin(self._logs)


@dataclass(slots=True)
class _FakeSession:
    """A session that never ends, and that is also its own handle."""

    timeout_ms: int
    clock: Clock = field(default_factory=SystemClock)
    state: SessionState = SessionState.CONNECTED
    session_id: int = SESSION

    @property
    def session(self) -> Self:
        return self

    def lease_deadline(self) -> float:
        return math.inf

    def lease_began(self) -> float:
        return 0.0

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        del listener
        return lambda: None


class _FakeBrokers:
    addresses: tuple[str, ...] = ("fake:9092",)
    problem: str = ""

    def step(self) -> bool:
        return False

    def look_again(self) -> None:
        pass


class _FakeTransport:
    """Implements :class:`kafka_coord.consumer.transport.Transport`."""

    def __init__(self, channel: FakeChannel, timeout_ms: int, look: Look) -> None:
        self.look = look
        self.handle = _FakeSession(timeout_ms)
        self.channel = channel
        self.brokers = _FakeBrokers()

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass
