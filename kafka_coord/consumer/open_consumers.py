"""The open consumers of this process, which leave their groups when the process exits. Their copies in a forked process
do not return records."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_coord.consumer.member import GroupMember

_EXIT_S = 3.0

open_consumers: weakref.WeakSet[GroupMember[Any, Any]] = weakref.WeakSet()


@atexit.register
def _leave_at_exit() -> None:
    """Makes consumers that were not closed leave their groups, so that other members need not wait for a timeout."""
    for consumer in list(open_consumers):
        consumer._leave(_EXIT_S)


def _forked() -> None:
    """Disables the child process's copies of the parent's consumers."""
    for consumer in list(open_consumers):
        for stream in consumer.streams:
            stream.forked()


os.register_at_fork(after_in_child=_forked)
