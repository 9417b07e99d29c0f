"""The clock of the real world. Whatever must be tested without waiting takes another one."""

from __future__ import annotations

import time


class SystemClock:
    """Implements :class:`kafka_coord.zk.store.Clock`."""

    def monotonic(self) -> float:
        """Seconds since boot, a machine's sleep included where the system can tell.

        ``time.monotonic()`` stands still on Linux while a laptop sleeps, and a session deadline read on it would still
        look good afterwards although the server has long ended the session.
        """
        try:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        except (AttributeError, OSError):  # not Linux
            return time.monotonic()

    def time(self) -> float:
        return time.time()
