"""Handles stop signals in the processes of the demo and of chaos runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stopping_event(*signals: signal.Signals) -> threading.Event:
    """Returns an event that these signals set (default: SIGTERM and SIGINT), for the main thread to check."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    for one in signals or (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, stop)
    return stopping
