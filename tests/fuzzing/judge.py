"""Judges one input: the decoder must return a value or raise the documented error, soon and without much memory."""

from __future__ import annotations

import resource
import time
import traceback
from random import Random

from tests.fuzzing.mutations import spoilt
from tests.fuzzing.target import Target

MAX_CPU_S = 3.0
"""CPU seconds. A value of 900 kB takes a tenth of that at worst, on a slow machine."""
MAX_MEMORY_BYTES = 500 << 20
"""The most growth of the process over all inputs: a value may name a million partitions."""


class Judge:
    """Tries inputs in this process. Its parent notices inputs that hang or kill it."""

    def __init__(self, max_memory_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._more_kb = max_memory_bytes >> 10
        self._allowed_kb = _peak_kb() + self._more_kb

    def fault(self, target: Target, raw: bytes) -> str | None:
        """Says what is wrong with the decoder's reaction to ``raw``; ``None`` if nothing is."""
        began = time.process_time()
        try:
            target.decode(raw)
        except target.refusals as refusal:
            fault = _unshowable(refusal)
        except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
            fault = f"{type(error).__name__}: {_short(error)} ({_place(error)})"
        else:
            fault = None
        took_s = time.process_time() - began
        if fault is None and took_s > MAX_CPU_S:
            fault = f"took {took_s:.1f} s"
        peak_kb = _peak_kb()
        if peak_kb > self._allowed_kb:
            self._allowed_kb = peak_kb + self._more_kb
            fault = fault or f"made the process grow to {peak_kb >> 10} MB"
        return fault


def case(target: Target, seed: int, number: int) -> bytes:
    """The ``number``-th input of a seed."""
    return spoilt(Random(f"{seed}/{target.name}/{number}"), target.samples, target.form)


def shortened(judge: Judge, target: Target, raw: bytes, within_s: float = 5.0) -> bytes:
    """The shortest input found in this time with the same kind of fault."""
    kind = _kind(judge.fault(target, raw))
    if kind is None:  # measured only once, because memory that was used stays allocated
        return raw
    until = time.monotonic() + within_s
    size = len(raw) // 2
    while size:
        at = 0
        while at < len(raw) and time.monotonic() < until:
            shorter = raw[:at] + raw[at + size :]
            if _kind(judge.fault(target, shorter)) == kind:
                raw = shorter
            else:
                at += size
        size //= 2
    return raw


def kind_of(target: Target, fault: str) -> str:
    """The same for faults that are probably one defect."""
    return f"{target.name} {_kind(fault)}"


def _kind(fault: str | None) -> str | None:
    if fault is None:
        return None
    name, _, rest = fault.partition(":")
    return f"{name} {rest.rpartition('(')[2]}" if rest else "".join(c for c in fault if not c.isdigit())


def _unshowable(refusal: Exception) -> str | None:
    """Says what is wrong with a refusal: its text is printed, logged, and shown to people."""
    said = str(refusal)
    if len(said) > 5_000:
        return f"refused with a message of {len(said)} characters"
    try:
        said.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "refused with a message that cannot be written"
    return None


def _short(error: Exception) -> str:
    try:
        return str(error)[:200]
    except Exception:  # noqa: BLE001
        return "?"


def _place(error: Exception) -> str:
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "kafka_coord" in frame.filename]
    at = next((frame for frame in reversed(ours) if "fuzzing" not in frame.filename), ours[-1] if ours else None)
    return f"{at.filename.rpartition('kafka_coord/')[2]}:{at.lineno}" if at else "?"


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
