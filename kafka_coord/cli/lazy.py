"""Imports each command only when it is used, so that ``--help`` and completion stay fast."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from typing import Any

import click

from kafka_coord.cli.failures import FailingCleanly
from kafka_coord.cli.start import install


class LazyCommands(click.Group):
    """A group that imports the commands in ``lazy`` when they are used: ``{"groups": ("module:attribute", "help")}``.

    Commands whose module is not installed are not listed.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in self.lazy if self._there(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        if not self._there(cmd_name):
            raise click.UsageError(f"{cmd_name} needs a package that is not installed: {install('dev')}")
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.lazy[cmd_name][0]} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "did you mean" in error.message.lower():
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in self.lazy:
                rows.append((name, self.lazy[name][1]))
            elif (command := self.get_command(ctx, name)) is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(90)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _there(self, name: str) -> bool:
        return is_installed(self.lazy[name][0].partition(":")[0])


def is_installed(module: str) -> bool:
    """Returns whether the module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package does not exist
        return False


class RootCommand(LazyCommands, FailingCleanly):
    """The command ``kafka-coord`` itself."""
