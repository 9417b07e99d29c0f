"""Makes Python's cyclic garbage collector run rarely while a coordinator runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000
_YOUNG_COLLECTIONS = 20


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Starts Python's cyclic collector after 50,000 new containers instead of 700 (:func:`gc.set_threshold`).

    A decision creates hundreds of thousands of containers. Hardly any of them is part of a cycle, so reference counting
    frees them without the collector. Scanning them repeatedly took a quarter of the time of a large group's decision
    (``docs/performance.md``). The price is a few MB of garbage that live longer.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, _YOUNG_COLLECTIONS, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
