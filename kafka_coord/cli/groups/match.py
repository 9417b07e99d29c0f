"""``groups match``: shows which topics a pattern matches."""

from __future__ import annotations

import click

from kafka_coord.cli.connection import connection_options, open_store
from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.model import Subscription

_COLUMNS = columns("topic #partitions")


@click.command()
@click.argument("regex")
@click.option("--exclude", is_flag=True, help="Show the topics that do not match, like `consume --exclude REGEX`.")
@output_option
@connection_options
def match(regex: str, exclude: bool, output: Format) -> None:
    """Show the topics whose full name matches the pattern, like `consume --include REGEX`.

    \b
    kafka-coord groups match 'fl.*'
    kafka-coord groups match 'flights|routes' --exclude
    """
    subscription = Subscription.matching(regex, exclude=exclude)
    with open_store() as store:
        topics = read_cluster(store).topics
    taken = [
        {"topic": name, "partitions": len(info.partitions)}
        for name, info in sorted(topics.items())
        if subscription.wants(name)
    ]
    show(output, taken, [Section("topics", _COLUMNS, taken)])
    note(f"{len(taken)} of {counted(len(topics), 'topic')}")
