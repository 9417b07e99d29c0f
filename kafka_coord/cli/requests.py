"""Sends requests to the coordinator and prints the responses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.options import output_option, timeout_option, who
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.errors import RequestRefused
from kafka_coord.groups.group import AnswerDocument
from kafka_coord.groups.requests import Acting

F = TypeVar("F", bound=Callable[..., Any])

ANSWER_TIMEOUT_S = 30.0


def asking_options(command: F) -> F:
    """Adds ``--timeout``, ``--output`` and the connection options."""
    for option in (
        connection_options,
        output_option,
        timeout_option(ANSWER_TIMEOUT_S, "How long to wait for the response; after that, the request stays queued."),
    ):
        command = option(command)
    return command


reason_option = click.option(
    "--reason", default="", metavar="TEXT", help="The reason to record in the log and the group's history."
)


def acting(reason: str, timeout_s: float) -> Acting:
    """Returns who acts and why. Progress is printed on standard error."""
    return Acting(who(), reason, timeout_s, note)


def show_answers(output: Format, answers: Sequence[AnswerDocument]) -> None:
    """Prints the responses. A table shows one line per response; the other formats contain all fields."""
    if output is Format.TABLE:
        for answer in answers:
            click.echo(f"{answer.result}: {answer.message}" if answer.message else answer.result)
        return
    show(
        output,
        answers,
        [Section("answers", columns("request type group result message"), [one.row() for one in answers])],
    )


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation at a terminal, unless ``yes`` is set. Raises :class:`RequestRefused` if the user declines
    or if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise RequestRefused(
            f"{question} Nothing was changed, because standard input is not a terminal. Add --yes to confirm."
        )
    if not click.confirm(question, err=True):
        raise RequestRefused("nothing was changed")
