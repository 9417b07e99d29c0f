"""On the first signal, ends a command after its current step; on the second, ends it immediately."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka_coord.cli.failures import INTERRUPTED


class Stopping:
    """Records the first Ctrl-C or SIGTERM: sets ``event``, and stores the signal in ``number`` (0 until then)."""

    def __init__(self, on_first: Callable[[signal.Signals], None] | None) -> None:
        self.event = threading.Event()
        self.number = 0
        self._on_first = on_first

    def requested(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code after the recorded signal. SIGTERM is not a failure."""
        return INTERRUPTED if self.number == signal.SIGINT else 0

    def __call__(self, number: int, _: Any) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        if self._on_first is not None:
            self._on_first(signal.Signals(number))
        # on another thread, because the interrupted thread may hold the event's lock
        threading.Thread(target=self.event.set, daemon=True).start()


@contextmanager
def stopping_at_signals(on_first: Callable[[signal.Signals], None] | None = None) -> Iterator[Stopping]:
    """Handles SIGTERM and Ctrl-C while the block runs. Calls ``on_first`` in the handler of the first signal."""
    stopping = Stopping(on_first)
    before = {number: signal.signal(number, stopping) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
