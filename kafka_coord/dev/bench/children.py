"""Processes that a bench starts for itself, and that answer on their standard output."""

from __future__ import annotations

import select
import subprocess
from typing import IO

_ENDS_S = 30.0


def line_within(answers: IO[bytes], within_s: float) -> bytes | None:
    """The next line; empty where the process has ended, None where nothing comes in time."""
    ready, _, _ = select.select([answers], [], [], within_s)
    return answers.readline() if ready else None


def await_end(process: subprocess.Popen[bytes]) -> None:
    """Waits for the end of one that has been told, and brings it about where that takes too long."""
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
