"""CPU seconds and memory of a process and all that descend from it, as the kernel counts them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Process:
    """One process now. ``cpu_s`` includes children that have ended and were waited for."""

    pid: int
    parent: int
    cpu_s: float
    rss_bytes: int
    command: str


def tree(root: int) -> tuple[Process, ...]:
    """The process ``root`` and its descendants; nothing if it has ended."""
    every = {found.pid: found for entry in os.listdir("/proc") if entry.isdigit() and (found := _read(int(entry)))}
    members = {root} & every.keys()
    grown = True
    while grown:
        more = {pid for pid, process in every.items() if process.parent in members} - members
        members |= more
        grown = bool(more)
    return tuple(every[pid] for pid in sorted(members))


def cpu_seconds(root: int) -> float:
    """What the tree has used so far. The difference of two is what was used between: what ends meanwhile is counted
    by the parent that waited for it."""
    return sum(process.cpu_s for process in tree(root))


class PeakMemory:
    """The most memory (resident, bytes) the tree had at once while ``with`` was open, looked at four times a second.
    Pages that processes share after a fork are counted for each."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="bench-memory", daemon=True)
        self.peak_bytes = 0

    def _look(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, sum(process.rss_bytes for process in tree(self._root)))
            if self._ended.wait(_EVERY_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()


def _read(pid: int) -> Process | None:
    directory = Path("/proc", str(pid))
    try:
        fields = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
        command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    # proc(5): after the name come the state, the parent, …; times of itself and of children that were waited for.
    times = sum(int(fields[at]) for at in (11, 12, 13, 14))
    return Process(pid, int(fields[1]), times / _TICKS, int(fields[21]) * _PAGE, command)
