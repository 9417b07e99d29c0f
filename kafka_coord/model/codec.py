"""Reads and writes values as JSON by their types: a shape is stated once, as the fields of a :class:`JsonObject` class.

A value is decoded strictly. Every error names the znode or the frame, the field, and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import msgspec

from kafka_coord.errors import MalformedValue
from kafka_coord.model.json_fields import shown
from kafka_coord.model.partitions import nested, unnested

Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of 64 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""An integer of 64 bits, at least 0."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
"""An integer of 64 bits, at least 1."""


class JsonObject(msgspec.Struct, frozen=True):
    """A value with a JSON form: its fields, in their order. A subclass with ``omit_defaults=True`` leaves out fields
    that have their defaults. One that is a znode's whole value has ``tag_field="version", tag=1``.

    ``of_znode`` names the fields that are not part of the JSON form, because the znode itself states them: its name,
    its creation, its version. ``by_partition`` names the fields that map partitions to values. Their JSON form is
    ``{topic: {"partition": value}}``.
    """

    of_znode: ClassVar[tuple[str, ...]] = ()
    by_partition: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form, for :func:`~kafka_coord.model.json_fields.dump`."""
        value: dict[str, Any] = msgspec.to_builtins(self, enc_hook=enc_hook)
        for name in self.of_znode:
            value.pop(name, None)
        for name in self.by_partition:
            if name in value:
                value[name] = nested(value[name])
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **of_znode: Any) -> Self:
        """Reads an object that :func:`~kafka_coord.model.json_fields.load` has returned. Ignores unknown fields. Raises
        :class:`MalformedValue`."""
        changed = {name: unnested(value[name], name, where) for name in cls.by_partition if name in value} | of_znode
        try:
            return msgspec.convert({**value, **changed} if changed else value, cls, dec_hook=dec_hook, str_keys=True)
        except msgspec.ValidationError as error:
            raise _malformed(error, where, value) from None


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
    try:
        return wanted.from_json(value, "")
    except MalformedValue as error:
        raise ValueError(error.reason) from None


def _malformed(error: msgspec.ValidationError, where: str, value: Mapping[str, Any]) -> MalformedValue:
    """Returns the error with the field, and with what was found there, since msgspec names only the type."""
    reason, _, path = str(error).partition(" - at `$.")
    field = path.rstrip("`").split(".")[0].split("[")[0]
    if not field:
        return MalformedValue(where, reason)
    return MalformedValue(where, f"field {field!r} is {shown(value.get(field))}: {reason}", field)
