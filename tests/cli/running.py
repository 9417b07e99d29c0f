"""Runs the program: inside the test, or as a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from kafka_coord.cli.main import cli

PROGRAM = (sys.executable, "-m", "kafka_coord.cli.main")


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Run = Callable[..., Ran]


def run(*arguments: str, zookeeper: str | None = None, stdin: str | None = None, **variables: str) -> Ran:
    """Runs the command in this process (``serve`` in one of its own: it configures the process's logging and signals).
    ``variables`` are added to its environment."""
    if arguments[:1] == ("serve",):
        at = {} if zookeeper is None else {"KAFKA_COORD_ZOOKEEPER": zookeeper}
        with started(*arguments, **at, **variables) as serving:
            return serving.ended()
    environment = {name: None for name in os.environ if name.startswith("KAFKA_COORD_")} | variables
    if zookeeper is not None:
        environment["KAFKA_COORD_ZOOKEEPER"] = zookeeper
    result = CliRunner().invoke(cli, list(arguments), env=environment, input=stdin)
    return Ran(result.exit_code, result.stdout, result.stderr)


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_COORD_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | variables


@dataclass(slots=True)
class Started:
    """A command that runs. Its standard error goes to a file, so that neither stream can block it."""

    process: subprocess.Popen[str]
    err: Path

    def line(self) -> str:
        """The next line of its output, or "" at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ended(self, *, by: signal.Signals | None = None, within_s: float = 30) -> Ran:
        """Sends the signal ``by``, if given, and waits for the end. ``out`` is the output that was not read before."""
        if by is not None:
            self.process.send_signal(by)
        assert self.process.stdout is not None
        code = self.process.wait(within_s)
        return Ran(code, self.process.stdout.read(), self.err.read_text())


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[Started]:
    """Runs the command as a process, and kills it if it still runs at the end. Its output must fit a pipe (64 kB)."""
    with tempfile.TemporaryDirectory() as directory:
        err = Path(directory, "err")
        with (
            err.open("w") as file,
            subprocess.Popen(
                [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=file, text=True, env=environment(**variables)
            ) as process,
        ):
            try:
                yield Started(process, err)
            finally:
                if process.poll() is None:
                    process.kill()
