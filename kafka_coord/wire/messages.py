"""Kafka's messages, by name. ``message("JoinGroupRequest")`` returns the classes, decoders and encoders of a message.

Each version is compiled on first use, so unused messages cost nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kafka_coord.wire.compiler import Decode, Decoders, Encode, Encoders, Record, make_classes
from kafka_coord.wire.definition import Versions, read_definition


class Message:
    """A message in all its versions."""

    def __init__(self, name: str) -> None:
        definition = read_definition(name)
        self.name = name
        self.api_key = definition.api_key
        self.versions = definition.versions
        self.flexible: Versions = definition.flexible
        self._definition = definition
        self._classes: dict[str, type[Record]] = {}
        make_classes(definition.struct, self._classes)
        self._decoders: dict[int, Decode] = {}
        self._encoders: dict[int, Encode] = {}

    def __call__(self, **fields: Any) -> Record:
        """Creates a message with the given fields. All other fields get their default values."""
        made: Record = self.struct(self.name)(**fields)
        return made

    def struct(self, name: str) -> type[Any]:
        """Returns the class of one of the message's structures. ``name`` is its name in the definition."""
        return self._classes[name]

    def decode(self, data: bytes, version: int, at: int = 0) -> Any:
        """Decodes the message that begins at ``at``. Raises :class:`~kafka_coord.wire.compiler.BadMessage`."""
        return self.decode_at(data, version, at)[0]

    def decode_at(self, data: bytes, version: int, at: int = 0) -> tuple[Any, int]:
        """Decodes the message that begins at ``at``. Returns the message and the position where it ends."""
        decode = self._decoders.get(version)
        if decode is None:
            decode = self._decoders[version] = Decoders(self._definition, self._classes, version).message()
        return decode(data, at)

    def encode(self, message: Any, version: int, out: bytearray | None = None) -> bytearray:
        """Appends the message to ``out`` and returns ``out``. Raises :class:`~kafka_coord.wire.compiler.BadMessage`."""
        encode = self._encoders.get(version)
        if encode is None:
            encode = self._encoders[version] = Encoders(self._definition, self._classes, version).message()
        out = bytearray() if out is None else out
        encode(message, out)
        return out


@cache
def message(name: str) -> Message:
    """Returns the message called ``name``, such as ``OffsetCommitResponse``."""
    return Message(name)
