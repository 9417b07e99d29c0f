"""Builds the multis that register, acknowledge, commit and leave in ZooKeeper (docs/protocol.md), and defines what a
connector asks of its transport, which is ZooKeeper or a socket. Does no I/O.

Consumers and gateways (which act for consumers without ZooKeeper) build their requests here, so only this module knows
which check fences which write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafka_coord.errors import MalformedValue
from kafka_coord.model import (
    Command,
    CommandId,
    Departure,
    Member,
    Request,
    RequestType,
    TopicPartition,
    command_from_json,
    parse_command_id,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.assignment import NODE_PREFIX
from kafka_coord.model.histories import about_group
from kafka_coord.model.member import LEFT
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, Clock, Create, Delete, Op, Session, SessionListener, SetData, Watcher

MAX_REQUEST_BYTES = 512 * 1024
"""The maximum size of a multi: half of ZooKeeper's default ``jute.maxbuffer``, because sizes are estimates."""

_OP_OVERHEAD_BYTES = 120
"""The maximum number of bytes that an operation takes for its header, lengths, flags and chroot, in addition to its
path, data and ACL."""

Offsets = Mapping[TopicPartition, int]
"""Maps each partition to the offset of the next record to read."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One incarnation of a consumer, and the token that proves to ZooKeeper that a write is from this incarnation.

    ``incarnation`` is the czxid of ``ids/<consumer>``. ``token`` is the data version of ``channel/<consumer>`` after
    the registration (docs/adr/0003). ``session_id`` is the session that holds the registration.
    """

    group: str
    consumer: str
    incarnation: int
    token: int
    session_id: int

    @property
    def path(self) -> str:
        return layout.registration(self.group, self.consumer)

    def fence(self) -> tuple[Check, Check]:
        """Returns the checks that every commit, acknowledgement and leave begins with."""
        return Check(self.path), Check(layout.channel(self.group, self.consumer), self.token)


FENCE_LENGTH = 2


def register_ops(
    group: str, consumer: str, value: bytes, *, has_channel: bool = True, ephemeral: bool = True
) -> tuple[Op, ...]:
    """Returns the operations of the multi that registers a consumer and gives the new incarnation its token. Unless
    ``has_channel`` is set, the multi also creates the channel."""
    channel = layout.channel(group, consumer)
    return (
        *(() if has_channel else (Create(channel),)),
        SetData(channel, b""),
        Create(layout.registration(group, consumer), value, ephemeral=ephemeral),
    )


def offset_op(group: str, partition: TopicPartition, offset: int, *, exists: bool) -> SetData | Create:
    """Returns the operation that writes one offset as a decimal number, as Kafka 0.8 does. ``exists`` says whether the
    partition's znode already exists."""
    path = layout.offset(group, partition.topic, partition.partition)
    data = str(offset).encode()
    return SetData(path, data) if exists else Create(path, data)


def chunks(ops: Iterable[Op], last: Iterable[Op], fence: tuple[Op, ...], acl: int = 64) -> Iterator[tuple[Op, ...]]:
    """Packs ``ops`` into requests of at most :data:`MAX_REQUEST_BYTES`. Each request begins with ``fence``, and the
    last one ends with ``last``. ``acl`` is the size of the ACL in a create, in bytes."""
    closing = tuple(last)
    room = MAX_REQUEST_BYTES - sum(_size(op, acl) for op in (*fence, *closing))
    chunk: list[Op] = []
    used = 0
    for op in ops:
        size = _size(op, acl)
        if chunk and used + size > room:
            yield (*fence, *chunk)
            chunk, used = [], 0
        chunk.append(op)
        used += size
    yield (*fence, *chunk, *closing)


def _size(op: Op, acl: int) -> int:
    return len(op.path) + len(getattr(op, "data", b"")) + _OP_OVERHEAD_BYTES + (acl if isinstance(op, Create) else 0)


def acknowledge_op(registration: Registration, command: CommandId) -> Delete:
    """Returns the operation that acknowledges a command by deleting it."""
    return Delete(layout.command(registration.group, registration.consumer, command.name))


def leave_ops(registration: Registration, departure: Departure = LEFT) -> tuple[Op, Op]:
    """Returns the operations that end a registration. The first says how, so that it does not look like a crash."""
    channel = layout.channel(registration.group, registration.consumer)
    return SetData(channel, departure.to_bytes(), registration.token), Delete(registration.path)


def eviction_op(group: str, consumer: str, now_ms: int) -> Create:
    """Returns the operation that requests a leaving consumer's eviction, so that its place is not kept during the
    rejoin grace period."""
    request = Request(
        type=RequestType.EVICT,
        group=group,
        consumer=consumer,
        reason="it left for good",
        by=consumer,
        timestamp_ms=now_ms,
    )
    return Create(layout.REQUEST_PREFIX, request.to_bytes(), sequence=True)


def look_op(group: str, consumer: str, now_ms: int) -> Create:
    """Returns the operation that requests a check of the group. A changed registration does not trigger a check on its
    own."""
    reason = "it has changed its subscription"
    request = Request(type=RequestType.LOOK, group=group, reason=reason, by=consumer, timestamp_ms=now_ms)
    return Create(layout.REQUEST_PREFIX, request.to_bytes(), sequence=True)


# --- the coordinator's side ----------------------------------------------------------------------------------------


def command_op(group: str, consumer: str, command: Command) -> Create:
    """Returns the operation that writes a command into a consumer's channel. ZooKeeper assigns the command's number."""
    path = layout.command(group, consumer, NODE_PREFIX[command.type])
    return Create(path, command.to_bytes(), sequence=True)


# --- values --------------------------------------------------------------------------------------------------------


def decode_command(data: bytes, path: str) -> Command:
    """Decodes a command strictly. Its type must match the znode's name. Raises :class:`MalformedValue`, which names
    ``path``."""
    command = command_from_json(fields.load(data, path), path)
    named = parse_command_id(path.rpartition("/")[2])
    if named is not None and named.type is not command.type:
        raise MalformedValue(
            path, f"the value is a {command.type} command, but the znode's name is that of a {named.type} command"
        )
    return command


def decode_offset(data: bytes, path: str) -> int:
    """Decodes a stored offset. Raises :class:`MalformedValue` for anything but a decimal number of at most 63 bits."""
    written = data.strip()
    if not written.isdigit() or len(written) > 19 or int(written) >= 1 << 63:
        raise MalformedValue(path, f"{data[:40]!r} is not an offset")
    return int(written)


def in_order(names: Iterable[str]) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
    """Splits the names of a channel's children into commands, in order of execution, and all other names."""
    commands: list[CommandId] = []
    strays: list[str] = []
    for name in names:
        command = parse_command_id(name)
        if command is None:
            strays.append(name)
        else:
            commands.append(command)
    return tuple(sorted(commands)), tuple(sorted(strays))


def recording(action: str, group: str, *, by: str, reason: str = "", change: str = "") -> Request:
    """Returns the request that has the cluster's history record an action on a client-assigned group."""
    return Request(RequestType.LOOK, by=by, reason=reason, action=action, change=about_group(group, change))


@dataclass(frozen=True, slots=True)
class Holder:
    """The consumer that holds the requested name. ``member`` is ``None`` if its registration cannot be read."""

    incarnation: int
    session_id: int
    member: Member | None


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

    def is_still_its_own(self, registration: Registration) -> bool: ...

    @property
    def rebalance_timeout_s(self) -> float: ...

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]: ...

    def unwatch(self) -> None: ...

    def read(self, command: CommandId) -> Command | None: ...

    def drop(self, command: CommandId) -> None: ...

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]: ...

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets: ...

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]: ...

    def leave(self, registration: Registration, offsets: Offsets, *, for_good: bool = False) -> frozenset[str]: ...

    def await_ends(self, registration: Registration, reasons: Mapping[TopicPartition, str]) -> None: ...

    def keep_ends(self, registration: Registration, ends: Offsets) -> Offsets: ...

    def refuse(self, registration: Registration, topics: Mapping[str, str]) -> None: ...

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None: ...

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]: ...
