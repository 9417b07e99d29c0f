"""One TCP connection to a broker, from its opening to its end."""

from __future__ import annotations

import asyncio
import itertools
import select
from dataclasses import dataclass
from typing import Any

from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame, take_frame
from kafka_coord.wire.messages import Message, message

MAX_ANSWER_BYTES = 64 * 1024 * 1024
CLIENT_ID = "kafka-coord"
ANSWER_S = 30.0
_MOST_IDLE_S = 540.0
"""How long a connection may be idle before it is replaced, in seconds: as in Kafka's clients, a minute less than a
broker's default for ``connections.max.idle.ms``, so that the broker does not close it while a request is on its way."""
_LOOKS_AFTER_S = 0.2
"""How long a connection must have been idle before it is worth asking the kernel whether the broker has closed it, in
seconds."""
_CORRELATION = 4


class Unwritten(ConnectionError):
    """No byte of the request was written."""


@dataclass(slots=True, eq=False)
class _SentRequest:
    """A request in flight. It times out at the loop time ``due``."""

    answer: Message
    version: int
    found: asyncio.Future[Any]
    due: float


class Line(asyncio.Protocol):
    """A connection with any number of requests in flight. ``ended`` is set when it has ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._waiting: dict[int, _SentRequest] = {}
        self._late: asyncio.TimerHandle | None = None
        """One timer for all requests, because setting a timer costs as much as everything else that a request
        involves."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._used_at = self._loop.time()
        """When the last response arrived."""
        self._retires: asyncio.TimerHandle | None = None
        self._retiring = False
        self.ended = asyncio.Event()

    def is_usable(self) -> bool:
        """Returns whether a request may be sent. Ends the connection if the broker has closed it, or if the broker is
        about to close it because it is idle."""
        if self.ended.is_set() or self._retiring:
            return False
        if not self._waiting:
            idle_s = self._loop.time() - self._used_at
            if idle_s >= _MOST_IDLE_S:
                self.end("the connection was idle")
            elif idle_s >= _LOOKS_AFTER_S and self._is_hung_up():
                self.end("the broker closed the connection")
        return not self.ended.is_set()

    def _is_hung_up(self) -> bool:
        """Returns whether the broker has sent anything without being asked, which can only be the end of the
        connection. The event loop may not have come to it yet."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def ask(self, name: str, version: int, value: Any, timeout_s: float = ANSWER_S) -> Any:
        """Returns the response. Raises :class:`Unwritten`, another :class:`OSError`, :class:`TimeoutError` or
        :class:`BadMessage`."""
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        number = next(self._ids)
        frame = request_frame(RequestHeader(request.api_key or 0, version, number, CLIENT_ID), request, value)
        transport = self._transport
        if self.ended.is_set() or transport is None or transport.is_closing():
            raise Unwritten("the connection was closed")
        response: asyncio.Future[Any] = self._loop.create_future()
        due = self._loop.time() + timeout_s
        self._waiting[number] = _SentRequest(answer, version, response, due)
        if self._late is None or due < self._late.when():
            self._set_timer(due)
        try:
            transport.write(frame)
            return await response
        finally:
            self._waiting.pop(number, None)
            if self._retiring and not self._waiting:
                self.end("the connection was replaced")

    def retire_in(self, delay_s: float) -> None:
        """Takes no more requests after ``delay_s`` seconds, and ends as soon as nothing is in flight."""
        self._retires = self._loop.call_later(delay_s, self._retire)

    def _retire(self) -> None:
        self._retiring = True
        if not self._waiting:
            self.end("the connection was replaced")

    def _set_timer(self, due: float) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self._loop.call_at(due, self._fail_late)

    def _fail_late(self) -> None:
        """Fails the requests that have timed out and sets the timer for the next timeout."""
        self._late = None
        now = self._loop.time()
        for question in self._waiting.values():
            if question.due <= now and not question.found.done():
                question.found.set_exception(TimeoutError())
        due = min((question.due for question in self._waiting.values() if question.due > now), default=None)
        if due is not None:
            self._set_timer(due)

    def end(self, reason: str) -> None:
        """Closes the connection. Requests in flight raise :class:`ConnectionError` with the ``reason``."""
        self.ended.set()
        for timer in (self._late, self._retires):
            if timer is not None:
                timer.cancel()
        self._late = self._retires = None
        for question in self._waiting.values():
            if not question.found.done():
                question.found.set_exception(ConnectionError(reason))
        if self._transport is not None:
            self._transport.abort()  # an orderly TLS close would take a round trip, and no one would wait for it

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's transport is one
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.end("the broker closed the connection" if error is None else str(error))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._used_at = self._loop.time()
        try:
            while not self.ended.is_set() and (frame := take_frame(self._buffer, MAX_ANSWER_BYTES)) is not None:
                self._deliver_answer(frame)
        except BadMessage as error:
            self.end(str(error))

    def _deliver_answer(self, frame: bytes) -> None:
        if len(frame) < _CORRELATION:
            raise BadMessage(f"a response is only {len(frame)} bytes long")
        waiting = self._waiting.get(int.from_bytes(frame[:_CORRELATION], "big"))
        if waiting is None:
            return  # the caller has given up
        answer, version = waiting.answer, waiting.version
        if not waiting.found.done():
            waiting.found.set_result(answer.decode(frame, version, answer_start(answer, version)))
