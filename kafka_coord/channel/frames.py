"""Encodes and decodes the frames of the socket channel (docs/socket-protocol.md). A frame is a four-byte length
followed by a JSON object."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
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
