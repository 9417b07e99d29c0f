"""Reads and writes values as JSON by their types: a shape is stated once, as the fields of a :class:`JsonObject` class.

A value is decoded strictly. Every error names the znode or the frame, the field, and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import msgspec

from kafka_coord.errors import MalformedValue
from kafka_coord.model.json_fields import dump, load, shown
from kafka_coord.model.names import LEGAL, RULE
from kafka_coord.model.partitions import MAX_PARTITION, TopicPartition

T = TypeVar("T")

Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of 64 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""An integer of 64 bits, at least 0."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
"""An integer of 64 bits, at least 1."""
Name = Annotated[str, msgspec.Meta(pattern=rf"\A(?!\.\.?\Z){LEGAL.pattern}\Z")]
"""A legal name of a topic, a group or a consumer."""
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION)]


class ByPartition(msgspec.Struct, Generic[T]):
    """The JSON form of a mapping of partitions: ``{topic: {"partition": value}}``."""

    topics: dict[Name, dict[PartitionNumber, T]]


class JsonObject(msgspec.Struct, frozen=True):
    """A value with a JSON form: its fields, in their order. A subclass with ``omit_defaults=True`` leaves out fields
    that have their defaults, except for those made with :func:`always`. One that is a znode's whole value has
    ``tag_field="version", tag=1``.

    ``of_znode`` names the fields that are not part of the JSON form, because the znode itself states them: its name,
    its creation, its version. ``by_partition`` names the JSON fields that map partitions to values; ``from_json`` of
    the subclass reads them, with :func:`unnested`.
    """

    of_znode: ClassVar[tuple[str, ...]] = ()
    by_partition: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form."""
        value: dict[str, Any] = msgspec.to_builtins(self, enc_hook=enc_hook)
        for name in self.of_znode:
            value.pop(name, None)
        for name in self.by_partition:
            if name in value:
                value[name] = nested(value[name])
        return value

    def to_bytes(self) -> bytes:
        """Returns the value as a znode or a record holds it."""
        return dump(self.to_json())

    @classmethod
    def from_bytes(cls, raw: bytes, where: str, **known: Any) -> Self:
        """Reads what a znode or a record holds (:meth:`from_json`). Raises :class:`MalformedValue` or
        :class:`UnknownVersion`."""
        return cls.from_json(load(raw, where), where, **known)

    def to_json_with(self, **instead: Any) -> dict[str, Any]:
        """Returns the JSON form with other values in some fields, for a subclass that writes these itself."""
        return JsonObject.to_json(msgspec.structs.replace(self, **instead))

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        """Reads an object that :func:`~kafka_coord.model.json_fields.load` has returned. Ignores unknown fields.
        ``known`` are fields that are not read from it, such as those that the znode states. Raises
        :class:`MalformedValue`."""
        if not isinstance(value, dict):
            raise MalformedValue(where, f"{shown(value)} is not an object")
        try:
            return msgspec.convert(value | known if known else value, cls, dec_hook=dec_hook, str_keys=True)
        except msgspec.ValidationError as error:
            raise _malformed(error, where, value) from None
        except RecursionError:
            raise MalformedValue(where, "nested too deeply") from None


def always(default: T) -> T:
    """Returns the default of a field that is written even if it has its default."""
    made: T = msgspec.field(default_factory=lambda: default)
    return made


def nested(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Returns ``{topic: {"partition": value}}``, sorted, ready to be encoded as JSON."""
    topics: dict[str, dict[str, T]] = {}
    for (topic, partition), value in sorted(values.items(), key=itemgetter(0)):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics


def unnested(value: object, form: type[ByPartition[T]], field: str, where: str) -> dict[TopicPartition, T]:
    """Reads what :func:`nested` returns. Raises :class:`MalformedValue`."""
    return flat(_converted({"topics": value}, form, field, where, value).topics)


def flat(topics: Mapping[str, Mapping[int, T]]) -> dict[TopicPartition, T]:
    return {TopicPartition(topic, number): one for topic, found in topics.items() for number, one in found.items()}


def read(value: Mapping[str, Any], form: type[T], field: str, where: str) -> T:
    """Reads one field of an object. Raises :class:`MalformedValue`, also if the field is absent."""
    found = value.get(field)
    return _converted(found, form, field, where, found)


def _converted(value: object, form: type[T], field: str, where: str, written: object) -> T:
    try:
        return msgspec.convert(value, form, dec_hook=dec_hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise MalformedValue(where, f"field {field!r} is {shown(written)}: {_reason(error)[0]}", field) from None
    except RecursionError:
        raise MalformedValue(where, f"field {field!r} is nested too deeply", field) from None


def cut(value: JsonObject, **most: int) -> None:
    """Truncates fields to so many entries or characters. For ``__post_init__``."""
    for name, length in most.items():
        if len(whole := getattr(value, name)) > length:
            msgspec.structs.force_setattr(value, name, whole[:length])


def enc_hook(value: Any) -> Any:
    """Encodes a type of this project that msgspec does not know, such as a set of partitions."""
    return value.to_json()


def dec_hook(wanted: Any, value: Any) -> Any:
    """Decodes what :func:`enc_hook` encodes."""
    if isinstance(value, wanted):
        return value
    try:
        return wanted.from_json(value, "")
    except MalformedValue as error:
        raise ValueError(error.reason) from None


def _malformed(error: msgspec.ValidationError, where: str, value: Mapping[str, Any]) -> MalformedValue:
    """Returns the error with the field, and with what was found there, since msgspec names only the type."""
    reason, path = _reason(error)
    field = path.removeprefix("$.").split(".")[0].split("[")[0]
    if not field:
        return MalformedValue(where, reason)
    return MalformedValue(where, f"field {field!r} is {shown(value.get(field))}: {reason}", field)


def _reason(error: msgspec.ValidationError) -> tuple[str, str]:
    """Returns msgspec's message, and the path to the place that it is about."""
    reason, _, path = str(error).partition(" - at `")
    if "matching regex" in reason:
        reason = f"not a legal name: use {RULE}"
    return reason, path.removeprefix("key` in `").partition("`")[0]
