"""Connects to the broker on behalf of one client and passes on the broker's responses, which arrive in order."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_coord.frontends.kafka.clients import CLOSING_S
from kafka_coord.frontends.kafka.routing import Patch, Patches
from kafka_coord.kafka.connection import CLIENT_ID
from kafka_coord.wire.frames import RequestHeader, answer_start, frame_length, request_frame, take_frame
from kafka_coord.wire.messages import BadMessage, Message, message

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.connection import ClientConnection

HIGH_WATER = 256 << 10
"""Reading pauses while more than this many bytes are buffered between client and broker."""
_LENGTH = 4


@dataclass(slots=True, eq=False)
class _ForwardedRequest:
    answer: Message
    version: int
    found: asyncio.Future[Any]


class BrokerEnd(asyncio.Protocol):
    """One connection to the broker. Passes on the bytes of a response as they arrive, or all at once if the response
    must be changed. Is in ``connected`` until it is closed."""

    def __init__(
        self, client: ClientConnection, patches: Patches, connected: set[ClientConnection | BrokerEnd]
    ) -> None:
        self._client, self._patches, self._connected = client, patches, connected
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._left = 0
        """The number of bytes still missing from the response that is being passed on."""
        self._paused = False
        self._questions: deque[_ForwardedRequest] = deque()
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  a stream's transport is one
        self._transport = transport
        self._connected.add(self)
        transport.set_write_buffer_limits(HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self._left and not self._buffer and len(data) < self._left:
            self._left -= len(data)
            self._client.write(data)
            return
        self._buffer += data
        self._client.forward_answers()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._connected.discard(self)
        reason = "" if error is None else str(error)
        for question in self._questions:
            if not question.found.done():
                question.found.set_exception(ConnectionError(reason or "the broker closed the connection"))
        self._questions.clear()
        self._client.broker_lost(reason)

    def pause_writing(self) -> None:
        self.is_full = True
        self._client.pause_or_resume()

    def resume_writing(self) -> None:
        self.is_full = False
        self._client.pause_or_resume()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def unsent(self) -> int:
        """Returns the number of bytes not yet sent to the broker, plus those not yet passed on to the client."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + len(self._buffer)

    def pass_answer(self, api_key: int, version: int, change: Patch | None = None) -> bool:
        """Passes on the bytes of the next response that have arrived, or changes it. Returns whether the response is
        complete."""
        if not self._left:
            patch = change or self._patches.get(api_key, version)
            if patch is not None:
                return self._pass_patched(patch, version)
            if len(self._buffer) < _LENGTH:
                return False
            self._left = _LENGTH + frame_length(self._buffer)
        chunk = bytes(memoryview(self._buffer)[: self._left])
        del self._buffer[: len(chunk)]
        self._left -= len(chunk)
        self._client.write(chunk)
        return self._left == 0

    def _pass_patched(self, patch: Patch, version: int) -> bool:
        frame = take_frame(self._buffer)
        if frame is None:
            return False
        body = patch(frame, version)
        self._client.write(len(body).to_bytes(_LENGTH, "big") + body)
        return True

    async def ask(self, name: str, version: int, value: Any) -> Any:
        """Sends ``<name>Request`` as the client and returns the response. Raises :class:`ConnectionError`, and
        :class:`BadMessage` if the response cannot be decoded."""
        request, answer = message(f"{name}Request"), message(f"{name}Response")
        header = RequestHeader(request.api_key or 0, version, 0, CLIENT_ID, version in request.flexible)
        question = _ForwardedRequest(answer, version, asyncio.get_running_loop().create_future())
        if self._transport is None:
            raise ConnectionError("the broker closed the connection")
        self._questions.append(question)
        self.write(request_frame(header, request, value))
        return await question.found

    def take_answers_to_questions(self) -> None:
        """Takes the responses to this instance's own requests. Call this only when the client's earlier requests have
        been answered."""
        while self._questions:
            frame = take_frame(self._buffer)
            if frame is None:
                return
            question = self._questions.popleft()
            if question.found.done():
                continue
            try:
                start = answer_start(question.answer, question.version)
                question.found.set_result(question.answer.decode(frame, question.version, start))
            except BadMessage as error:
                question.found.set_exception(error)

    def pause_or_resume(self, pause: bool) -> None:
        if self._transport is None or self._transport.is_closing() or pause == self._paused:
            return
        self._paused = pause
        (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def close(self) -> None:
        """Closes the connection once the broker has accepted the remaining bytes, or after :data:`CLOSING_S`
        seconds."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSING_S, self._transport.abort)
