"""``kafka-coord settings``: shows the settings and their sources, and creates tokens for operators."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

import click

from kafka_coord.cli.connection import connection_options, current_settings
from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.model.names import group_pattern
from kafka_coord.settings import Settings, keys

_COLUMNS = columns("setting value origin=FROM")


@click.group()
def settings() -> None:
    """Show the settings of this host and their sources, or create a token for an operator of the dashboard.

    \b
    kafka-coord settings show
    kafka-coord settings operator alice
    """


@settings.command("show")
@click.option("--changed", is_flag=True, help="Show only settings that differ from their default.")
@output_option
@connection_options
def show_command(changed: bool, output: Format) -> None:
    """Show every setting, its value, and its source: a flag, a variable, the file or the default. Secrets are not
    shown. For the settings of a group, see `groups settings`; for those of a running instance, see the start of its
    log.

    \b
    kafka-coord settings show
    kafka-coord settings show --config /etc/kafka-coord.toml --changed
    """
    rows = [
        {"setting": key, "value": value, "origin": origin}
        for key, value, origin in listed(current_settings())
        if not changed or origin != "default"
    ]
    show(output, rows, [Section("settings", _COLUMNS, rows)])


@settings.command("operator")
@click.argument("name")
@click.option(
    "--groups",
    default=".*",
    show_default=True,
    metavar="PATTERN",
    help="A regular expression (RE2) for the groups that the operator may act on.",
)
def operator_command(name: str, groups: str) -> None:
    """Create a token for an operator of the dashboard. The command prints an entry for the file that
    `serve --http-operators` reads, and on standard error the token itself. The token is not stored anywhere.

    \b
    kafka-coord settings operator alice >> /etc/kafka-coord/operators.toml
    kafka-coord settings operator bob --groups 'etl-.*'
    """
    group_pattern(groups, "--groups")
    token = secrets.token_urlsafe(32)
    click.echo(f"[operators.{json.dumps(name, ensure_ascii=False)}]")
    click.echo(f'secret_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"')
    click.echo(f"groups = [{json.dumps(groups, ensure_ascii=False)}]")
    note(f"the token for {name}, which will not be shown again: {token}")


def listed(found: Settings) -> Iterator[tuple[str, Any, str]]:
    """Yields each setting, its value without secrets, and its source."""
    defaults = dataclasses.asdict(CoordinatorOptions())
    for key in keys():
        section, _, name = key.partition(".")
        value = getattr(getattr(found, section), name)
        value = defaults.get(name) if value is None else value
        yield key, value if isinstance(value, int | None) else str(value), found.origin.get(key, "default")
    for name, value in found.kafka.shown.items():
        key = f"kafka.{name}"
        yield key, value, found.origin[key]
