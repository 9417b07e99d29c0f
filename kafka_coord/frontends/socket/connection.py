"""A connection of the socket protocol: what was said on it, and which frames stand for which of the machine's words."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_coord.channel.frames import BadFrame, Frame
from kafka_coord.channel.messages import Code, MessageType, Ping, write_command
from kafka_coord.channel.rpc import Rpc
from kafka_coord.frontends.members.machine import instructions as do
from kafka_coord.frontends.members.machine.stimuli import MemberId
from kafka_coord.model import CommandId, StartFetcher

log = logging.getLogger(__name__)


class Peer(Protocol):
    """The socket under a connection, as the server provides it. Neither call waits."""

    @property
    def address(self) -> str:
        """``host:port`` of the other end."""

    @property
    def certificate(self) -> str | None:
        """The common name of the certificate the other end has proven to have, over TLS."""

    def send(self, frame: Frame) -> None:
        """Sends it in its turn; one that cannot be sent any more is dropped. Raises :class:`BadFrame` for what no
        frame can hold."""

    def rest(self, seconds: float) -> None:
        """Reads nothing more of the connection for so long."""

    def close(self) -> None:
        """Closes the connection once what was sent before is on its way."""


@dataclass(slots=True, eq=False)
class Connection:
    """``member`` once it has registered; ``ended``: nothing more is said or heard on it; ``place``: when it may
    register, having been told to come again. Times are monotonic seconds."""

    peer: Peer
    since: float
    number: int = 0
    rpc: Rpc = field(default_factory=Rpc)
    member: MemberId | None = None
    registering: bool = False
    ended: bool = False
    place: float | None = None
    _asked: dict[int, tuple[int | CommandId, float]] = field(default_factory=dict)
    _probe_frames: dict[int, int] = field(default_factory=dict)
    _command_frames: dict[CommandId, int] = field(default_factory=dict)

    def send(self, frame: Frame) -> None:
        """Sends a frame. An answer that no frame can hold is refused instead; the connection stays."""
        try:
            self.peer.send(frame)
        except (BadFrame, UnicodeError) as error:
            log.warning("could not send type=%s address=%s reason=%s", frame["type"], self.peer.address, error)
            message = f"the reply cannot be sent ({error}): ask for less"
            self.peer.send(self.rpc.refuse(frame["id"], Code.BAD_VALUE, message, {"field": "offsets"}))

    def answer(self, request: int, fields: dict[str, Any]) -> None:
        self.send(self.rpc.answer(request, fields))

    def refuse(self, request: int, code: str, message: str, **more: object) -> None:
        self.send(self.rpc.refuse(request, code, message, more))

    def hang_up(self, code: str, message: str, request: int = 0, **more: object) -> None:
        """Says why, and closes."""
        self.ended = True
        self.refuse(request, code, message, **more)
        self.peer.close()

    def ping(self, probe: do.Probe, now: float) -> None:
        """Sends a probe: what it calls heard and done goes by the ids of the frames that asked."""
        for number in [number for number in self._probe_frames if number < probe.heard]:
            del self._probe_frames[number]
        heard = self._probe_frames.get(probe.heard, 0)
        done = self._command_frames.get(probe.done, 0) if probe.done is not None else 0
        request, frame = self.rpc.ask(MessageType.PING, Ping(heard, done).to_json())
        self._probe_frames[probe.number] = request
        self._asked[request] = probe.number, now
        self.peer.send(frame)

    def deliver(self, sent: do.Deliver, now: float) -> None:
        """Sends a command."""
        kind = MessageType.START_FETCHER if isinstance(sent.command, StartFetcher) else MessageType.STOP_FETCHER
        request, frame = self.rpc.ask(kind, write_command(sent.command_id.name, sent.command))
        self._command_frames = {sent.command_id: request}
        self._asked[request] = sent.command_id, now
        self.peer.send(frame)

    def answered(self, request: int) -> tuple[int | CommandId, float] | None:
        """What it was asked by that request: the number of a probe, or a command; and when."""
        return self._asked.pop(request, None)


@dataclass(frozen=True, slots=True)
class Presence:
    """How it is with one consumer. ``address`` is ``None`` while it has no connection; ``heard_ms_ago`` is how long ago
    something came from it, or its coordinator was elected, whichever was later."""

    group: str
    consumer: str
    address: str | None
    heard_ms_ago: int
