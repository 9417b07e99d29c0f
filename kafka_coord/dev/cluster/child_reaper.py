"""Sees to it that child processes do not outlive this process, however it ends.

``prctl(PR_SET_PDEATHSIG)`` would be the shorter way, but its signal is sent when the *thread* that started the child
ends, and setting it needs code between fork and exec of a threaded process. Instead one small Python process holds
the read end of a pipe and a list of processes; when the pipe closes (exit, ``kill -9``, anything), it kills those
still running whose start time shows they are still the same ones.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading

from kafka_coord.dev.cluster.identity import ProcessIdentity

# Standard library only and isolated (-I -S): it must start fast and must not depend on the checkout staying in place.
_PROGRAM = """
import os, signal, sys
children = set()
for line in sys.stdin:
    verb, pid, started = line.split()
    (children.add if verb == "guard" else children.discard)((int(pid), int(started)))
for pid, started in children:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            if int(stat.read().rpartition(")")[2].split()[19]) == started:
                os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""

_lock = threading.Lock()
_guard: _Guard | None = None


class _Guard:
    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal must not end the guard before its owner
        )
        os.close(reader)
        self._writer = writer

    def tell(self, verb: str, child: ProcessIdentity) -> None:
        os.write(self._writer, f"{verb} {child.pid} {child.started}\n".encode("ascii"))

    def close(self) -> None:
        if os.getpid() == self.owner_pid:  # not in a fork of it
            os.close(self._writer)
            self.process.wait()


def guard(child: ProcessIdentity) -> None:
    """Have ``child`` killed when this process ends."""
    _tell("guard", child)


def release(child: ProcessIdentity) -> None:
    """``child`` has ended, or may outlive this process."""
    _tell("release", child)


def guard_pid() -> int | None:
    """The guard's own process id, if it runs: it lives as long as this process and is nobody's leak."""
    return _guard.process.pid if _guard is not None else None


def _tell(verb: str, child: ProcessIdentity) -> None:
    global _guard  # noqa: PLW0603 - one per process by nature
    with _lock:
        if _guard is None or _guard.owner_pid != os.getpid() or _guard.process.poll() is not None:
            _guard = _Guard()
            atexit.register(_guard.close)
        _guard.tell(verb, child)
