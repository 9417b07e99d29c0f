"""A connection to one broker, with any number of requests under way."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.authentication import BrokerSecurity, answers_to
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import RequestHeader, answer_start, frame_length, request_frame
from kafka_coord.wire.messages import Message, message

MAX_ANSWER_BYTES = 64 * 1024 * 1024
CLIENT_ID = "kafka-coord"
PLAINTEXT = BrokerSecurity()
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 1, 0
_LENGTH = _CORRELATION = 4


class BrokerConnection(asyncio.Protocol):
    """One TCP connection. Every failure is a :class:`BrokerError`; the connection is closed then, and stays so."""

    def __init__(self, host: str, port: int, security: BrokerSecurity = PLAINTEXT) -> None:
        self.host, self.port, self._security = host, port, security
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[Message, int, asyncio.Future[Any]]] = {}
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._connecting = asyncio.Lock()
        self.closed = False

    async def ask(self, name: str, version: int, value: Any, timeout_s: float = 30.0) -> Any:
        """Sends ``<name>Request`` in this version, and returns the answer."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(await self._connected(), name, version, value)
        except (OSError, TimeoutError, BadMessage) as error:
            self.close()
            reason = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise BrokerError(f"{self.host}:{self.port}: {name}: {reason}") from error

    async def _ask(self, transport: asyncio.Transport, name: str, version: int, value: Any) -> Any:
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        number = next(self._ids)
        header = RequestHeader(request.api_key or 0, version, number, CLIENT_ID)
        frame = request_frame(header, request, value)
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, version, found
        try:
            transport.write(frame)
            return await found
        finally:
            self._waiting.pop(number, None)

    async def _connected(self) -> asyncio.Transport:
        async with self._connecting:
            if self._transport is None and not self.closed:
                tls = self._security.tls
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(lambda: self, self.host, self.port, ssl=tls)
                if self._security.mechanism is not None:
                    await self._authenticate(transport, self._security.mechanism)
            if self._transport is None or self.closed:
                raise ConnectionError("the connection was closed")
            return self._transport

    async def _authenticate(self, transport: asyncio.Transport, mechanism: str) -> None:
        try:
            asked = message("SaslHandshakeRequest")(mechanism=mechanism)
            found = await self._ask(transport, "SaslHandshake", _SASL_HANDSHAKE, asked)
            if found.error_code:
                raise ConnectionError(f"the broker takes {', '.join(found.mechanisms)}, not {mechanism}")
            exchange = answers_to(self._security)
            sending = next(exchange)
            while True:
                asked = message("SaslAuthenticateRequest")(auth_bytes=sending)
                found = await self._ask(transport, "SaslAuthenticate", _SASL_AUTHENTICATE, asked)
                if found.error_code:
                    raise ConnectionError(f"not authenticated: {found.error_message or found.error_code}")
                sending = exchange.send(found.auth_bytes)
        except StopIteration:
            return
        except (ValueError, KeyError) as error:
            raise ConnectionError(f"not authenticated: {error}") from None

    def close(self) -> None:
        self._fail("the connection was closed")

    def _fail(self, reason: str) -> None:
        self.closed = True
        for _, _, found in self._waiting.values():
            if not found.done():
                found.set_exception(ConnectionError(reason))
        if self._transport is not None:
            self._transport.close()

    # --- what the event loop calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's is one
        self._transport = transport
        if self.closed:
            transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the broker closed the connection" if error is None else str(error))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while not self.closed and (frame := self._whole_frame()) is not None:
                self._answered(frame)
        except BadMessage as error:
            self._fail(str(error))

    def _whole_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH:
            return None
        end = _LENGTH + frame_length(self._buffer)
        if not _LENGTH + _CORRELATION <= end <= _LENGTH + MAX_ANSWER_BYTES:
            raise BadMessage(f"an answer of {end - _LENGTH} bytes")
        if len(self._buffer) < end:
            return None
        frame = bytes(memoryview(self._buffer)[_LENGTH:end])
        del self._buffer[:end]
        return frame

    def _answered(self, frame: bytes) -> None:
        waiting = self._waiting.get(int.from_bytes(frame[:_CORRELATION], "big"))
        if waiting is None:
            return  # the caller has given up since
        answer, version, found = waiting
        if not found.done():
            found.set_result(answer.decode(frame, version, answer_start(answer, version)))
