"""``kafka-coord``: the program and its list of commands. Each command is imported only when it is used, so that
``--help`` and completion stay fast.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

import click

from kafka_coord import __version__
from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.failures import EXIT_CODES, FailingCleanly
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


_TRY_OUT = "To try it out:           kafka-coord dev up\n"
_HELP = f"""A consumer coordinator for Kafka.

\b
On each broker's host:   kafka-coord serve --broker-id 1 --zookeeper zk1:2181
To see its state:        kafka-coord groups list
                         kafka-coord groups describe delays
                         kafka-coord doctor
{_TRY_OUT if is_installed("kafka_coord.dev") else ""}

Every option has an environment variable, KAFKA_COORD_<COMMAND>_<OPTION>. The connection options (--zookeeper,
--config, --kafka-property) can also be set with KAFKA_COORD_ZOOKEEPER, KAFKA_COORD_CONFIG and
KAFKA_COORD_KAFKA_<PROPERTY>. A flag takes precedence over a variable, and a variable over the file.

{EXIT_CODES}"""

_COMMANDS = {
    "serve": ("kafka_coord.cli.serve:serve", "Run one coordinator instance beside a broker."),
    "init": ("kafka_coord.cli.tree:init", "Begin a coordination tree, once, in an empty place."),
    "dev": ("kafka_coord.dev.commands.dev:dev", "Run ZooKeeper and Kafka brokers on this machine, to try things out."),
    "demo": ("kafka_coord.dev.commands.demo:demo", "Watch a group rebalance through failures, and verify its records."),
    "consume": ("kafka_coord.cli.consume:consume", "Consume as a member of a group and print the records."),
    "load": ("kafka_coord.cli.load:load", "Write the records of a file to a topic."),
    "pipeline": (
        "kafka_coord.cli.pipeline:pipeline",
        "Run Spark queries as members of a group, and read their results.",
    ),
    "bench": ("kafka_coord.dev.commands.bench:bench", "Benchmark the system, and compare it with other clients."),
    "coordinator": ("kafka_coord.cli.coordinator:coordinator", "Show the coordinator, or make it step down."),
    "groups": ("kafka_coord.cli.groups:groups", "List, describe and operate consumer groups."),
    "topics": ("kafka_coord.cli.groups.show:topics", "Show who reads a topic, and how far behind."),
    "search": ("kafka_coord.cli.groups.show:search", "Find groups, topics, and consumers by name, host or client id."),
    "channel": ("kafka_coord.cli.coordinator:channel", "List commands that consumers have not acknowledged."),
    "watch": ("kafka_coord.cli.watch:watch", "Watch groups, owners, lag and commands live."),
    "dashboard": ("kafka_coord.cli.dashboard:dashboard", "Serve the live dashboard as a web page."),
    "settings": ("kafka_coord.cli.settings:settings", "Show the settings of this host and their sources."),
    "acl": ("kafka_coord.cli.acl:acl", "Plan, check and set ZooKeeper ACLs."),
    "backup": ("kafka_coord.cli.tree:backup", "Write the coordination tree to a file."),
    "restore": ("kafka_coord.cli.tree:restore", "Put a backup into an empty coordination tree."),
    "doctor": ("kafka_coord.cli.doctor:doctor", "Check the installation and suggest remedies."),
    "audit": ("kafka_coord.cli.audit:audit", "Prove from ZooKeeper's log that no partition had two owners."),
    "completion": ("kafka_coord.cli.options:completion", "Print the shell's completion script."),
}


@click.group(
    cls=RootCommand,
    lazy=_COMMANDS,
    help=_HELP,
    context_settings={
        "auto_envvar_prefix": "KAFKA_COORD",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
@connection_options
@click.version_option(__version__, prog_name="kafka-coord")
def cli() -> None:
    # Commands report errors themselves, so suppress the libraries' log lines. Only `serve` sets up logging.
    logging.getLogger().addHandler(logging.NullHandler())


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
