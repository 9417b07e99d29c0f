"""Measures how busy the machine's cores were, to tell whether a missed deadline is due to the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_STAT = Path("/proc/stat")
_PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True, slots=True)
class MachineTimes:
    """Seconds since boot, at the time ``at`` (monotonic). ``busy`` counts the processes of this machine and ``stolen``
    the other guests of the host, both summed over all cores. ``waited`` counts the time in which a process waited for a
    core, or is 0 if the kernel does not report it (``proc.rst`` and ``psi.rst`` of Linux)."""

    at: float
    busy: float
    stolen: float
    waited: float

    @classmethod
    def now(cls) -> Self:
        """Reads the times. Raises ``OSError`` if there is no ``/proc``."""
        everything = _STAT.read_text(encoding="ascii").split(maxsplit=9)
        user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, everything[1:9])
        tick = os.sysconf("SC_CLK_TCK")
        try:
            waited = int(_PRESSURE.read_text(encoding="ascii").splitlines()[0].rpartition("total=")[2]) / 1e6
        except OSError:
            waited = 0.0
        busy = user + nice + system + irq + softirq
        return cls(time.monotonic(), busy / tick, stolen / tick, waited)

    def until_now(self) -> Mapping[str, Any]:
        """Returns the load since then: the ``seconds``, and their shares (0 to 1) in which the cores were ``busy`` or
        ``stolen``, or a process ``waited``. Ticks are 10 ms.
        """
        now, cores = self.now(), os.cpu_count() or 1
        seconds = max(now.at - self.at, 1e-3)
        return {
            "seconds": round(seconds, 3),
            "busy": round((now.busy - self.busy) / seconds / cores, 3),
            "stolen": round((now.stolen - self.stolen) / seconds / cores, 3),
            "waited": round((now.waited - self.waited) / seconds, 3),
        }
