"""The program's commands, and the shapes of output that its documents promise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kafka_coord.cli.main import cli

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def commands(at: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(at, click.Group):
        ctx = click.Context(at)
        for name in at.list_commands(ctx):
            if (*path, name) == ("demo",):
                continue  # another test covers it
            found = at.get_command(ctx, name)
            assert found is not None
            yield from commands(found, (*path, name))
    else:
        yield path


def promised(shape: str) -> Any:
    found = re.search(rf"<!-- shape: {shape} -->\n```json\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    assert found, shape
    return json.loads(found.group(1))
