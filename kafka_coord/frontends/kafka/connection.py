"""One client's connection, and the broker's that goes with it.

Requests are taken in the order in which they come, and answered in that order. One that is for the broker is passed on
as its bytes come, and its answer passed back likewise; neither is ever held whole. While one is answered here nothing
more is read, as a broker does it. Reading pauses wherever the other side does not take what it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from kafka_coord.frontends.kafka.routing import SASL, expects_answer, is_local, patch_api_versions
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import API_VERSIONS, HEADER_BYTES, frame_length, peek

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 100 << 20
"""As ``socket.request.max.bytes`` of a broker."""
MAX_LOCAL_BYTES = 8 << 20
"""Of a request that is answered here, and so is held whole."""
MAX_UNANSWERED = 1_000
"""Requests passed on and not answered yet; beyond that nothing more is read."""
CONNECT_S = 10.0
FIRST_REQUEST_S = 30.0
"""Within which a new connection sends its first request."""
_LENGTH = 4
_HIGH_WATER = 1 << 20


class Answering(Protocol):
    """Who answers what is answered here."""

    async def answer(self, frame: bytes, host: str) -> bytes:
        """The frame of the answer to a request's. Raises :class:`BadMessage`: the connection is closed."""

    def departed(self, client: ClientConnection) -> None:
        """The connection is gone."""

    def may_stay(self, client: ClientConnection) -> bool:
        """Whether a connection that was just accepted may stay open."""


@dataclass(slots=True, eq=False)
class _Slot:
    """A request that will be answered. ``answer`` once it is there, where it does not come from the broker."""

    from_broker: bool
    api_key: int
    version: int
    answer: bytes | None = None


class ClientConnection(asyncio.Protocol):
    """See above. ``connect`` opens a connection to the broker with the protocol it is given."""

    def __init__(self, answering: Answering, connect: Callable[[asyncio.Protocol], Awaitable[None]]) -> None:
        self._answering, self._connect = answering, connect
        self._transport: asyncio.Transport | None = None
        self.address = "?"
        self._buffer = bytearray()
        self._passing = 0
        self._slots: deque[_Slot] = deque()
        self._task: asyncio.Task[None] | None = None
        self._broker: BrokerEnd | None = None
        self._ended = False
        self._has_sasl = False
        self._first_by: asyncio.TimerHandle | None = None
        self._reading_paused = False
        self._takes_no_more = False

    # --- the client's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's is one
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.address = f"{host}:{port}"
        if not self._answering.may_stay(self):
            self._ended = True
            transport.abort()
            return
        with suppress(OSError):  # a peer that vanished is noticed
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._first_by = asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._said_nothing)

    def _said_nothing(self) -> None:
        self.end(f"no request within {FIRST_REQUEST_S:g} s")

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._passing and not self._buffer and len(data) <= self._passing and self._broker is not None:
            self._passing -= len(data)
            self._broker.write(data)
        else:
            self._buffer += data
            self._take()
        self._pause_or_resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.end("" if error is None else str(error))

    def pause_writing(self) -> None:
        self._takes_no_more = True
        if self._broker is not None:
            self._broker.pause()

    def resume_writing(self) -> None:
        self._takes_no_more = False
        self.forward_answers()

    def end(self, reason: str = "") -> None:
        """Closes both ends, once. A reason is logged."""
        if self._ended:
            return
        self._ended = True
        if reason:
            log.info("closed connection address=%s reason=%s", self.address, reason)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._first_by is not None:
            self._first_by.cancel()
        if self._broker is not None:
            self._broker.close()
        if self._transport is not None:
            self._transport.close()
        self._answering.departed(self)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Takes whatever is there, until a request is answered here, or the broker has to be connected first."""
        try:
            while self._buffer and not self._ended and self._task is None and self._take_one():
                pass
        except BadMessage as error:
            self.end(str(error))

    def _take_one(self) -> bool:
        if self._passing:
            chunk = bytes(self._buffer[: self._passing])
            del self._buffer[: len(chunk)]
            self._passing -= len(chunk)
            if self._broker is not None:
                self._broker.write(chunk)
            return True
        if len(self._buffer) < _LENGTH + HEADER_BYTES or len(self._slots) >= MAX_UNANSWERED:
            return False
        if self._first_by is not None:
            self._first_by.cancel()
        length = frame_length(self._buffer)
        if not HEADER_BYTES <= length <= MAX_FRAME_BYTES:
            raise BadMessage(f"a frame of {length} bytes")
        frame = memoryview(self._buffer)[_LENGTH : _LENGTH + length]
        try:
            api_key, version, _ = peek(frame)
            if is_local(api_key, version):
                return self._take_local(length, api_key, version)
            answered = expects_answer(frame, length)
        finally:
            frame.release()
        if answered is None:
            return False
        if self._broker is None:
            self._task = asyncio.create_task(self._reach_broker())
            return False
        self._has_sasl = self._has_sasl or api_key in SASL
        if answered:
            self._slots.append(_Slot(True, api_key, version))
        self._passing = _LENGTH + length
        return True

    def _take_local(self, length: int, api_key: int, version: int) -> bool:
        if length > MAX_LOCAL_BYTES:
            raise BadMessage(f"a request of {length} bytes about groups; {MAX_LOCAL_BYTES} are allowed")
        if len(self._buffer) < _LENGTH + length:
            return False
        frame = bytes(memoryview(self._buffer)[_LENGTH : _LENGTH + length])
        self._task = asyncio.create_task(self._answer(frame, length, _Slot(False, api_key, version)))
        return False

    async def _answer(self, frame: bytes, length: int, slot: _Slot) -> None:
        del self._buffer[: _LENGTH + length]
        self._slots.append(slot)
        reason = "an internal error"
        try:
            slot.answer = await self._answering.answer(frame, self.host)
        except BadMessage as error:
            reason = str(error)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("cannot answer api_key=%d version=%d address=%s", slot.api_key, slot.version, self.address)
        self._task = None
        if slot.answer is None:
            self.end(reason)
            return
        self.forward_answers()
        self._take()
        self._pause_or_resume()

    async def _reach_broker(self) -> None:
        end = BrokerEnd(self)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connect(end)
        except (OSError, TimeoutError) as error:
            self.end(f"the broker cannot be reached: {error or 'no connection in time'}")
            return
        self._task = None
        if self._ended:
            end.close()
            return
        self._broker = end
        self._take()
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        pause = self._task is not None or len(self._slots) >= MAX_UNANSWERED
        pause = pause or (self._broker is not None and self._broker.is_full)
        if self._transport is None or self._transport.is_closing() or pause == self._reading_paused:
            return
        self._reading_paused = pause
        (self._transport.pause_reading if pause else self._transport.resume_reading)()

    # --- answers -----------------------------------------------------------------------------------------------------

    def forward_answers(self) -> None:
        """Sends what is at the head of the queue, as far as it is there."""
        while self._slots and not self._takes_no_more and not self._ended:
            slot = self._slots[0]
            if slot.from_broker:
                if self._broker is None or not self._broker.pass_answer(slot):
                    break
            elif slot.answer is None:
                break
            else:
                self.write(slot.answer)
            self._slots.popleft()
        if self._broker is not None:
            self._broker.pause_or_resume(self._takes_no_more or bool(self._slots and not self._slots[0].from_broker))
        if self._reading_paused:
            self._take()
            self._pause_or_resume()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def broker_lost(self, reason: str) -> None:
        """A broker closes idle connections. Where nothing is under way the client keeps its own, but for one that has
        authenticated there: another connection to the broker would be nobody's."""
        self._broker = None
        if any(slot.from_broker for slot in self._slots) or self._passing or self._has_sasl:
            self.end(f"the broker closed the connection: {reason}" if reason else "the broker closed the connection")

    def takes(self) -> None:
        self._pause_or_resume()


class BrokerEnd(asyncio.Protocol):
    """The broker's side of a client's connection."""

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._left = 0
        """Of the answer that is being passed back."""
        self._paused = False
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's is one
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self._left and not self._buffer and len(data) < self._left:
            self._left -= len(data)
            self._client.write(data)
            return
        self._buffer += data
        self._client.forward_answers()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._client.broker_lost("" if error is None else str(error))

    def pause_writing(self) -> None:
        self.is_full = True
        self._client.takes()

    def resume_writing(self) -> None:
        self.is_full = False
        self._client.takes()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pass_answer(self, slot: _Slot) -> bool:
        """Passes on what there is of the answer; whether that was the end of it."""
        if slot.api_key == API_VERSIONS:
            return self._pass_patched(slot)
        if not self._left:
            if len(self._buffer) < _LENGTH:
                return False
            self._left = _LENGTH + frame_length(self._buffer)
        chunk = bytes(memoryview(self._buffer)[: self._left])
        del self._buffer[: len(chunk)]
        self._left -= len(chunk)
        self._client.write(chunk)
        return self._left == 0

    def _pass_patched(self, slot: _Slot) -> bool:
        if len(self._buffer) < _LENGTH:
            return False
        length = frame_length(self._buffer)
        if len(self._buffer) < _LENGTH + length:
            return False
        body = patch_api_versions(bytes(self._buffer[_LENGTH : _LENGTH + length]), slot.version)
        del self._buffer[: _LENGTH + length]
        self._client.write(len(body).to_bytes(_LENGTH, "big") + body)
        return True

    def pause(self) -> None:
        self.pause_or_resume(True)

    def pause_or_resume(self, pause: bool) -> None:
        if self._transport is None or self._transport.is_closing() or pause == self._paused:
            return
        self._paused = pause
        (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
