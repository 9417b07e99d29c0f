"""How often Python looks for cycles of garbage while a coordinator runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000
_YOUNG_COLLECTIONS = 20


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Python's cyclic collector is started by every 50,000 new containers, not by every 700 (:func:`gc.set_threshold`).

    A decision makes containers by the hundred thousand, hardly one of them in a cycle: what is not kept is freed as
    soon as nobody refers to it, without the collector. Looking through all that is kept, again and again while there is
    ever more of it, took a quarter of a large group's decision (``docs/performance.md``). What garbage waits for longer
    is some MB.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, _YOUNG_COLLECTIONS, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
