"""Decoders with every kind of fault that fuzzing must notice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from kafka_coord.errors import MalformedValue
from tests.fuzzing.mutations import Form
from tests.fuzzing.target import Target

TRIGGERS = {"raises": b"9", "hangs": b"~nobody", "dies": b"0x", "hoards": b"1979", "talks": b"world"}
"""An input must contain this for its fault to show."""


def _target(name: str, decode: Callable[[bytes], object]) -> Target:
    """Only every other input shows the fault, so that no fault hides the others."""
    return Target(name, Form.TEXT, (b"good\n", b"bad %s\n" % TRIGGERS.get(name, b"")), decode)


def _raises(raw: bytes) -> object:
    return int(raw) if TRIGGERS["raises"] in raw else None


def _hangs(raw: bytes) -> None:
    while TRIGGERS["hangs"] in raw:
        time.sleep(0.1)


def _dies(raw: bytes) -> None:
    if TRIGGERS["dies"] in raw:
        os._exit(7)


def _hoards(raw: bytes) -> object:
    return len(b"x" * (300 << 20)) if TRIGGERS["hoards"] in raw else None


def _talks(raw: bytes) -> None:
    if TRIGGERS["talks"] in raw:
        raise MalformedValue("/here" * 2_000, "?")


TARGETS = (
    _target("raises", _raises),
    _target("hangs", _hangs),
    _target("dies", _dies),
    _target("hoards", _hoards),
    _target("talks", _talks),
    _target("is-good", len),
)
