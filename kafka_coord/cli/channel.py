"""``kafka-coord channel``: lists the commands that consumers have not acknowledged yet."""

from __future__ import annotations

import click

from kafka_coord.cli.connection import connection_options, open_store
from kafka_coord.cli.groups.show import report_unreadable
from kafka_coord.cli.options import CONSUMER, GROUP, group_argument, output_option
from kafka_coord.cli.output import Column, Format, Section, columns, duration, show
from kafka_coord.errors import NotFound
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.group import WaitingCommand
from kafka_coord.groups.managed import snapshot_of
from kafka_coord.groups.state import Waiting, read_groups, read_waiting

_LIST = columns("group consumer command waits_for=WAITS for_live=LIVE partitions")
_SHOW = columns("consumer command waits_for=WAITS generation epoch incarnation for_live=LIVE partitions reason")


class ListedCommand(WaitingCommand, kw_only=True, frozen=True):
    """``kafka-coord channel list -o json``"""

    age_ms: int


@click.group()
def channel() -> None:
    """List the commands that consumers have not acknowledged yet.

    If a command stays unacknowledged for long, its consumer is stuck or still working on a record. LIVE is `no` if the
    command was meant for an earlier incarnation of the consumer; such a command will be dropped.

    \b
    kafka-coord channel list
    kafka-coord channel show delays --consumer c1
    """


@channel.command("list")
@click.option("--group", type=GROUP, default=None, help="The group to show. [default: all groups]")
@output_option
@connection_options
def list_command(group: str | None, output: Format) -> None:
    """List the unacknowledged commands of all groups.

    \b
    kafka-coord channel list -o tsv
    """
    with open_store() as store:
        cluster = read_cluster(store)
        if group is not None and group not in cluster.groups:
            raise NotFound(f"no group {group!r}")
        snapshots = read_groups(store, [group] if group else cluster.groups, cluster)
        waiting = read_waiting(store, snapshots)
        now_ms = round(store.clock.time() * 1000)
    _show(output, waiting, now_ms, _LIST)


@channel.command("show")
@group_argument
@click.option("--consumer", type=CONSUMER, default=None, help="The consumer to show. [default: all consumers]")
@output_option
@connection_options
def show_command(group: str, consumer: str | None, output: Format) -> None:
    """Show one group's unacknowledged commands in full, in order of execution.

    \b
    kafka-coord channel show delays
    """
    with open_store() as store:
        _, snapshot = snapshot_of(store, group)
        if consumer is not None and consumer not in snapshot.observation.channels:
            known = ", ".join(sorted(snapshot.observation.channels)) or "none"
            raise NotFound(f"group {group!r} has no channel for {consumer!r}; its channels are for {known}")
        waiting = read_waiting(store, {group: snapshot})
        now_ms = round(store.clock.time() * 1000)
    if consumer is not None:
        waiting = Waiting(tuple(one for one in waiting.commands if one.consumer == consumer), waiting.unreadable)
    _show(output, waiting, now_ms, _SHOW)


def _show(output: Format, waiting: Waiting, now_ms: int, columns: tuple[Column, ...]) -> None:
    documents = [ListedCommand(**one.fields(), age_ms=one.waited_ms(now_ms)) for one in waiting.commands]
    rows = [one.row(waits_for=duration(one.age_ms), partitions=str(one.partitions)) for one in documents]
    show(output, documents, [Section("commands", columns, rows, empty="no unacknowledged commands")])
    report_unreadable(waiting.unreadable)
