"""The interface between a connector and its transport, which is ZooKeeper or a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kafka_coord.channel.operations import Offsets, Registration
from kafka_coord.channel.zookeeper import Holder
from kafka_coord.model import Command, CommandId, TopicPartition
from kafka_coord.zk.store import Clock, Op, Session, SessionListener, Watcher


class SessionHandle(Protocol):
    """The session that a membership depends on, and its clock. A ZooKeeper store and a link to the coordinator both
    implement this protocol."""

    @property
    def clock(self) -> Clock: ...

    @property
    def session(self) -> Session: ...

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """See :meth:`kafka_coord.zk.store.Store.on_session`."""


class MemberChannel(Protocol):
    """The channel of one member. :class:`kafka_coord.channel.zookeeper.ConsumerChannel` documents the methods and the
    errors that they raise."""

    @property
    def group(self) -> str: ...

    @property
    def consumer(self) -> str: ...

    def register(self, value: bytes) -> Registration | Holder: ...

    def abandon(self, registration: Registration) -> None: ...

    def was_evicted(self, registration: Registration) -> bool: ...

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool: ...

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]: ...

    def unwatch(self) -> None: ...

    def read(self, command: CommandId) -> Command | None: ...

    def drop(self, command: CommandId) -> None: ...

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]: ...

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets: ...

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]: ...

    def leave(self, registration: Registration, offsets: Offsets, also: Iterable[Op] = ()) -> frozenset[str]: ...

    def await_ends(self, registration: Registration, reasons: Mapping[TopicPartition, str]) -> None: ...

    def keep_ends(self, registration: Registration, ends: Offsets) -> Offsets: ...

    def refuse(self, registration: Registration, topics: Mapping[str, str]) -> None: ...

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None: ...

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]: ...
