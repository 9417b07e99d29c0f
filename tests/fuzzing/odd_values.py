"""Values that others may have written: hostile texts and numbers, and their places in JSON and in Kafka's messages."""

from __future__ import annotations

from random import Random
from typing import Any

from kafka_coord.wire.messages import Record

LABEL_OF_64 = "a" * 64
"""One more than a label of a host name may have."""
TEXTS = (
    "", " ", "\n", "\x00", LABEL_OF_64, "x..y", "ü" * 300, "-1", "../..", "[::1", "[::1]", "%s", "\x1b[31m", "--help",
    'a,"b', "a\r\nb ", "127.0.0.1", "flights", "💥", "x" * 20_000,
)  # fmt: skip
HALF_OF_A_PAIR = "\ud800"
"""JSON may carry it, Kafka's strings may not."""
NUMBERS = (-1, 0, 1, 2, 127, -128, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 70_000, 2**63 - 1, -(2**63))
JSON_NUMBERS = (-1, 0, 2**31, 2**63 - 1, -(2**63), 2**70, 1e308, True, None)


def odd_json(value: object, chance: Random) -> object:
    """Returns the value with one part made odd."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        return {**value, name: odd_json(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], odd_json(value[at], chance), *value[at + 1 :]]
    if isinstance(value, str) and "127.0.0.1" in value and chance.random() < 0.7:
        return value.replace("127.0.0.1", chance.choice((*TEXTS, HALF_OF_A_PAIR)))
    return chance.choice([*TEXTS, HALF_OF_A_PAIR, *JSON_NUMBERS, [], {}, [[]], {"": None}])


def make_odd(answer: Record, chance: Random) -> None:
    """Makes one field of the message odd, anywhere in it. The result may be a message that cannot be encoded."""
    places = list(_places(answer))
    if places:
        record, name = chance.choice(places)
        setattr(record, name, _odd_field(getattr(record, name), chance))


def _places(record: Record) -> list[tuple[Record, str]]:
    found = []
    for name in record._fields:
        value = getattr(record, name)
        found.append((record, name))
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Record):
                found += _places(one)
    return found


def _odd_field(value: Any, chance: Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice(NUMBERS)
    if isinstance(value, str):
        return chance.choice((None, *TEXTS))
    if isinstance(value, bytes):
        return chance.choice((None, b"", value[: len(value) // 2], value * 2, chance.randbytes(30)))
    if isinstance(value, tuple):
        several = tuple(chance.sample(value, len(value)))
        return chance.choice((None, (), several[:-1], (*several, *several[:1]), several * 3))
    return chance.choice((None, "", b"", ()))
