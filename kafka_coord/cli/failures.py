"""Ends a command: a failed one with one line on standard error and an exit code, without a traceback; on a first signal
after its current step, and on a second immediately."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from kafka_coord.cli.output import clean, note
from kafka_coord.cli.start import missing
from kafka_coord.errors import KafkaCoordError, SettingsError

INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = """\
\b
Exit codes:
  0    success
  1    an unexpected error, which is a bug (set KAFKA_COORD_DEBUG=1 for the traceback)
  2    a flag, variable, file or name is invalid
  3    a znode or file cannot be decoded
  4    ZooKeeper refused an operation, or could not be reached
  5    no Kafka broker could be used
  6    the command was refused in the current state; the message names the groups
  7    no such group, consumer, topic or coordinator
  8    the command timed out; the request stays queued
  9    the local cluster of 'dev' or 'demo' could not be started
  10   a verification failed, or 'doctor' found an error
  11   a consumer failed
  130  Ctrl-C interrupted the command; 141 the reader of the output closed the pipe
"""


_OF_KAFKA = {
    "--bootstrap-server": "give --zookeeper, the brokers' zookeeper.connect",
    "--command-config": "give --kafka-property name=value",
    "--group": "name the group without an option: kafka-coord groups describe delays",
    "--describe": "use the command: kafka-coord groups describe delays",
    "--list": "use the command: kafka-coord groups list",
}
"""What to use in place of options of Kafka's own tools."""
_MEANT = {
    "consumer-groups": ("groups",),
    "lag": ("describe", "groups"),
    "start": ("up",),
    "stop": ("down",),
    "status": ("doctor",),
}
"""The commands that are meant by names that are closer to another command's, or to none."""
_NO_SUCH_COMMAND = re.compile(r"No such command '([^']*)'")


class _ReaderGone(Exception):
    """The reader of the output has closed the pipe."""


class FailingCleanly(click.Group):
    """A click group that turns every failure into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error  # click would turn it into exit code 1

    def main(self, *args: Any, **options: Any) -> Any:
        # This replaces click's standalone mode, which would print a KafkaCoordError as a traceback.
        options |= {"standalone_mode": False, "prog_name": options.get("prog_name") or "kafka-coord"}
        try:
            code = super().main(*args, **options)
            sys.stdout.flush()
            sys.exit(code if isinstance(code, int) else 0)
        except click.ClickException as error:
            _as_meant(error).show()
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            note("interrupted")
            sys.exit(INTERRUPTED)
        except (_ReaderGone, BrokenPipeError):
            _give_up_output()
            sys.exit(BROKEN_PIPE)
        except KafkaCoordError as error:
            _fail(str(error) or type(error).__name__, error)
            sys.exit(error.exit_code)
        except Exception as error:  # noqa: BLE001 - any other error: one line that says how to see the traceback
            if (wanting := missing(error)) is not None:
                _fail(wanting, error)
                sys.exit(SettingsError.exit_code)
            _fail(
                f"unexpected {type(error).__name__}: {error} (this is a bug; KAFKA_COORD_DEBUG=1 shows the traceback)",
                error,
            )
            sys.exit(1)


def _as_meant(error: click.ClickException) -> click.ClickException:
    """Returns the error, with what is meant if it is about a name that only other tools have."""
    if isinstance(error, click.NoSuchOption):
        meant = _OF_KAFKA.get(error.option_name)
        return click.UsageError(f"{error.message.rstrip('.')}: {meant}", error.ctx) if meant else error
    given = _NO_SUCH_COMMAND.match(error.message)
    if given and isinstance(error, click.UsageError) and error.ctx and isinstance(error.ctx.command, click.Group):
        known = error.ctx.command.list_commands(error.ctx)
        for meant in _MEANT.get(given[1], ()):
            if meant in known:
                return click.UsageError(f"{given[0]}. Did you mean {meant!r}?", error.ctx)
    return error


def _fail(message: str, error: Exception) -> None:
    if os.environ.get("KAFKA_COORD_DEBUG"):
        traceback.print_exception(error)
    click.echo(f"kafka-coord: {clean(message)}", err=True)


def _give_up_output() -> None:
    """Keeps the interpreter from flushing at exit, which would report the broken pipe again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # standard output is not a file (tests), or closed
        return


def terminate_as_interrupt() -> None:
    """Makes SIGTERM end the command like Ctrl-C, so that its consumer leaves the group cleanly."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Stopping:
    """Records the first signal to stop: sets ``event``, and stores the signal in ``number`` (0 until then)."""

    def __init__(self, on_first: Callable[[signal.Signals], None] | None) -> None:
        self.event = threading.Event()
        self.number = 0
        self._on_first = on_first

    def requested(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code after the recorded signal. SIGTERM and SIGHUP are not failures."""
        return INTERRUPTED if self.number == signal.SIGINT else 0

    def __call__(self, number: int, _: Any) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        if self._on_first is not None:
            self._on_first(signal.Signals(number))
        # on another thread, because the interrupted thread may hold the event's lock
        threading.Thread(target=self.event.set, daemon=True).start()


@contextmanager
def stopping_at_signals(on_first: Callable[[signal.Signals], None] | None = None) -> Iterator[Stopping]:
    """Handles SIGTERM, Ctrl-C and, unless it is ignored (``nohup``), the SIGHUP of a terminal that closes, while the
    block runs. Calls ``on_first`` in the handler of the first signal."""
    stopping = Stopping(on_first)
    hang_up = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else ()
    before = {number: signal.signal(number, stopping) for number in (signal.SIGTERM, signal.SIGINT, *hang_up)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
