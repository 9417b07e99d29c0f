"""Keeps the state of one socket connection, and sends the machine's instructions as frames."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_coord.channel.frames import BadFrame, Frame, Rpc
from kafka_coord.channel.messages import Code, MessageType, Ping, write_command
from kafka_coord.frontends.members.machine import instructions
from kafka_coord.frontends.members.machine.stimuli import MemberId
from kafka_coord.model import CommandId, StartFetcher

log = logging.getLogger(__name__)


class Peer(Protocol):
    """The server's end of a connection. No call blocks."""

    @property
    def address(self) -> str:
        """``host:port`` of the other end."""

    @property
    def certificate(self) -> str | None:
        """The common name in the client's certificate, as verified by TLS."""

    def send(self, frame: Frame) -> None:
        """Queues a frame for sending, or drops it if the connection has ended. Raises :class:`BadFrame` if the content
        does not fit in a frame."""

    def rest(self, seconds: float) -> None:
        """Stops reading from the connection for ``seconds``."""

    def close(self) -> None:
        """Closes the connection after sending the queued frames."""


@dataclass(slots=True, eq=False)
class Connection:
    """One connection. ``member`` is set once a consumer has registered on it. Once ``ended`` is set, further frames are
    ignored. If the client is told to retry, ``place`` is the time reserved for that. Times are in monotonic seconds."""

    peer: Peer
    since: float
    number: int = 0
    rpc: Rpc = field(default_factory=Rpc)
    member: MemberId | None = None
    registering: bool = False
    ended: bool = False
    place: float | None = None
    _pending: dict[int, tuple[int | CommandId, float]] = field(default_factory=dict)
    _probe_frames: dict[int, int] = field(default_factory=dict)
    _command_frames: dict[CommandId, int] = field(default_factory=dict)

    def send(self, frame: Frame) -> None:
        """Sends a frame. If a response is too large for a frame, refuses the request and keeps the connection open."""
        try:
            self.peer.send(frame)
        except (BadFrame, UnicodeError) as error:
            log.warning("could not send type=%s address=%s reason=%s", frame["type"], self.peer.address, error)
            message = f"the response cannot be sent ({error}); request fewer offsets"
            self.peer.send(self.rpc.refuse(frame["id"], Code.BAD_VALUE, message, {"field": "offsets"}))

    def answer(self, request: int, fields: dict[str, Any]) -> None:
        self.send(self.rpc.answer(request, fields))

    def refuse(self, request: int, code: str, message: str, **more: object) -> None:
        self.send(self.rpc.refuse(request, code, message, more))

    def hang_up(self, code: str, message: str, request: int = 0, **more: object) -> None:
        """Sends the reason and closes the connection."""
        self.ended = True
        self.refuse(request, code, message, **more)
        self.peer.close()

    def send_ping(self, probe: instructions.Probe, now: float) -> None:
        """Sends a probe as a ping. Translates the probe's ``heard`` and ``done`` into the corresponding frame ids."""
        for number in [number for number in self._probe_frames if number < probe.heard]:
            del self._probe_frames[number]
        heard = self._probe_frames.get(probe.heard, 0)
        done = self._command_frames.get(probe.done, 0) if probe.done is not None else 0
        request, frame = self.rpc.ask(MessageType.PING, Ping(heard, done).to_json())
        self._probe_frames[probe.number] = request
        self._pending[request] = probe.number, now
        self.peer.send(frame)

    def deliver(self, sent: instructions.Deliver, now: float) -> None:
        kind = MessageType.START_FETCHER if isinstance(sent.command, StartFetcher) else MessageType.STOP_FETCHER
        request, frame = self.rpc.ask(kind, write_command(sent.command_id.name, sent.command))
        self._command_frames = {sent.command_id: request}
        self._pending[request] = sent.command_id, now
        self.peer.send(frame)

    def take_pending(self, request: int) -> tuple[int | CommandId, float] | None:
        """Removes and returns the probe number or the command that was sent with the given request id, and when it was
        sent. Returns ``None`` if the id is unknown."""
        return self._pending.pop(request, None)


@dataclass(frozen=True, slots=True)
class SocketPresence:
    """The state of one consumer. ``address`` is ``None`` while the consumer has no connection. ``heard_ms_ago`` is the
    time since the consumer last sent a frame or since its coordinator was elected, whichever was later."""

    group: str
    consumer: str
    address: str | None
    heard_ms_ago: int
