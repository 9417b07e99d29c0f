"""Runs a Python module as a program whose wall clock can jump: ``python -m … FILE MODULE [ARGUMENTS]``.

With ``KAFKA_COORD_PLANTED``, the process has the deliberate defect of that name (:mod:`tests.simulation.mutations`).

FILE has the offset of ``time.time()`` in seconds, as a little-endian double of eight bytes. A write to FILE moves the
clock of the running process, but not ``time.monotonic()`` or the kernel's clocks. This simulates an operator's
``date -s``, or a step of an NTP daemon.
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
    """Moves the clock that follows ``path`` by this many seconds, backwards if negative."""
    with path.open("r+b" if path.exists() else "wb") as file:  # in place, because the process has mapped the file
        file.write(_FORM.pack(seconds))


def follow(path: Path) -> None:
    """Makes ``time.time`` and ``time.time_ns`` of this process add the file's current offset."""
    with path.open("rb") as file:
        skew = mmap.mmap(file.fileno(), _FORM.size, access=mmap.ACCESS_READ)
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + _FORM.unpack_from(skew)[0]
    time.time_ns = lambda: real_ns() + int(_FORM.unpack_from(skew)[0] * 1e9)


def planted() -> AbstractContextManager[None]:
    """Applies the defect that :data:`PLANTED` names, while the block runs."""
    if not (name := os.environ.get(PLANTED)):
        return nullcontext()
    from tests.simulation.mutations import mutated

    return mutated(name)


if __name__ == "__main__":
    follow(Path(sys.argv[1]))
    del sys.argv[:2]
    with planted():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
