"""Kills child processes when this process ends, even after ``kill -9`` or a crash.

``prctl(PR_SET_PDEATHSIG)`` would be shorter, but it sends its signal when the *thread* that started the child ends, and
it has to run between the fork and the exec of a threaded process. Instead, a small Python process, the reaper, holds
the read end of a pipe and a list of processes. When the pipe closes, the reaper kills those that are still running. It
checks their start times, because process ids are reused.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading

from kafka_coord.dev.cluster.identity import ProcessIdentity

# The program runs isolated, with only the standard library (-I -S), so that it starts fast and does not depend on the
# checkout.
_PROGRAM = """
import os, signal, sys
children = set()
for line in sys.stdin:
    verb, pid, started = line.split()
    (children.add if verb == "watch" else children.discard)((int(pid), int(started)))
for pid, started in children:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            if int(stat.read().rpartition(")")[2].split()[19]) == started:
                os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""

_lock = threading.Lock()
_reaper: _Reaper | None = None


class _Reaper:
    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal must not end the reaper before its owner
        )
        os.close(reader)
        self._writer = writer

    def tell(self, verb: str, child: ProcessIdentity) -> None:
        os.write(self._writer, f"{verb} {child.pid} {child.started}\n".encode("ascii"))

    def close(self) -> None:
        if os.getpid() == self.owner_pid:  # not in a forked process
            os.close(self._writer)
            self.process.wait()


def watch(child: ProcessIdentity) -> None:
    """Kills ``child`` when this process ends."""
    _tell("watch", child)


def release(child: ProcessIdentity) -> None:
    """Stops watching ``child``, because it has ended or may outlive this process."""
    _tell("release", child)


def reaper_pid() -> int | None:
    """Returns the reaper's process id, or ``None`` if it is not running. The reaper lives as long as this process, so
    it is not a leak."""
    return _reaper.process.pid if _reaper is not None else None


def _tell(verb: str, child: ProcessIdentity) -> None:
    global _reaper  # noqa: PLW0603 - one per process by nature
    with _lock:
        if _reaper is None or _reaper.owner_pid != os.getpid() or _reaper.process.poll() is not None:
            _reaper = _Reaper()
            atexit.register(_reaper.close)
        _reaper.tell(verb, child)
