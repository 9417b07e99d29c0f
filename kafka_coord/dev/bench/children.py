"""Runs a part of a benchmark in its own process."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ENDS_S = 30.0


class Child:
    """A process with pipes to its standard input (``orders``) and from its standard output (``answers``). It ends when
    its input closes, so it cannot outlive the benchmark. Its errors go to ``log``.

    By default, the process runs a module of the benchmarks with one argument. ``command`` runs another program instead.
    ``packages`` is a directory of packages that take precedence over the installed ones.
    """

    def __init__(
        self, module: str, argument: str, log: Path, *, command: Sequence[str] = (), packages: Path | None = None
    ) -> None:
        environment = dict(os.environ)
        if packages is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command or (sys.executable, "-m", f"kafka_coord.dev.bench.{module}", argument),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        if self.process.stdin is None or self.process.stdout is None:
            raise ValueError("the process was started without pipes")
        self.orders, self.answers = self.process.stdin, self.process.stdout
        self.log = log

    def line(self, within_s: float) -> bytes | None:
        """Returns the next line, an empty line if the process has ended, or None after the timeout."""
        ready, _, _ = select.select([self.answers], [], [], within_s)
        return self.answers.readline() if ready else None

    def end(self) -> None:
        """Closes the process's input and waits for the process to end. Kills it after a timeout."""
        with contextlib.suppress(BrokenPipeError):
            self.orders.close()
        try:
            self.process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.end()
        self.answers.close()
