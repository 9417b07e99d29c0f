"""A fuzzing target: one decoder, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafka_coord.errors import MalformedValue
from tests.fuzzing.mutations import Form


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder. ``decode`` accepts any bytes, and returns a value or raises one of ``refusals``."""

    name: str
    form: Form
    samples: tuple[bytes, ...]
    decode: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = (MalformedValue,)
