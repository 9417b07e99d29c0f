"""Runs one connection on the event loop, and queues the input from all connections for the gateway's thread, in lanes
by priority. Connections take turns reading frames.

A member must answer pings within its session timeout, so its input must not get stuck behind that of a client that
floods the port. Members and other clients therefore have separate lanes. Input from one connection stays in order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from kafka_coord.channel.frames import BadFrame, Decoder, Fault, Frame, encode
from kafka_coord.frontends.listening import common_name
from kafka_coord.frontends.socket.connection import Connection
from kafka_coord.frontends.socket.gateway import Gateway

if TYPE_CHECKING:
    from kafka_coord.frontends.socket.server import GatewayServer

log = logging.getLogger(__name__)

LARGE_BYTES = 16 << 10
"""Frames larger than this, in bytes, wait in a lane of their own."""


class Lane(Enum):
    """The lanes, in the order they are served in each turn."""

    MEMBERS = auto()
    MEMBERS_LARGE = auto()
    STRANGERS = auto()
    STRANGERS_LARGE = auto()


@dataclass(frozen=True, slots=True)
class Allowance:
    """A lane's limits. One turn takes up to ``items`` items and about ``bytes`` bytes. Reading pauses while
    ``waiting_items`` items or ``waiting_bytes`` bytes are queued."""

    items: int
    bytes: int
    waiting_items: int
    waiting_bytes: int


ALLOWANCES = {
    Lane.MEMBERS: Allowance(2_000, 2 << 20, 50_000, 32 << 20),
    Lane.MEMBERS_LARGE: Allowance(16, 256 << 10, 64, 8 << 20),
    Lane.STRANGERS: Allowance(200, 256 << 10, 10_000, 4 << 20),
    Lane.STRANGERS_LARGE: Allowance(16, 256 << 10, 64, 8 << 20),
}

Arrival = TypeVar("Arrival")


@dataclass(slots=True, eq=False)
class Sender:
    """The lane that queues one connection's input, and how many of that connection's items are waiting in it."""

    lane: Lane = Lane.STRANGERS
    waiting: int = 0


@dataclass(slots=True)
class _Waiting(Generic[Arrival]):
    items: deque[tuple[Sender, Arrival, int]] = field(default_factory=deque)
    bytes: int = 0


class Inbox(Generic[Arrival]):
    """The queued input, in lanes. One thread calls :meth:`put`, and one thread calls :meth:`take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[Lane, _Waiting[Arrival]] = {lane: _Waiting() for lane in Lane}

    def put(self, sender: Sender, arrival: Arrival, size: int, *, member: bool) -> None:
        """Queues input of ``size`` bytes. ``member`` is true if a registered consumer sent it."""
        with self._lock:
            sender.lane = self._lane_of(sender, size, member=member)
            sender.waiting += 1
            waiting = self._lanes[sender.lane]
            waiting.items.append((sender, arrival, size))
            waiting.bytes += size

    def has_room(self, sender: Sender, size: int, *, member: bool) -> bool:
        """Returns whether a frame of ``size`` bytes may be read from the connection now."""
        lane = self._lane_of(sender, size, member=member)
        waiting, allowed = self._lanes[lane], ALLOWANCES[lane]
        return len(waiting.items) < allowed.waiting_items and waiting.bytes < allowed.waiting_bytes

    def _lane_of(self, sender: Sender, size: int, *, member: bool) -> Lane:
        if sender.waiting:
            return sender.lane  # keeps the connection's input in order
        if size > LARGE_BYTES:
            return Lane.MEMBERS_LARGE if member else Lane.STRANGERS_LARGE
        return Lane.MEMBERS if member else Lane.STRANGERS

    def __bool__(self) -> bool:
        return any(waiting.items for waiting in self._lanes.values())

    def take(self) -> Iterator[Arrival]:
        """Removes and yields one turn's share of each lane, which is at least one item unless the lane is empty."""
        for lane, waiting in self._lanes.items():
            items, size = 0, 0
            while items < ALLOWANCES[lane].items and size < ALLOWANCES[lane].bytes:
                with self._lock:
                    if not waiting.items:
                        break
                    sender, arrival, bytes_of_it = waiting.items.popleft()
                    waiting.bytes -= bytes_of_it
                    sender.waiting -= 1
                items, size = items + 1, size + bytes_of_it
                yield arrival


CLOSING_S = 2.0
"""How long the client has to accept the remaining data while its connection is being closed, in seconds."""
MAX_UNSENT_BYTES = 4 << 20

Input = Callable[[Gateway, Connection], None]
"""Passes a connection's input to the gateway."""


class SocketPeer(asyncio.Protocol):
    """The server's end of a connection. The methods of :class:`asyncio.Protocol` run on the loop's thread."""

    def __init__(self, server: GatewayServer) -> None:
        self._server = server
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self.address = "?"
        self.certificate: str | None = None
        self._opened = self._broken = self._waits = self._gone = False
        self._kept = 0
        self.sender = Sender()
        self.connection: Connection | None = None
        """The connection's state in the gateway, set by the gateway's thread."""
        self.unsent: list[bytes] = []
        self.closing = False
        self.rest_s = 0.0
        self._rests_until = 0.0

    # --- on the gateway's thread -------------------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        self.unsent.append(encode(frame))
        self._server.touched(self)

    def rest(self, seconds: float) -> None:
        self.rest_s = seconds
        self._server.touched(self)

    def close(self) -> None:
        self.closing = True
        self._server.touched(self)

    # --- on the loop's thread ----------------------------------------------------------------------------------------

    @property
    def is_member(self) -> bool:
        connection = self.connection
        return connection is not None and connection.member is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.address = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        self._server.made(self, transport)  # type: ignore[arg-type]  # asyncio passes a Transport for stream connections

    def open(self, transport: asyncio.Transport) -> None:
        """Starts reading from and writing to ``transport``. With TLS, this happens only after the handshake."""
        self._transport = transport
        self.certificate = common_name(transport.get_extra_info("peercert"))
        self._opened = True
        self._server.arrived(self, lambda _gateway, _connection: None)  # makes the gateway accept the connection
        self.read(others_had_theirs=False)

    def turn_away(self, transport: asyncio.Transport, why: Frame) -> None:
        """Sends the reason and closes the connection. Any input that still arrives is read and dropped: unread bytes
        would turn the close into a reset, and the client would never see the reason."""
        self._broken = True
        transport.write(encode(why))
        transport.write_eof()
        asyncio.get_running_loop().call_later(CLOSING_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        self._decoder.add(data)
        if self._opened and not self._waits:
            self.read(others_had_theirs=False)

    def reads_on(self) -> bool:
        """Takes this connection's turn. Returns false if the next frame must wait for another turn."""
        if self._rests() and not self._gone:
            return False
        try:
            if (size := self._decoder.size()) and not self._server.has_room(self, size):
                return False
        except BadFrame:
            pass  # read() reports it
        self.read(others_had_theirs=True)
        return True

    def read(self, *, others_had_theirs: bool) -> None:
        """Passes whole frames to the server while there is room. Beyond :data:`LARGE_BYTES`, frames must wait until
        other connections have had their turns."""
        self._waits, spent = False, 0
        try:
            while not self._broken and (size := self._decoder.size()):
                too_much = spent + size > LARGE_BYTES and not (others_had_theirs and spent == 0)
                if too_much or self._rests() or not self._server.has_room(self, size):
                    self._wait()
                    break
                spent += size
                self._server.arrived(self, partial(Gateway.received, frame=self._decoder.take()), size)
        except BadFrame as error:
            self._fail(error)
        before, self._kept = self._kept, 0 if self._broken else self._decoder.pending
        if not self._server.keeps(before, self._kept) and not self._broken:
            self._fail(BadFrame(Fault.OVERLOADED, "too many bytes of incomplete frames are buffered; retry later"))
        if self._waits:
            return
        if self._gone:
            self._end()
        elif self._transport is not None:
            self._transport.resume_reading()

    def _rests(self) -> bool:
        return self._rests_until > 0 and asyncio.get_running_loop().time() < self._rests_until

    def _wait(self) -> None:
        self._waits = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._server.wait_turn(self)

    def _fail(self, error: BadFrame) -> None:
        self._broken = True
        self._decoder = Decoder()
        self._server.arrived(self, partial(Gateway.broken, error=error))

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport, self._gone = None, True
        if not self._waits:
            self._end()

    def _end(self) -> None:
        self._server.keeps(self._kept, 0)
        self._server.departed(self)
        if self._opened:
            self._server.arrived(self, Gateway.lost)

    def flush(self, data: bytes, *, close: bool, rest_s: float = 0.0) -> None:
        """Sends the data and stops reading for ``rest_s`` seconds. If ``close`` is set, also closes the connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if rest_s:
            self._rests_until = asyncio.get_running_loop().time() + rest_s
            if not self._waits:
                self._wait()
        if data:
            transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("closed connection address=%s: the peer is not reading its data", self.address)
            transport.abort()
        elif close:
            transport.close()
            asyncio.get_running_loop().call_later(CLOSING_S, transport.abort)
