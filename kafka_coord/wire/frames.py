"""The frames and headers of requests and responses.

A frame is a length (4 bytes, big-endian) followed by that many bytes. A request frame begins with its header (API key,
version, correlation id, client id), and a response frame with the correlation id.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from kafka_coord.wire.messages import BadMessage, Message, message

API_VERSIONS = 18
_LENGTH = struct.Struct(">i")
_START = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")
HEADER_BYTES = _START.size
"""The size of the API key, version and correlation id at the beginning of a request's frame, in bytes."""


class RequestHeader(NamedTuple):
    """The header of a request. If ``flexible`` is set, the header ends with tagged fields, and so does the response's
    header, except for ApiVersions."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None = None
    flexible: bool = False


def frame_length(data: bytes | bytearray) -> int:
    """Returns the length in the first four bytes. Raises :class:`BadMessage` if it is negative."""
    (length,) = _LENGTH.unpack_from(data)
    if length < 0:
        raise BadMessage(f"the length of a frame is negative: {length}")
    return int(length)


def take_frame(buffer: bytearray, most: int | None = None) -> bytes | None:
    """Removes the first frame from ``buffer`` and returns it without its length. Returns ``None`` if the frame is
    incomplete. Raises :class:`BadMessage` for a frame of more than ``most`` bytes."""
    if len(buffer) < _LENGTH.size:
        return None
    length = frame_length(buffer)
    if most is not None and length > most:
        raise BadMessage(f"a frame is {length} bytes long; the limit is {most}")
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    frame = bytes(memoryview(buffer)[_LENGTH.size : end])
    del buffer[:end]
    return frame


def peek(frame: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Returns the API key and version of a request's frame. Raises :class:`BadMessage` if the frame is shorter than
    ``HEADER_BYTES``."""
    if len(frame) < HEADER_BYTES:
        raise BadMessage("a request's frame is shorter than its header")
    api_key, version, _ = _START.unpack_from(frame)
    return api_key, version


def read_header(frame: bytes, *, flexible: bool) -> tuple[RequestHeader, int]:
    """Decodes the header of a request's frame. Returns the header and the position where the request itself begins.
    ``flexible`` is true if the request's version is flexible. Raises :class:`BadMessage`."""
    header, at = message("RequestHeader").decode_at(frame, 2 if flexible else 1)
    read = RequestHeader(
        header.request_api_key, header.request_api_version, header.correlation_id, header.client_id, flexible
    )
    return read, at


def request_frame(header: RequestHeader, request: Message, value: Any) -> bytes:
    """Builds a complete request frame, including its length."""
    start = message("RequestHeader")(
        request_api_key=header.api_key,
        request_api_version=header.version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
    )
    out = bytearray(_LENGTH.size)
    message("RequestHeader").encode(start, 2 if header.version in request.flexible else 1, out)
    return _framed(request.encode(value, header.version, out))


def answer_frame(header: RequestHeader, answer: Message, value: Any) -> bytes:
    """Builds a complete response frame, in the request's version."""
    version = header.version
    out = bytearray(_LENGTH.size)
    out += _CORRELATION.pack(header.correlation_id)
    if header.api_key != API_VERSIONS and version in answer.flexible:
        out.append(0)
    return _framed(answer.encode(value, version, out))


def answer_start(answer: Message, version: int) -> int:
    """Returns the position in the frame where the response itself begins."""
    return _CORRELATION.size + (answer.api_key != API_VERSIONS and version in answer.flexible)


def _framed(out: bytearray) -> bytes:
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return bytes(out)


_SOFTWARE_CHARS = 100
_AIOKAFKA = "aiokafka-"
"""The beginning of aiokafka's default client id. aiokafka does not send its software name."""


def client_software(frame: bytes) -> str:
    """Returns the client's software name and version from the frame of its ApiVersions request, or "" if they are
    unknown."""
    form, (_, version) = message("ApiVersionsRequest"), peek(frame)
    try:
        if version not in form.versions or version not in form.flexible:
            header, _ = read_header(frame, flexible=False)
            name = header.client_id or ""
            return name.replace("-", " ", 1)[:_SOFTWARE_CHARS] if name.startswith(_AIOKAFKA) else ""
        _, at = read_header(frame, flexible=True)
        request = form.decode(frame, version, at)
        return f"{request.client_software_name} {request.client_software_version}"[:_SOFTWARE_CHARS].strip()
    except BadMessage:
        return ""
