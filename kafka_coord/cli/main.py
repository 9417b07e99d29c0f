"""``kafka-coord``: the program and its list of commands."""

from __future__ import annotations

import logging

import click

from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.failures import EXIT_CODES
from kafka_coord.cli.lazy import RootCommand, is_installed
from kafka_coord.version import __version__

_TRY_OUT = "To try it out:           kafka-coord dev up\n"
_HELP = f"""A consumer coordinator for Kafka clusters that keep their metadata in ZooKeeper.

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
    "channel": ("kafka_coord.cli.channel:channel", "List commands that consumers have not acknowledged."),
    "watch": ("kafka_coord.cli.watch:watch", "Watch groups, owners, lag and commands live."),
    "dashboard": ("kafka_coord.cli.dashboard:dashboard", "Serve the live dashboard as a web page."),
    "settings": ("kafka_coord.cli.settings:settings", "Show the settings of this host and their sources."),
    "acl": ("kafka_coord.cli.acl:acl", "Plan, check and set ZooKeeper ACLs."),
    "doctor": ("kafka_coord.cli.doctor:doctor", "Check the installation and suggest remedies."),
    "audit": ("kafka_coord.cli.audit:audit", "Prove from ZooKeeper's log that no partition had two owners."),
    "completion": ("kafka_coord.cli.completion:completion", "Print the shell's completion script."),
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
