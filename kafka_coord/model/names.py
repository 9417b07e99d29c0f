"""The rule for legal names of topics, groups and consumers: Kafka's rule for topic names."""

from __future__ import annotations

import re
from collections.abc import Callable

from kafka_coord.errors import InvalidName

MAX_LENGTH = 249
LEGAL = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_LENGTH}}}")
RULE = f"1 to {MAX_LENGTH} of the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'"


def is_legal(name: object) -> bool:
    """Returns whether Kafka would accept ``name`` as a topic name (``org.apache.kafka.common.internals.Topic``)."""
    return isinstance(name, str) and LEGAL.fullmatch(name) is not None and name not in {".", ".."}


def legal(kind: str, name: object) -> str:
    """Returns ``name`` if it is legal. Otherwise raises :class:`InvalidName`, stating the ``kind`` ("group", …), the
    name and the rule."""
    if isinstance(name, str) and is_legal(name):
        return name
    shown = repr(name)
    raise InvalidName(f"{kind} name {shown[:80]}{'…' if len(shown) > 80 else ''} is not legal: use {RULE}")


def generated(prefix: str, tail: str, length: Callable[[str], int] = len) -> str:
    """Returns ``prefix`` and ``tail``, which makes the name unique. Shortens the prefix if the name would otherwise be
    too long to be legal. ``length`` returns how long a part becomes once it is a legal name."""
    prefix = prefix[:MAX_LENGTH]
    while prefix and length(prefix) + length(tail) > MAX_LENGTH:
        prefix = prefix[:-1]
    return prefix + tail
