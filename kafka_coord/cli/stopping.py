"""Ending a command at a signal: between two steps of its work, and at a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka_coord.cli.failures import INTERRUPTED


class Stopping:
    """``event`` is set by the first Ctrl-C or SIGTERM, ``number`` is which of them (0: none came yet)."""

    def __init__(self, on_first: Callable[[signal.Signals], None] | None) -> None:
        self.event = threading.Event()
        self.number = 0
        self._on_first = on_first

    def asked(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """What a command ends with that was asked to stop so: SIGTERM is no failure."""
        return INTERRUPTED if self.number == signal.SIGINT else 0

    def __call__(self, number: int, _: Any) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        if self._on_first is not None:
            self._on_first(signal.Signals(number))
        self.event.set()


@contextmanager
def stopping_at_signals(on_first: Callable[[signal.Signals], None] | None = None) -> Iterator[Stopping]:
    """Until it is left again; ``on_first`` is told of the first signal, in its handler."""
    stopping = Stopping(on_first)
    before = {number: signal.signal(number, stopping) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
