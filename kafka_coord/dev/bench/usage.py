"""Reads the CPU seconds and memory of a process and its descendants from the kernel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kafka_coord.dev.cluster.identity import cpu_seconds, stat_fields

_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Process:
    """A sample of one process. ``started`` (clock ticks after boot) distinguishes it from a later process with the same
    pid. ``cpu_s`` does not include the time of its children.
    """

    pid: int
    started: int
    parent: int
    cpu_s: float
    rss_bytes: int
    command: str


def tree(root: int) -> tuple[Process, ...]:
    """Returns the process ``root`` and its descendants, or nothing if it has ended."""
    every = {found.pid: found for entry in os.listdir("/proc") if entry.isdigit() and (found := _read(int(entry)))}
    members = {root} & every.keys()
    grown = True
    while grown:
        more = {pid for pid, process in every.items() if process.parent in members} - members
        members |= more
        grown = bool(more)
    return tuple(every[pid] for pid in sorted(members))


def cpu_meter(pid: int | None) -> Callable[[], float]:
    """Starts measuring a process. The returned function returns its CPU seconds since then, without its children's."""

    def cpu_s() -> float:
        fields = stat_fields(pid or 0)
        return 0.0 if fields is None else cpu_seconds(fields)

    before = cpu_s()
    return lambda: cpu_s() - before


def memory_mib(pid: int | None, field: str = "VmRSS") -> float:
    """Returns the resident memory of a process, or its peak with ``VmHWM``."""
    status = Path("/proc", str(pid), "status").read_text(encoding="ascii", errors="replace")
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(kib) / 1024


def open_files(pid: int | None) -> int:
    """Returns the number of file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def megabytes(directory: Path) -> float:
    """Returns how much the files in a directory take on the disk (MB)."""
    return round(sum(512 * one.stat().st_blocks for one in directory.rglob("*") if one.is_file()) / 1e6, 1)


class Meter:
    """Measures the processes below ``root`` while the block runs, with four samples a second.

    What a process uses between its last sample and its end (a quarter of a second at most) is not counted. The kernel's
    totals in the parent do not help, because they include only children that the parent has waited for.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="bench-meter", daemon=True)
        self._before: dict[tuple[int, int], float] = {}
        self._now: dict[tuple[int, int], float] = {}
        self.peak_bytes = 0
        """The peak of resident memory. Pages that processes share after a fork count for each of them."""

    def cpu_s(self) -> float:
        """Returns the CPU seconds used since the start of the ``with`` block."""
        self._sample()
        with self._lock:
            return sum(cpu_s - self._before.get(process, 0.0) for process, cpu_s in self._now.items())

    def _sample(self) -> None:
        found = tree(self._root)
        with self._lock:
            self._now.update({(one.pid, one.started): one.cpu_s for one in found})
            self.peak_bytes = max(self.peak_bytes, sum(one.rss_bytes for one in found))

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._sample()

    def __enter__(self) -> Self:
        self._sample()
        self._before = dict(self._now)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _read(pid: int) -> Process | None:
    fields = stat_fields(pid)
    if fields is None:
        return None
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    # index 0 is the state, 1 the parent, 19 the start time, 21 the resident set size
    return Process(pid, int(fields[19]), int(fields[1]), cpu_seconds(fields), int(fields[21]) * _PAGE, command)
