"""The record that the application receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic

from kafka_coord.errors import MalformedValue

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

_HEADERS = methodcaller("headers")
_TIMESTAMP_TYPES = ("none", "create", "log_append")
_ABSENT = {
    "error": "a record is never an error: the consumer recovers, or the call raises",
    "timestamp": "use record.timestamp_ms",
}
"""What to use in place of attributes that the records of other libraries have."""


class Record(Generic[K, V]):
    """An immutable record of a partition. It keeps librdkafka's message and reads each field from it on demand, because
    copying all fields made this class the slowest part of the consumer.
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
        """The record's position in the partition."""
        return self._message.offset()  # type: ignore[no-any-return]

    @property
    def key(self) -> K | None:
        """The key, or ``None``. Raises the exceptions of the consumer's ``key_deserializer``."""
        return self._message.key()  # type: ignore[no-any-return]

    @property
    def value(self) -> V | None:
        """The value, or ``None`` for a tombstone. Raises the exceptions of the consumer's ``value_deserializer``."""
        return self._message.value()  # type: ignore[no-any-return]

    @property
    def raw_key(self) -> bytes | None:
        """The key's bytes, as stored in Kafka."""
        return self._message.key()  # type: ignore[no-any-return]

    @property
    def raw_value(self) -> bytes | None:
        """The value's bytes, as stored in Kafka."""
        return self._message.value()  # type: ignore[no-any-return]

    @property
    def timestamp_ms(self) -> int | None:
        """The record's timestamp in ms since 1970, or ``None`` if there is none (message format 0, before Kafka
        0.10)."""
        kind, timestamp_ms = self._message.timestamp()
        return timestamp_ms if kind else None

    @property
    def timestamp_type(self) -> str:
        """``create`` (the producer's time), ``log_append`` (the broker's time) or ``none``."""
        return _TIMESTAMP_TYPES[self._message.timestamp()[0]]

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers as (name, value) pairs, in the order in which they were written. Names may repeat. Raises
        :class:`MalformedValue`, which names the record, if a name is not UTF-8."""
        try:
            return tuple(headers_of(self._message) or ())
        except MalformedValue:  # the binding would return no headers the next time
            self._message = _copied(self._message, _UNREADABLE)
            raise

    def __getattr__(self, name: str) -> Any:
        meant = f": {_ABSENT[name]}" if name in _ABSENT else ""
        raise AttributeError(f"a record has no {name!r}{meant}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes records picklable, so that copies can be sent to another process, for example."""
        self._message = _copied(self._message)
        return Record, (self._message,)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.topic, self.partition, self.offset, self.raw_key, self.raw_value) == (
            other.topic,
            other.partition,
            other.offset,
            other.raw_key,
            other.raw_value,
        )

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        value = repr(self.raw_value)
        shown = value if len(value) <= 60 else value[:57] + "…"
        return f"Record({self.topic}-{self.partition}@{self.offset} key={self.raw_key!r} value={shown})"


def headers_of(message: Any, remedy: str = "") -> list[tuple[str, bytes | None]] | None:
    """Returns a message's headers, or ``None`` if it has none. Call it once for each message. Raises
    :class:`MalformedValue` if a name is not UTF-8: librdkafka's binding then returns a broken list with an exception
    set, which Python turns into a bare SystemError; but the interpreter's fast way of calling does not look, so that
    the first use of the list ends the process."""
    try:
        return _HEADERS(message)  # type: ignore[no-any-return]
    except (SystemError, UnicodeDecodeError):
        where = f"{message.topic()}-{message.partition()} at {message.offset()}"
        reason = "the record's headers cannot be read, because the name of one is not UTF-8"
        raise MalformedValue(where, f"{reason}{remedy}", "headers") from None


@dataclass(frozen=True, slots=True)
class Deserializers:
    """The functions that turn bytes into the application's objects. Without a function, the application gets the bytes.
    A missing key or value stays ``None``."""

    key: Callable[[bytes], Any] | None = None
    value: Callable[[bytes], Any] | None = None

    def record(self) -> Callable[[Any], Record[Any, Any]]:
        """Returns the function that creates a record from a message."""
        if self.key is None and self.value is None:
            return Record
        return lambda message: _DeserializedRecord(self, message)


class _DeserializedRecord(Record[K, V]):
    """A record that calls each deserializer once, when the application first reads the attribute. A malformed record
    therefore fails where the application can handle it, and does not stop the consumer."""

    __slots__ = ("_deserializers", "_key", "_value")

    def __init__(self, deserializers: Deserializers, message: Any) -> None:
        super().__init__(message)
        self._deserializers = deserializers
        self._key: Any = _UNREAD
        self._value: Any = _UNREAD

    @property
    def key(self) -> K | None:
        if self._key is _UNREAD:
            self._key = self._read(self._deserializers.key, self.raw_key, "key")
        return self._key  # type: ignore[no-any-return]

    @property
    def value(self) -> V | None:
        if self._value is _UNREAD:
            self._value = self._read(self._deserializers.value, self.raw_value, "value")
        return self._value  # type: ignore[no-any-return]

    def _read(self, deserialize: Callable[[bytes], Any] | None, data: bytes | None, what: str) -> Any:
        if deserialize is None or data is None:
            return data
        try:
            return deserialize(data)
        except Exception as error:
            error.add_note(f"This was the {what} of {self!r}.")
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        self._message = _copied(self._message)
        return _restored, (self._message, self.key, self.value)


_UNREAD = object()


def _restored(message: Any, key: Any, value: Any) -> Record[Any, Any]:
    record: _DeserializedRecord[Any, Any] = _DeserializedRecord(Deserializers(), message)
    record._key, record._value = key, value
    return record


def _copied(message: Any, headers: Callable[[], Any] | None = None) -> SimpleNamespace:
    """Returns a picklable object with the methods of a librdkafka message that :class:`Record` calls."""
    asked = ("topic", "partition", "offset", "key", "value", "timestamp")
    if headers is None:
        try:
            headers = partial(_unchanged, headers_of(message))
        except MalformedValue:
            headers = _UNREADABLE
    return SimpleNamespace(**{name: partial(_unchanged, getattr(message, name)()) for name in asked}, headers=headers)


def _unchanged(value: Any) -> Any:
    return value


_UNREADABLE = partial(b"\xff".decode, "utf-8")
"""Fails as the ``headers`` of a message whose headers cannot be read."""
