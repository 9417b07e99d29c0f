"""Runs a Python module as a program whose wall clock can be made to jump: ``python -m … FILE MODULE [ARGUMENTS]``.

With ``KAFKA_COORD_PLANTED`` the process has the deliberate defect of that name (:mod:`tests.simulation.mutations`).

FILE holds eight bytes, a little-endian double: the seconds that ``time.time()`` is off. Writing to it moves the clock
of the running process, but not ``time.monotonic()`` or the kernel's clocks. It stands for an operator's ``date -s``, or
for an NTP daemon that steps.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

PLANTED = "KAFKA_COORD_PLANTED"
_FORM = struct.Struct("<d")


def set_skew(path: Path, seconds: float) -> None:
    """Sets the clock that follows ``path`` ahead by that many seconds (negative: back)."""
    with path.open("r+b" if path.exists() else "wb") as file:  # in place: the process has it mapped
        file.write(_FORM.pack(seconds))


def follow(path: Path) -> None:
    """Skew this process' ``time.time`` and ``time.time_ns`` by what the file says at that moment."""
    with path.open("rb") as file:
        skew = mmap.mmap(file.fileno(), _FORM.size, access=mmap.ACCESS_READ)
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + _FORM.unpack_from(skew)[0]
    time.time_ns = lambda: real_ns() + int(_FORM.unpack_from(skew)[0] * 1e9)


def planted() -> AbstractContextManager[None]:
    """The defect that :data:`PLANTED` names, for as long as the block lasts."""
    if not (name := os.environ.get(PLANTED)):
        return nullcontext()
    from tests.simulation.mutations import mutated

    return mutated(name)


if __name__ == "__main__":
    follow(Path(sys.argv[1]))
    del sys.argv[:2]
    with planted():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
