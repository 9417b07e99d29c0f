"""Reads from the child processes of a benchmark, and stops them."""

from __future__ import annotations

import select
import subprocess
from typing import IO

_ENDS_S = 30.0


def line_within(answers: IO[bytes], within_s: float) -> bytes | None:
    """Returns the next line. Returns an empty line if the process has ended, and None at the timeout."""
    ready, _, _ = select.select([answers], [], [], within_s)
    return answers.readline() if ready else None


def await_end(process: subprocess.Popen[bytes]) -> None:
    """Waits for the end of a process that was asked to stop, and kills it at the timeout."""
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
