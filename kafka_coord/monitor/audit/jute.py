"""Reads ZooKeeper's serialization format (jute): big-endian numbers, and length-prefixed strings and buffers."""

from __future__ import annotations

import struct

_INT = struct.Struct(">i").unpack_from


class Truncated(ValueError):
    """A value is truncated, contains an impossible length, or is not valid UTF-8."""


class JuteReader:
    """Reads values in order from ``data``, beginning at ``at``. Raises :class:`Truncated`."""

    __slots__ = ("_end", "at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self._end = len(data)

    def int32(self) -> int:
        at = self.at
        self.at = at + 4
        if self.at > self._end:
            raise Truncated("a number is truncated")
        value: int = _INT(self.data, at)[0]
        return value

    def flag(self) -> bool:
        if self.at >= self._end:
            raise Truncated("a flag is truncated")
        self.at += 1
        return self.data[self.at - 1] != 0

    def buffer(self) -> bytes:
        """Reads a buffer. A null buffer (length -1) reads as empty."""
        begin = self.at + 4
        if begin > self._end:
            raise Truncated("a length is truncated")
        length: int = _INT(self.data, self.at)[0]
        if length <= 0:
            if length < -1:
                raise Truncated(f"impossible length {length}")
            self.at = begin
            return b""
        self.at = begin + length
        if self.at > self._end:
            raise Truncated(f"a value of {length} bytes is truncated")
        return self.data[begin : self.at]

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise Truncated("a string is not UTF-8") from None

    def skip_acl(self) -> None:
        """Skips a vector of ACL entries: permissions, scheme, id."""
        for _ in range(self.int32()):
            self.int32()
            self.buffer()
            self.buffer()
