"""How the processes of the demo and of chaos runs are told to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stopping_event(*signals: signal.Signals) -> threading.Event:
    """An event that these signals set (none given: SIGTERM and SIGINT), for a main thread that looks at it."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    for one in signals or (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, stop)
    return stopping
