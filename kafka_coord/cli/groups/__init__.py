"""``kafka-coord groups``: one module per kind of command."""

from __future__ import annotations

import click

from kafka_coord.cli.lazy import LazyCommands

_COMMANDS = {
    "list": ("kafka_coord.cli.groups.show:list_command", "All groups, with their state."),
    "describe": ("kafka_coord.cli.groups.show:describe", "One group: state, members, offsets and lag."),
}


@click.group(cls=LazyCommands, lazy=_COMMANDS)
def groups() -> None:
    """List, describe and operate consumer groups.

    \b
    kafka-coord groups list
    kafka-coord groups describe delays --offsets -o json
    kafka-coord groups pause delays --reason "moving disks" --wait
    kafka-coord groups reset-offsets delays --topic flights --to-earliest --execute
    """
