"""The record that the application receives."""

from __future__ import annotations

from typing import Any

_TIMESTAMP_TYPES = ("none", "create", "log_append")


class Record:
    """One record of one partition. Immutable; ``topic``, ``partition``, ``offset`` as in Kafka.

    It keeps librdkafka's message and reads each field from it on demand. When it copied all fields, this class was the
    slowest part of the consumer.
    """

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._message.topic()  # type: ignore[no-any-return]

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._message.partition()  # type: ignore[no-any-return]

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return self._message.offset()  # type: ignore[no-any-return]

    @property
    def key(self) -> bytes | None:
        """The key, or ``None``."""
        return self._message.key()  # type: ignore[no-any-return]

    @property
    def value(self) -> bytes | None:
        """The value; ``None`` is a tombstone."""
        return self._message.value()  # type: ignore[no-any-return]

    @property
    def timestamp_ms(self) -> int | None:
        """Ms since 1970, or ``None`` if the record has no timestamp (message format 0, Kafka before 0.10)."""
        kind, timestamp_ms = self._message.timestamp()
        return timestamp_ms if kind else None

    @property
    def timestamp_type(self) -> str:
        """``create`` (the producer's time), ``log_append`` (the broker's) or ``none``."""
        return _TIMESTAMP_TYPES[self._message.timestamp()[0]]

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers as (name, value), in the order written; names may repeat."""
        return tuple(self._message.headers() or ())

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets a record be pickled, as when it is passed to another process, which gets a copy."""
        asked = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
        return Record, (_CopiedMessage({name: getattr(self._message, name)() for name in asked}),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.topic, self.partition, self.offset, self.key, self.value) == (
            other.topic,
            other.partition,
            other.offset,
            other.key,
            other.value,
        )

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        value = repr(self.value)
        shown = value if len(value) <= 60 else value[:57] + "…"
        return f"Record({self.topic}-{self.partition}@{self.offset} key={self.key!r} value={shown})"


class _CopiedMessage:
    """The fields of a librdkafka message that :class:`Record` reads, as plain values."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def topic(self) -> str:
        return self._values["topic"]  # type: ignore[no-any-return]

    def partition(self) -> int:
        return self._values["partition"]  # type: ignore[no-any-return]

    def offset(self) -> int:
        return self._values["offset"]  # type: ignore[no-any-return]

    def key(self) -> bytes | None:
        return self._values["key"]  # type: ignore[no-any-return]

    def value(self) -> bytes | None:
        return self._values["value"]  # type: ignore[no-any-return]

    def timestamp(self) -> tuple[int, int]:
        return self._values["timestamp"]  # type: ignore[no-any-return]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._values["headers"]  # type: ignore[no-any-return]
