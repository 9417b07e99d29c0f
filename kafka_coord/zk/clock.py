"""The system's clock. Tests use other clocks, to avoid waiting."""

from __future__ import annotations

import time


class SystemClock:
    """Implements :class:`kafka_coord.zk.store.Clock`."""

    def monotonic(self) -> float:
        """Seconds since boot, including time asleep if the system reports it.

        On Linux, ``time.monotonic()`` stands still while a laptop sleeps. A session deadline read on it would still
        look valid afterwards, although the server ended the session long ago.
        """
        try:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        except (AttributeError, OSError):  # not Linux
            return time.monotonic()

    def time(self) -> float:
        return time.time()
