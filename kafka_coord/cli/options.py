"""Options and arguments that several commands share."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from kafka_coord.cli import candidates
from kafka_coord.cli.candidates import Names, offering
from kafka_coord.cli.output import Format
from kafka_coord.model.names import legal

F = TypeVar("F", bound=Callable[..., Any])


if TYPE_CHECKING:
    _NameType = click.ParamType[str]
else:
    _NameType = click.ParamType  # generic only in newer releases of click


class LegalName(_NameType):
    """A legal Kafka name. Refuses an illegal name and states the rule, before the command contacts a server."""

    def __init__(self, kind: str, names: Names) -> None:
        self.name, self._names = kind, names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return legal(self.name, value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offering(self._names)(ctx, param, incomplete)]


GROUP = LegalName("group", candidates.managed_groups)
CONSUMER = LegalName("consumer", candidates.members)
TOPIC = LegalName("topic", candidates.topics)

group_argument = click.argument("group", type=GROUP)
"""The argument ``GROUP``."""


def _as_format(_: click.Context, __: click.Parameter, value: str) -> Format:
    return Format(value)


def output_option(command: F) -> F:
    """Adds ``-o``, the format of the result."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice([str(one) for one in Format]),
        callback=_as_format,
        default="table",
        envvar="KAFKA_COORD_OUTPUT",
        show_default=True,
        help="How to print the result. [variable: KAFKA_COORD_OUTPUT]",
    )(command)


def timeout_option(default_s: float, what: str) -> Callable[[F], F]:
    """Adds ``--timeout`` in seconds."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, max=86_400),
        default=default_s,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


def who() -> str:
    """Returns the operator's name for requests and pauses, such as ``alice@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no such user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
