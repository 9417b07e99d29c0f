"""The consumer's end of the socket channel, which the connector uses both as its session and as its channel.

:class:`SocketLink` adds a lock, a clock and blocking calls to :class:`~kafka_coord.channel.membership.Membership`,
which documents the methods they share. The owner of the socket (:mod:`kafka_coord.channel.client`) calls
:meth:`SocketLink.connected`, :meth:`SocketLink.received` and :meth:`SocketLink.lost`. The connector calls the other
methods, just as it would over ZooKeeper. A method that needs a response waits up to ``patience_s`` seconds for it and
then raises :class:`StoreUnavailable`; the next call resumes the wait.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kafka_coord.channel.frames import Frame
from kafka_coord.channel.instructions import (
    ChannelChanged,
    HangUp,
    Instruction,
    MetadataReceived,
    Send,
    SessionChanged,
    WakeWaiters,
)
from kafka_coord.channel.membership import Membership, NameTaken, NotYet
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.channel.zookeeper import Holder
from kafka_coord.model import Command, CommandId, Member, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.unresolved import Unresolved
from kafka_coord.zk.store import Clock, SessionListener, SessionState, Watcher, WatchEvent, WatchType

Result = TypeVar("Result")


class SocketLink:
    """One consumer's link to its coordinator. Thread-safe. Calls ``wake``, on any thread, whenever something has
    changed.

    :class:`~kafka_coord.channel.membership.Membership` explains ``resume_key`` and ``auto_commit``.
    """

    def __init__(
        self,
        group: str,
        consumer: str,
        clock: Clock,
        *,
        session_timeout_ms: int,
        resume_key: str,
        auto_commit: bool,
        wake: Callable[[], None],
        secret: str | None = None,
        patience_s: float = 0.0,
        on_metadata: Callable[[ClusterMetadata], None] = lambda _metadata: None,
    ) -> None:
        self.group = group
        self.clock = clock
        self.timeout_ms = session_timeout_ms
        self._membership = Membership(group, consumer, resume_key=resume_key, auto_commit=auto_commit, secret=secret)
        self._wake = wake
        self._patience_s = patience_s
        self._on_metadata = on_metadata
        self._news = threading.Condition(threading.RLock())
        self._listeners: list[SessionListener] = []
        self._watchers: list[Watcher] = []
        self._send: Callable[[Frame], None] | None = None
        self._hang_up: Callable[[], None] = lambda: None
        self.is_leaving = False
        """Whether the consumer has asked to leave. The coordinator closes the connection once it has answered."""

    # --- the connector's session -------------------------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        return self._membership.consumer

    @property
    def session(self) -> SocketLink:
        return self

    @property
    def state(self) -> SessionState:
        return self._membership.state

    @property
    def session_id(self) -> int:
        return self._membership.session_id

    def lease_deadline(self) -> float:
        return self._membership.lease_deadline()

    def lease_began(self) -> float:
        return self._membership.lease_began()

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- the connection ----------------------------------------------------------------------------------------------

    def connected(self, send: Callable[[Frame], None], hang_up: Callable[[], None]) -> None:
        """Starts using a connection to the coordinator. ``send`` sends a frame and may raise ``OSError``. ``hang_up``
        ends the connection."""
        with self._news:
            self._send, self._hang_up = send, hang_up
            self._now(lambda: self._membership.connected(self.clock.monotonic()))

    def received(self, frame: Frame) -> None:
        self._now(lambda: self._membership.received(frame, self.clock.monotonic()))

    def lost(self) -> None:
        self._now(self._membership.lost)

    def ask_metadata(self) -> None:
        """If connected, asks the coordinator for the cluster metadata. ``on_metadata`` receives the response."""
        self._now(self._membership.ask_metadata)

    def close(self) -> None:
        self._now(self._membership.close)

    # --- instructions ------------------------------------------------------------------------------------------------

    def _now(self, what: Callable[[], Result]) -> Result:
        """Calls ``what``, carries out the resulting instructions, and returns the call's result."""
        with self._news:
            try:
                return what()
            finally:
                for instruction in self._membership.instructions():
                    self._do(instruction)

    def _wait_for_answer(self, what: Callable[[], Result]) -> Result:
        """Like :meth:`_now`, but waits for the coordinator's response. Raises :class:`NotYet` if it does not arrive in
        time."""
        with self._news:
            until = self.clock.monotonic() + self._patience_s
            while True:
                try:
                    return self._now(what)
                except NotYet:
                    left_s = until - self.clock.monotonic()
                    if left_s <= 0 or not self._news.wait(left_s):
                        raise

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Send(frame):
                self._send_now(frame)
            case HangUp():
                self._hang_up()
            case SessionChanged(state):
                for listener in list(self._listeners):
                    listener(state)
            case ChannelChanged():
                watchers, self._watchers = self._watchers, []
                for watcher in watchers:
                    watcher(WatchEvent(WatchType.CHANGED, f"{self.group}/{self.consumer}"))
            case MetadataReceived(metadata):
                self._on_metadata(metadata)
            case WakeWaiters():
                self._news.notify_all()
                self._wake()

    def _send_now(self, frame: Frame) -> None:
        try:
            if self._send is not None:
                self._send(frame)
        except OSError as error:
            self._membership.send_failed(str(error))
            self._hang_up()

    # --- the connector's channel -------------------------------------------------------------------------------------

    def register(self, value: bytes) -> Registration | Holder:
        member = Member.from_json(fields.load(value, "registration"), self.consumer, 0, "registration")
        try:
            return self._wait_for_answer(lambda: self._membership.register(member, self.clock.monotonic()))
        except NameTaken as error:
            return Holder(error.incarnation, 0, None)

    def abandon(self, registration: Registration) -> None:
        self._now(lambda: self._membership.abandon(registration))

    def was_evicted(self, registration: Registration) -> bool:
        return self._membership.was_evicted(registration)

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        """Returns whether the given incarnation is still registered, as far as the consumer knows. ``watcher`` is
        notified of changes."""
        with self._news:
            self._watch(watcher)
            return self._membership.registration == registration

    def is_still_its_own(self, registration: Registration) -> bool:
        """Returns whether the coordinator has accepted the membership on this connection."""
        with self._news:
            return self._membership.registration == registration

    @property
    def rebalance_timeout_s(self) -> float:
        """Unlimited, because the coordinator reports an eviction over the connection."""
        return math.inf

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        with self._news:
            self._watch(watcher)
            return self._membership.outstanding(), ()

    def _watch(self, watcher: Watcher | None) -> None:
        if watcher is not None:
            self._watchers.append(watcher)

    def unwatch(self) -> None:
        """Stops notifying watchers."""
        with self._news:
            self._watchers.clear()

    def read(self, command: CommandId) -> Command | None:
        with self._news:
            return self._membership.command(command)

    def drop(self, command: CommandId) -> None:
        self._now(lambda: self._membership.drop(command))

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        self._wait_for_answer(lambda: self._membership.acknowledge(registration, command, offsets))
        return frozenset()

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        return self._wait_for_answer(lambda: self._membership.commit(registration, offsets))

    def leave(self, registration: Registration, offsets: Offsets, *, for_good: bool = False) -> frozenset[str]:
        """Like :meth:`kafka_coord.channel.zookeeper.ConsumerChannel.leave`."""
        self.is_leaving = True
        return self._wait_for_answer(lambda: self._membership.leave(registration, offsets, for_good=for_good))

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        return self._now(lambda: self._membership.auto_commit(registration, offsets))

    def await_ends(self, registration: Registration, reasons: Mapping[TopicPartition, str]) -> None:
        self._unresolved(registration, Unresolved(awaited=dict(reasons)))

    def keep_ends(self, registration: Registration, ends: Offsets) -> Offsets:
        return self._unresolved(registration, Unresolved(ends=dict(ends)))

    def refuse(self, registration: Registration, topics: Mapping[str, str]) -> None:
        self._unresolved(registration, Unresolved(refused=dict(topics)))

    def _unresolved(self, registration: Registration, unresolved: Unresolved) -> Offsets:
        return self._wait_for_answer(lambda: self._membership.unresolved(registration, unresolved))

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Does nothing, because the coordinator knows the offsets that it has sent."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        wanted = list(partitions)
        return self._wait_for_answer(lambda: self._membership.committed(wanted))
