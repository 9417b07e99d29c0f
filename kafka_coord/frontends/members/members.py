"""The consumers an elected instance answers for, one value each: who they are and how far things are with them."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from kafka_coord.channel.frames import BadFrame, Frame
from kafka_coord.channel.messages import Code
from kafka_coord.channel.operations import Registration
from kafka_coord.channel.rpc import Conversation
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.model import Command, CommandId, TopicPartition

log = logging.getLogger(__name__)


class Peer(Protocol):
    """A connection, as whoever accepted it hands it over. Neither call waits or raises."""

    @property
    def address(self) -> str:
        """``host:port`` of the other end."""

    @property
    def certificate(self) -> str | None:
        """The common name of the certificate the other end has proven to have, over TLS."""

    def send(self, frame: Frame) -> None:
        """Sends it in its turn; one that cannot be sent any more is dropped."""

    def close(self) -> None:
        """Closes the connection once what was sent before is on its way."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection and what was said on it. ``member`` once it has registered; ``ended``: nothing more is said or
    heard on it; ``place``: when it may register, having been told to come again. Times are monotonic seconds."""

    peer: Peer
    since: float
    conversation: Conversation = field(default_factory=Conversation)
    member: SocketMember | None = None
    registering: bool = False
    ended: bool = False
    place: float | None = None

    def send(self, frame: Frame) -> None:
        """Sends a frame. An answer that no frame can hold is refused instead; the connection stays."""
        try:
            self.peer.send(frame)
        except (BadFrame, UnicodeError) as error:
            log.warning("could not send type=%s address=%s reason=%s", frame["type"], self.peer.address, error)
            message = f"the answer cannot be sent, ask for less: {error}"
            self.peer.send(self.conversation.refuse(frame["id"], Code.BAD_VALUE, message, {"field": "offsets"}))


@dataclass(slots=True)
class Obeying:
    """A command the consumer was sent: ``request`` is the id of the frame. ``answered``: its acknowledgement is on its
    way to ZooKeeper, and nothing comes after it before that is there."""

    request: int
    command_id: CommandId
    command: Command
    answered: bool = False


@dataclass(slots=True, eq=False)
class SocketMember:
    """One registered consumer.

    ``deadline`` is when it is expired unless something comes from it (monotonic seconds); ``heard`` and ``done`` as in
    :class:`~kafka_coord.channel.messages.Ping`. ``held`` are the partitions it acknowledged to fetch, and the only ones
    it may commit. ``pending`` are offsets it answered a ping with that are not stored yet; ``pending_ping`` is the
    newest such ping on the connection of now, called heard once they are; ``unwritten`` is how many of its writes wait
    for ZooKeeper. ``pinged`` says when the pings were sent that are not answered;
    those in ``confirming`` were sent only to say that the one before was heard.
    """

    registration: Registration
    channel: ConsumerChannel
    session_timeout_s: float
    auto_commit: bool
    resume_key: str
    deadline: float
    connection: Connection | None = None
    ping_due: float = 0.0
    pings: int = 0
    pinged: dict[int, float] = field(default_factory=dict)
    confirming: set[int] = field(default_factory=set)
    heard: int = 0
    done: int = 0
    queue: deque[CommandId] = field(default_factory=deque)
    obeying: Obeying | None = None
    blocked: str = ""
    held: set[TopicPartition] = field(default_factory=set)
    stored: set[TopicPartition] = field(default_factory=set)
    pending: dict[TopicPartition, int] = field(default_factory=dict)
    pending_ping: int = 0
    unwritten: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """(group, consumer)."""
        return self.registration.group, self.registration.consumer

    @property
    def ping_interval_s(self) -> float:
        """A third of its session timeout (docs/design.md, section 8)."""
        return self.session_timeout_s / 3


@dataclass(frozen=True, slots=True)
class Presence:
    """How it is with one consumer. ``address`` is ``None`` while it has no connection; ``heard_ms_ago`` is how long ago
    something came from it, or its coordinator was elected, whichever was later."""

    group: str
    consumer: str
    address: str | None
    heard_ms_ago: int

    @classmethod
    def of(cls, member: SocketMember, now: float) -> Presence:
        """``now`` in monotonic seconds."""
        group, consumer = member.key
        connection = member.connection
        heard_at = member.deadline - member.session_timeout_s
        return cls(
            group, consumer, connection.peer.address if connection else None, max(0, round((now - heard_at) * 1000))
        )
