"""A minimal Kafka client with one blocking connection and pre-encoded requests."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any, Self

from kafka_coord.errors import BrokerError, KafkaCoordError
from kafka_coord.settings import host_and_port
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame
from kafka_coord.wire.messages import Record, message

CLIENT_ID = "kafka-coord-bench"
_LENGTH = 4
_WITHIN_S = 60.0


def request_bytes(name: str, version: int, value: Any) -> bytes:
    """Returns the frame of ``<name>Request``. All frames have the same correlation id, so equal answers have equal
    bytes."""
    form = message(f"{name}Request")
    return request_frame(RequestHeader(form.api_key or 0, version, 1, CLIENT_ID), form, value)


class RawClient:
    """One connection to ``address``. Raises :class:`BrokerError` if the connection closes, or if an answer is late."""

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self.socket = socket.create_connection(host_and_port(address), _WITHIN_S)
        except OSError as error:
            raise BrokerError(f"cannot connect to {address}: {error}") from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, name: str, version: int, value: Any) -> Any:
        self.send(request_bytes(name, version, value))
        return self.answer(name, version)

    def send(self, frame: bytes) -> None:
        try:
            self.socket.sendall(frame)
        except OSError as error:
            raise BrokerError(f"{self.address}: {error}") from None

    def answer(self, name: str, version: int) -> Any:
        form = message(f"{name}Response")
        return form.decode(self.frame()[_LENGTH:], version, answer_start(form, version))

    def frame(self) -> bytes:
        """Returns the next answer, including its length."""
        head = self._read(_LENGTH)
        return head + self._read(int.from_bytes(head, "big"))

    def _read(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            try:
                found = self.socket.recv(size - len(out))
            except OSError as error:
                raise BrokerError(f"{self.address}: {error}") from None
            if not found:
                raise BrokerError(f"{self.address} closed the connection")
            out += found
        return bytes(out)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def error_codes(answer: Any) -> Iterator[int]:
    """Yields all error codes in an answer, at any depth."""
    if isinstance(answer, Record):
        for field in answer._fields:
            value = getattr(answer, field)
            if field == "error_code":
                yield value
            else:
                yield from error_codes(value)
    elif isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        for one in answer:
            yield from error_codes(one)


def without_errors(answer: Any, what: str) -> Any:
    """Returns the answer, or raises :class:`KafkaCoordError` if it contains an error code."""
    if bad := [code for code in error_codes(answer) if code]:
        raise KafkaCoordError(f"{what}: error {bad[0]}")
    return answer
