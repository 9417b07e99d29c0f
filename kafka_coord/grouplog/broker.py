"""Connects to one broker and keeps any number of requests in flight."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

from kafka_coord.classic_groups.errors import named
from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.authentication import BrokerSecurity, answers_to
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame, take_frame
from kafka_coord.wire.messages import Message, message

MAX_ANSWER_BYTES = 64 * 1024 * 1024
CLIENT_ID = "kafka-coord"
ANSWER_S = 30.0
PLAINTEXT = BrokerSecurity()
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 1, 0
_CORRELATION = 4


@dataclass(slots=True, eq=False)
class _Question:
    """A request in flight. It times out at the loop time ``due``."""

    answer: Message
    version: int
    found: asyncio.Future[Any]
    due: float


class BrokerConnection(asyncio.Protocol):
    """One TCP connection. Every failure raises :class:`BrokerError` and closes the connection permanently."""

    def __init__(self, host: str, port: int, security: BrokerSecurity = PLAINTEXT) -> None:
        self.host, self.port, self._security = host, port, security
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Question] = {}
        self._late: asyncio.TimerHandle | None = None
        """One timer for all requests, because setting a timer costs as much as everything else that a request
        involves."""
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Transport | None = None
        """The transport once it is authenticated; ``None`` before that, and after the connection has been closed."""
        self._buffer = bytearray()
        self._connecting = asyncio.Lock()
        self.closed = False

    async def ask(self, name: str, version: int, value: Any, timeout_s: float = ANSWER_S) -> Any:
        """Sends ``<name>Request`` in the given version and returns the response."""
        try:
            transport = self._ready
            if transport is None:
                async with asyncio.timeout(timeout_s):
                    transport = await self._connected()
            return await self._ask(transport, name, version, value, timeout_s)
        except (OSError, TimeoutError, BadMessage) as error:
            self.close()
            reason = f"no response within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise BrokerError(f"{self.host}:{self.port}: {name}: {reason}") from error

    async def _ask(
        self, transport: asyncio.Transport, name: str, version: int, value: Any, timeout_s: float = ANSWER_S
    ) -> Any:
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        number = next(self._ids)
        header = RequestHeader(request.api_key or 0, version, number, CLIENT_ID)
        frame = request_frame(header, request, value)
        response: asyncio.Future[Any] = self._loop.create_future()
        due = self._loop.time() + timeout_s
        self._waiting[number] = _Question(answer, version, response, due)
        if self._late is None or due < self._late.when():
            self._set_timer(due)
        try:
            transport.write(frame)
            return await response
        finally:
            self._waiting.pop(number, None)

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

    async def _connected(self) -> asyncio.Transport:
        async with self._connecting:
            if self._transport is None and not self.closed:
                tls = self._security.tls
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(lambda: self, self.host, self.port, ssl=tls)
                if self._security.mechanism is not None:
                    await self._authenticate(transport, self._security.mechanism)
                self._ready = None if self.closed else transport
            if self._ready is None:
                raise ConnectionError("the connection was closed")
            return self._ready

    async def _authenticate(self, transport: asyncio.Transport, mechanism: str) -> None:
        try:
            request = message("SaslHandshakeRequest")(mechanism=mechanism)
            response = await self._ask(transport, "SaslHandshake", _SASL_HANDSHAKE, request)
            if response.error_code:
                raise ConnectionError(f"the broker supports {', '.join(response.mechanisms)}, not {mechanism}")
            exchange = answers_to(self._security)
            sending = next(exchange)
            while True:
                request = message("SaslAuthenticateRequest")(auth_bytes=sending)
                response = await self._ask(transport, "SaslAuthenticate", _SASL_AUTHENTICATE, request)
                if response.error_code:
                    raise ConnectionError(f"not authenticated: {response.error_message or named(response.error_code)}")
                sending = exchange.send(response.auth_bytes)
        except StopIteration:
            return
        except (ValueError, KeyError) as error:
            raise ConnectionError(f"not authenticated: {error}") from None

    def close(self) -> None:
        self._fail("the connection was closed")

    def _fail(self, reason: str) -> None:
        self.closed, self._ready = True, None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        for question in self._waiting.values():
            if not question.found.done():
                question.found.set_exception(ConnectionError(reason))
        if self._transport is not None:
            self._transport.abort()  # an orderly TLS close would take a round trip, and no one would wait for it

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's transport is one
        self._transport, self._loop = transport, asyncio.get_running_loop()
        if self.closed:
            transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the broker closed the connection" if error is None else str(error))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while not self.closed and (frame := take_frame(self._buffer, MAX_ANSWER_BYTES)) is not None:
                self._deliver_answer(frame)
        except BadMessage as error:
            self._fail(str(error))

    def _deliver_answer(self, frame: bytes) -> None:
        if len(frame) < _CORRELATION:
            raise BadMessage(f"a response is only {len(frame)} bytes long")
        waiting = self._waiting.get(int.from_bytes(frame[:_CORRELATION], "big"))
        if waiting is None:
            return  # the caller has given up
        answer, version = waiting.answer, waiting.version
        if not waiting.found.done():
            waiting.found.set_result(answer.decode(frame, version, answer_start(answer, version)))
