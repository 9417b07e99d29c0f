"""Distinguishes a process from a later one with the same process id."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, identified by its id and its start time (``started``, clock ticks after boot).

    An identity is valid only until the next boot, so a file with identities should also contain :func:`boot_id`.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Returns the current process with the id ``pid``, or None if there is none. A zombie does not count."""
        stat = _stat(pid)
        return None if stat is None or stat[0] in "ZX" else cls(pid=pid, started=stat[1])

    def command(self) -> tuple[str, ...]:
        """Returns the command line of the process. It is empty if the process has ended."""
        try:
            return tuple(Path("/proc", str(self.pid), "cmdline").read_text("utf-8", "replace").split("\0")[:-1])
        except OSError:
            return ()

    def alive(self) -> bool:
        """Whether this process still exists, running or stopped."""
        return ProcessIdentity.of(self.pid) == self

    def paused(self) -> bool:
        """Whether the process exists and is stopped (SIGSTOP)."""
        stat = _stat(self.pid)
        return stat is not None and stat == ("T", self.started)

    def signal(self, signum: int) -> bool:
        """Sends ``signum``. Returns False if this process has ended, even if its pid has been reused."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Waits until the process has ended. Returns False if it is still running after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


def boot_id() -> str:
    """Returns an identifier of this boot of the machine, or "" if the kernel reports none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def stat_fields(pid: int) -> list[str] | None:
    """Returns the fields of ``/proc/<pid>/stat`` from the state on (field 3 in proc(5)), or None if there is no such
    process."""
    try:
        return Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def cpu_seconds(fields: Sequence[str]) -> float:
    """Returns the process's CPU time (utime and stime) from :func:`stat_fields`."""
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _stat(pid: int) -> tuple[str, int] | None:
    """Returns the state letter and the start time of a process."""
    fields = stat_fields(pid)
    return None if fields is None else (fields[0], int(fields[19]))
