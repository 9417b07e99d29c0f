"""Random values of Kafka's messages, made from their definitions."""

from __future__ import annotations

import random
from typing import Any

from kafka_coord.wire.messages import FIXED, Field, Message, message, read_definition

_WHOLE = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_OUR_TAGS = 100


def definitions() -> list[str]:
    from importlib.resources import files

    return sorted(one.name.removesuffix(".json") for one in files("kafka_coord.wire").joinpath("definitions").iterdir())


class SmallNumbers(random.Random):
    """Whole numbers from 0 to 100, which kio's types for times and error codes also accept. Fields that are this
    project's own, and unknown to kio, keep their defaults."""


def random_message(name: str, version: int, chance: random.Random) -> Any:
    """A message with values in all fields of that version; the others have their defaults."""
    form = message(name)
    return _struct(form, read_definition(name).struct, version, chance)


def _struct(form: Message, of: Any, version: int, chance: random.Random) -> Any:
    fields = [one for one in of.fields if not (isinstance(chance, SmallNumbers) and (one.tag or 0) >= _OUR_TAGS)]
    given = {one.name: _value(form, one, version, chance) for one in fields if version in one.versions}
    return form.struct(of.name)(**given)


def _value(form: Message, field: Field, version: int, chance: random.Random) -> Any:
    if version in field.nullable and chance.random() < 0.2:
        return None
    if field.is_array:
        return tuple(_one(form, field, version, chance) for _ in range(chance.choice((0, 1, 3))))
    return _one(form, field, version, chance)


def _one(form: Message, field: Field, version: int, chance: random.Random) -> Any:
    if field.struct is not None:
        return _struct(form, field.struct, version, chance)
    if field.type == "bool":
        return chance.random() < 0.5
    if field.type == "uint16":
        return chance.randrange(1 << 16)
    if field.type == "uuid":
        return chance.randbytes(16)
    if field.type in _WHOLE:
        bits = _WHOLE[field.type]
        if isinstance(chance, SmallNumbers):
            return chance.randrange(101)
        return chance.choice((0, 1, -1, chance.randrange(-(1 << bits - 1), 1 << bits - 1)))
    assert field.type not in FIXED
    if field.type == "string":
        return chance.choice(("", "a", "größer", "x" * chance.choice((126, 127, 128, 300))))
    return chance.randbytes(chance.choice((0, 1, 126, 127, 128, 1000)))
