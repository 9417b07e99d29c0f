from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _own_signal_handlers() -> Iterator[None]:
    """Restores the signal handler, because the command turns SIGTERM of its process into an interrupt."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
