"""The system's clock. Tests use other clocks, so that they do not have to wait."""

from __future__ import annotations

import time


class SystemClock:
    """Implements :class:`kafka_coord.zk.store.Clock`."""

    def monotonic(self) -> float:
        """Returns the seconds since boot, including suspended time if the system reports it. On Linux,
        ``time.monotonic()`` stops while a laptop is suspended, so when it wakes up, a session deadline on that clock
        would still look valid although the server ended the session long ago."""
        try:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        except (AttributeError, OSError):  # not Linux
            return time.monotonic()

    def time(self) -> float:
        return time.time()
