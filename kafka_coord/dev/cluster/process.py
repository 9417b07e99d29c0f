"""Starts a child process with a log file, waits until it is ready, and stops it by process id; and handles Ctrl-C and
stop signals meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from kafka_coord.dev.cluster import child_reaper
from kafka_coord.dev.cluster.identity import ProcessIdentity
from kafka_coord.errors import DevClusterError


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delays a Ctrl-C until the end of the block. Outside the main thread, which alone handles signals in Python, does
    nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])


OnProgress = Callable[[str], None]

_POLL_S = 0.05
_LOG_TAIL_LINES = 8


class ChildProcess:
    """A program in its own session. All its output goes to ``log``.

    Any thread may start, stop and restart the program. Unless :meth:`let_outlive_parent` is called, it is killed when
    this Python process ends, even if that is a ``kill -9``.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: ProcessIdentity | None = None
        self._adopted: ProcessIdentity | None = None
        self._log_start = 0
        self._asked_to_end = False
        self._lock = threading.RLock()

    @property
    def identity(self) -> ProcessIdentity | None:
        """The running process, or None."""
        with self._lock:
            if self._adopted is not None and self._adopted.alive():
                return self._adopted
            return self._identity if self.running else None

    def adopt(self, running: ProcessIdentity) -> None:
        """Takes a process that an earlier Python process started and let outlive it for this one. It counts as running,
        but :meth:`stop` and :meth:`kill` leave it alone."""
        self._adopted = running

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        identity = self.identity
        return identity.pid if identity else None

    @property
    def running(self) -> bool:
        """Whether the process exists, running or paused."""
        with self._lock:
            adopted = self._adopted is not None and self._adopted.alive()
            return adopted or (self._process is not None and self._process.poll() is None)

    @property
    def exit_code(self) -> int | None:
        """The exit code (negative for a signal). None while the process runs, and before its first start."""
        with self._lock:
            return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Starts the process if it is not running. Raises :class:`DevClusterError` if the log or program cannot be
        opened."""
        # An interrupt here would leave an unrecorded child, which nobody could stop.
        with self._lock, interrupts_held_back():
            if self.running:
                return
            self._forget()
            self._asked_to_end = False
            try:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with self.log.open("ab") as out:
                    self._log_start = out.tell()
                    self._process = subprocess.Popen(
                        self.command,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        cwd=self.log.parent,
                        env={**os.environ, **self._env},
                        start_new_session=True,
                    )
            except OSError as error:
                raise DevClusterError(f"{self.name} cannot be started: {error}") from error
            self._identity = ProcessIdentity.of(self._process.pid)
            if self._identity is not None:
                child_reaper.watch(self._identity)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Polls ``ready`` until it returns true. After ``timeout_s`` seconds, or if the process ends first, raises
        :class:`DevClusterError` with the end of the log.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise DevClusterError(
                    f"{self.name} ended with exit code {self.exit_code} before it was ready{self._story()}"
                )
            if time.monotonic() >= deadline:
                raise DevClusterError(f"{self.name} was not ready within {timeout_s:.0f} s{self._story()}")
            time.sleep(_POLL_S)

    def let_outlive_parent(self) -> None:
        """Lets the process outlive this Python process."""
        with self._lock:
            if self._identity is not None and self.running:
                child_reaper.release(self._identity)

    def terminate(self) -> None:
        """Sends SIGTERM but, unlike :meth:`stop`, does not wait for the process to end.

        The signal is sent only once: a second one could kill a process during its clean shutdown, because Python
        restores the default handlers when it exits.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                if not self._asked_to_end:
                    self._asked_to_end = True
                    self._process.send_signal(signal.SIGTERM)
                self._process.send_signal(signal.SIGCONT)  # a paused process would not handle the first signal

    def stop(self, timeout_s: float = 15.0) -> bool:
        """Stops the process (SIGTERM) and waits. After ``timeout_s`` seconds, kills it and returns False."""
        with self._lock:
            if self._process is None:
                return True
            in_time = True
            self.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                in_time = False
                self._process.kill()
                self._process.wait()
            self._forget()
            return in_time

    def kill(self, *, with_children: bool = False) -> None:
        """Kills the process (SIGKILL), running or paused, and reaps it. With ``with_children``, also kills its child
        processes, which might otherwise end cleanly."""
        with self._lock:
            if self._process is not None:
                if with_children:
                    with suppress(ProcessLookupError):
                        os.killpg(self._process.pid, signal.SIGKILL)
                self._process.kill()
                self._process.wait()
                self._forget()

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal. Raises :class:`DevClusterError` if it is not running."""
        self._require_running("signal").signal(number)

    def pause(self) -> None:
        """Freezes the process (SIGSTOP) and waits until it is frozen. Its connections stay open, but it is silent."""
        identity = self._require_running("pause")
        identity.signal(signal.SIGSTOP)
        while identity.alive() and not identity.paused():
            time.sleep(0.001)

    def resume(self) -> None:
        """Resumes a paused process (SIGCONT)."""
        self._require_running("resume").signal(signal.SIGCONT)

    def log_since_start(self) -> str:
        """Returns the output since the last start."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    def _forget(self) -> None:
        if self._identity is not None:
            child_reaper.release(self._identity)
        self._identity = None

    def _require_running(self, verb: str) -> ProcessIdentity:
        identity = self.identity
        if identity is None:
            raise DevClusterError(f"cannot {verb} {self.name}: it is not running")
        return identity

    def _story(self) -> str:
        lines = [line for line in self.log_since_start().splitlines() if line.strip()]
        tail = "".join(f"\n    {line[:300]}" for line in lines[-_LOG_TAIL_LINES:])
        return f"; the end of its log {self.log}:{tail}" if tail else f"; its log {self.log} is empty"


def stopping_event(*signals: signal.Signals) -> threading.Event:
    """Returns an event that these signals set (default: SIGTERM and SIGINT), for the main thread to check."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    for one in signals or (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, stop)
    return stopping
