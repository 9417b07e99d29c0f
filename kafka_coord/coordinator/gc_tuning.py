"""Makes Python's cyclic garbage collector run less often while a coordinator is running."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000
_YOUNG_COLLECTIONS = 20


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Runs Python's cyclic collector after 50,000 new containers instead of 700 (:func:`gc.set_threshold`).

    A decision creates hundreds of thousands of containers. Hardly any of them are part of a cycle, so reference
    counting frees them without the collector's help. Scanning them over and over took up a quarter of the time needed
    to decide for a large group (``docs/performance.md``). The price is a few MB of garbage that lives longer.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, _YOUNG_COLLECTIONS, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
