"""Waiting on conditions, the one way tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], within_s: float = 15.0, every_s: float = 0.02) -> T:
    """The first true value of ``condition``; fails the test with its last value if none comes in time."""
    deadline = time.monotonic() + within_s
    while True:
        late = time.monotonic() >= deadline  # before asking: however long the process slept, it asks once more
        if value := condition():
            return value
        assert not late, f"not within {within_s} s; last seen: {value!r}"
        time.sleep(every_s)
