"""Waits for conditions that depend on other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kafka_coord.errors import Timeout

T = TypeVar("T")

POLL_S = 0.02


def awaited(probe: Callable[[], T], within_s: float, what: str, *, every_s: float = POLL_S) -> T:
    """Calls ``probe`` every ``every_s`` seconds, and returns the first true result. After ``within_s`` seconds, raises
    :class:`Timeout`, which says that it was waiting for ``what``.
    """
    deadline = time.monotonic() + within_s
    while not (found := probe()):
        if time.monotonic() > deadline:
            raise Timeout(f"timed out after {within_s:.0f} s waiting for {what}")
        time.sleep(every_s)
    return found
