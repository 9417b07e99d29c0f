"""What the application gets: one record of one partition."""

from __future__ import annotations

from typing import Any

_TIMESTAMP_TYPES = ("none", "create", "log_append")


class Record:
    """One record. Immutable; ``topic``, ``partition``, ``offset`` as in Kafka.

    It keeps librdkafka's message and reads key, value, timestamp and headers from it when asked: building half a
    million full objects a second is what made earlier forms of this class the slowest part of the consumer.
    """

    __slots__ = ("_message", "offset", "partition", "topic")

    topic: str
    partition: int
    offset: int

    def __init__(self, topic: str, partition: int, offset: int, message: Any) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self._message = message

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
        """Ms since 1970, or ``None`` where the record has none (message format 0, Kafka before 0.10)."""
        kind, timestamp_ms = self._message.timestamp()
        return timestamp_ms if kind else None

    @property
    def timestamp_type(self) -> str:
        """``create`` (the producer's time), ``log_append`` (the broker's) or ``none``."""
        return _TIMESTAMP_TYPES[self._message.timestamp()[0]]

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """(name, value) in the order written; names may repeat."""
        return tuple(self._message.headers() or ())

    def __reduce__(self) -> tuple[Any, ...]:
        """Records can be pickled (handed to another process); what arrives is a copy."""
        copied = _CopiedMessage(self.key, self.value, self._message.timestamp(), list(self.headers))
        return Record, (self.topic, self.partition, self.offset, copied)

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
    """The four methods of a librdkafka message that :class:`Record` reads, over plain values."""

    __slots__ = ("_headers", "_key", "_timestamp", "_value")

    def __init__(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: tuple[int, int],
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        self._key, self._value, self._timestamp, self._headers = key, value, timestamp, headers

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers
