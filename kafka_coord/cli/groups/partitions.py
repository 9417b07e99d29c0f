"""Defines the options that select partitions: ``--topic flights``, ``--topic flights:0,3-5``, ``--all-topics``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kafka_coord.cli import candidates
from kafka_coord.cli.candidates import offering

F = TypeVar("F", bound=Callable[..., Any])


def partitions_option(what: str) -> Callable[[F], F]:
    """Adds ``--topic TOPIC[:0,1-3]``, repeatable, for :func:`kafka_coord.monitor.scope.parse_scope`."""
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="TOPIC[:0,1-3]",
        shell_complete=offering(candidates.topics),
        help=what,
    )
