"""Child processes of a bench, which answer on their standard output."""

from __future__ import annotations

import select
import subprocess
from typing import IO

_ENDS_S = 30.0


def line_within(answers: IO[bytes], within_s: float) -> bytes | None:
    """Returns the next line; empty if the process has ended, None if no line comes in time."""
    ready, _, _ = select.select([answers], [], [], within_s)
    return answers.readline() if ready else None


def await_end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a process that was told to end, and kills it if that takes too long."""
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
