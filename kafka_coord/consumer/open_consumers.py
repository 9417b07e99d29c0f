"""The open consumers of this process: they leave their groups when it exits, and hand out nothing after a fork."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable
from typing import Protocol

_EXIT_S = 3.0


class _Stream(Protocol):
    def forked(self) -> None: ...


class _Consumer(Protocol):
    @property
    def streams(self) -> Iterable[_Stream]: ...

    def close(self, *, timeout_s: float) -> None: ...


open_consumers: weakref.WeakSet[_Consumer] = weakref.WeakSet()


@atexit.register
def _leave_at_exit() -> None:
    """Leaves the groups of consumers that the program did not close, so that they need not time out."""
    for consumer in list(open_consumers):
        consumer.close(timeout_s=_EXIT_S)


def _forked() -> None:
    """Disables the child's copies of its parent's consumers: none of them may hand out a record here."""
    for consumer in list(open_consumers):
        for stream in consumer.streams:
            stream.forked()


os.register_at_fork(after_in_child=_forked)
