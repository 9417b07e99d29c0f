"""The frames of a socket-channel connection (docs/socket-protocol.md), a four-byte length followed by a JSON object,
and one end of the connection, which matches responses to requests and checks that each frame is allowed.

Each end numbers its requests from 1 without gaps, and answers each request from the other end exactly once
(docs/socket-protocol.md). Any violation ends the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from kafka_coord.errors import KafkaCoordError
from kafka_coord.model.json_fields import dump, shown

VERSION = 1
MAX_FRAME_BYTES = 1 << 20
MAX_ID = (1 << 53) - 1

_LENGTH = struct.Struct("!I")

Frame = dict[str, Any]


class Fault(StrEnum):
    """The error codes for bad frames. A bad frame always ends the connection."""

    MALFORMED_FRAME = "malformed-frame"
    FRAME_TOO_LARGE = "frame-too-large"
    UNSUPPORTED_VERSION = "unsupported-version"
    UNEXPECTED_MESSAGE = "unexpected-message"
    TOO_MANY_REQUESTS = "too-many-requests"
    OVERLOADED = "overloaded"


class BadFrame(KafkaCoordError):
    """The received data is not a valid frame, or an outgoing frame is too large. ``id`` is the frame's id, or 0 if it
    cannot be read. ``more`` contains additional fields for the error response."""

    def __init__(self, fault: Fault, message: str, id: int = 0, **more: object) -> None:  # noqa: A002  the field's name
        super().__init__(message)
        self.fault = fault
        self.id = id
        self.more = more


def encode(frame: Mapping[str, Any]) -> bytes:
    """Adds ``v`` to a frame and encodes it for sending. Raises :class:`BadFrame` if it is too large."""
    body = dump({"v": VERSION, **frame})
    if len(body) > MAX_FRAME_BYTES:
        raise BadFrame(Fault.FRAME_TOO_LARGE, f"a frame has {len(body)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns received bytes into whole frames, in order. Do not use it again after it has raised :class:`BadFrame`."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """The number of buffered bytes, including those of an incomplete frame."""
        return len(self._buffer)

    def add(self, data: bytes) -> None:
        """Buffers the bytes for :meth:`take`."""
        self._buffer += data

    def size(self) -> int:
        """Returns the size of the next frame in bytes, or 0 while the frame is incomplete. Raises :class:`BadFrame` as
        soon as the length shows that the frame is too large."""
        if len(self._buffer) < _LENGTH.size:
            return 0
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise BadFrame(Fault.FRAME_TOO_LARGE, f"a frame has {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
        whole: int = _LENGTH.size + length
        return whole if len(self._buffer) >= whole else 0

    def take(self) -> Frame:
        """Returns the next frame, which must be complete. Raises :class:`BadFrame`."""
        size = self.size()
        body = bytes(self._buffer[_LENGTH.size : size])
        del self._buffer[:size]
        return decode(body)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Buffers the bytes and yields every whole frame. If a frame is bad, yields those before it and then raises
        :class:`BadFrame`."""
        self.add(data)
        while self.size():
            yield self.take()


def decode(body: bytes) -> Frame:
    """Decodes the body of one frame. Raises :class:`BadFrame`."""
    try:
        frame = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(Fault.MALFORMED_FRAME, f"a frame is not JSON ({error})") from None
    if not isinstance(frame, dict):
        raise BadFrame(Fault.MALFORMED_FRAME, f"a frame must be a JSON object, not {type(frame).__name__}")
    given_id = frame.get("id")
    frame_id = (
        given_id if isinstance(given_id, int) and not isinstance(given_id, bool) and 0 <= given_id <= MAX_ID else None
    )
    version = frame.get("v")
    if version != VERSION or type(version) is not int:  # 1.0 and true equal 1, but are not legal versions
        message = f"version {shown(version)} is not supported; use {VERSION}"
        raise BadFrame(Fault.UNSUPPORTED_VERSION, message, frame_id or 0, versions=[VERSION])
    if frame_id is None:
        raise BadFrame(
            Fault.MALFORMED_FRAME, f"field 'id' must be an integer from 0 to 2^53 - 1, not {shown(given_id)}"
        )
    if not isinstance(frame.get("type"), str):
        raise BadFrame(
            Fault.MALFORMED_FRAME, f"field 'type' must be a string, not {shown(frame.get('type'))}", frame_id
        )
    return frame


ANSWER = "answer"
ERROR = "error"
MAX_UNANSWERED = 64
"""The maximum number of unanswered requests in each direction."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request from the other end."""

    id: int
    type: str
    frame: Frame


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A response from the other end. ``type`` is the type of this end's request."""

    id: int
    type: str
    frame: Frame


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """An error from the other end. ``type`` is the type of the refused request, or "" if the error is about the
    connection."""

    id: int
    type: str
    code: str
    message: str
    frame: Frame


Event = Asked | AnsweredRequest | RefusedRequest


class Rpc:
    """Tracks the unanswered requests of both ends."""

    def __init__(self) -> None:
        self._last_id = 0
        self._waiting: dict[int, str] = {}
        self._their_last_id = 0
        self._owed: set[int] = set()

    @property
    def waiting(self) -> int:
        """The number of this end's unanswered requests."""
        return len(self._waiting)

    def ask(self, request: str, fields: Mapping[str, Any] | None = None) -> tuple[int, Frame]:
        """Creates a request. Returns its id and its frame."""
        self._last_id += 1
        self._waiting[self._last_id] = request
        return self._last_id, {"id": self._last_id, "type": request, **(fields or {})}

    def answer(self, request_id: int, fields: Mapping[str, Any] | None = None) -> Frame:
        """Returns the frame that answers the other end's request and marks the request as answered."""
        self._owed.discard(request_id)
        return {"id": request_id, "type": ANSWER, **(fields or {})}

    def refuse(self, request_id: int, code: str, message: str, fields: Mapping[str, Any] | None = None) -> Frame:
        """Returns the error frame that answers a request. The id 0 means that the error is about the connection."""
        self._owed.discard(request_id)
        return {"id": request_id, "type": ERROR, "code": code, "message": message, **(fields or {})}

    def take(self, frame: Frame) -> Event:
        """Returns the event that a received frame represents. Raises :class:`BadFrame` if the frame is not allowed at
        this point."""
        number, kind = frame["id"], frame["type"]
        if kind not in (ANSWER, ERROR):
            return self._asked(number, kind, frame)
        if kind == ERROR and number == 0:
            return RefusedRequest(0, "", *_error(frame), frame)
        request = self._waiting.pop(number, None)
        if request is None:
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, f"got an unexpected {kind} to request {number}")
        if kind == ERROR:
            return RefusedRequest(number, request, *_error(frame), frame)
        return AnsweredRequest(number, request, frame)

    def _asked(self, number: int, kind: str, frame: Frame) -> Asked:
        if number != self._their_last_id + 1:
            reason = f"expected request {self._their_last_id + 1}, got request {number}"
            raise BadFrame(Fault.UNEXPECTED_MESSAGE, reason, number)
        if len(self._owed) >= MAX_UNANSWERED:
            raise BadFrame(
                Fault.TOO_MANY_REQUESTS, f"{len(self._owed)} requests are unanswered; wait for responses", number
            )
        self._their_last_id = number
        self._owed.add(number)
        return Asked(number, kind, frame)


def _error(frame: Frame) -> tuple[str, str]:
    code, message = frame.get("code"), frame.get("message", "")
    if not isinstance(code, str) or not isinstance(message, str):
        raise BadFrame(
            Fault.MALFORMED_FRAME,
            f"an error's fields 'code' and 'message' must be strings; 'code' is {shown(code)}",
            frame["id"],
        )
    return code, message
