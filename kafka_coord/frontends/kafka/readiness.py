"""Decides when the listener for Kafka clients is ready after its start. Does no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Set

WITHOUT_BROKER_S = 30.0
"""How long the listener waits for its broker before it counts as ready without it, in seconds."""


class Readiness:
    """The listener is ready once it serves every partition of the groups log that its broker leads at that moment, even
    if that is none, or once its broker could not be reached for :data:`WITHOUT_BROKER_S` seconds. It then stays ready:
    a partition that moves here later is loaded while its clients wait, as in Kafka.

    ``clock`` returns seconds. May be read on any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._without_broker_since: float | None = clock()
        self._is_ready = False
        self.reason = "its broker, which has not answered yet"
        """What the listener waits for, or what was wrong when it became ready; empty if nothing was."""

    @property
    def is_ready(self) -> bool:
        since = self._without_broker_since
        if not self._is_ready and since is not None and self._clock() - since >= WITHOUT_BROKER_S:
            self._is_ready = True
        return self._is_ready

    def broker_failed(self, why: str) -> None:
        """Called when the broker could not be asked which partitions it leads."""
        if self._without_broker_since is None:
            self._without_broker_since = self._clock()
        self.reason = f"its broker, which cannot be reached: {why}"

    def loaded(self, served: Set[int], led: Set[int]) -> None:
        """Called when the broker has answered: it leads the partitions ``led``, and ``served`` are loaded."""
        self._without_broker_since = None
        self._is_ready = self._is_ready or led <= served
        missing = len(led - served)
        self.reason = f"{missing} of {len(led)} partitions of the groups log to be loaded" if missing else ""
