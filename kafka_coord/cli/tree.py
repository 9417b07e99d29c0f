"""``kafka-coord backup`` and ``kafka-coord restore``: write the coordination tree to a file, and put it into an empty
tree."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.options import confirm, output_option
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.groups.group import Document, Partitions, Time, duration, iso_time

if TYPE_CHECKING:
    from kafka_coord.groups.restore import GroupToRestore, RestorePlan
    from kafka_coord.kafka.offsets import BrokerRanges
    from kafka_coord.model import TopicPartition
    from kafka_coord.model.offsets import LogRange

_COLUMNS = columns("group #offsets held older beyond unknown_topics")
_EVERY_S = 1.0
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("file", type=_FILE)
@connection_options
def backup(file: Path) -> None:
    """Write the coordination tree to FILE: everything in ZooKeeper that cannot be made again.

    That is each group's settings, offsets, target, pause and history, who holds what, the epoch, and the terms of the
    groups log. Instances and members may go on; each group is consistent in itself. Left out are sessions:
    registrations, tokens, commands. Offsets of client-assigned groups are in Kafka.

    FILE is replaced only once the new one is complete. It holds names and hosts, so only you may read it. Run the
    command from a timer, and keep several files:

    \b
    kafka-coord backup /var/backups/kafka-coord-mon.backup
    kafka-coord restore /var/backups/kafka-coord-mon.backup

    To move the tree to other servers without reading anything twice, see docs/operations.md, Backup and restore.
    """
    from kafka_coord.groups.backup import read_tree, write_file
    from kafka_coord.zk.options import parse_connect_string

    settings = current_settings()
    where = parse_connect_string(settings.zookeeper.hosts)
    with open_store(settings) as store:
        made = read_tree(store, where.servers, where.chroot, _telling("groups read"))
    write_file(file, made)
    click.echo(f"wrote {made.header.groups:,} groups with {made.header.offsets:,} offsets to {file}")


class GroupToRestoreDocument(Document, frozen=True):
    """``kafka-coord restore FILE -o json``"""

    group: str
    offsets: int
    held: Partitions
    """What its members held. Nobody is given it before the same process is back, or the longest session is over."""
    older: Partitions
    """The offsets below the start of the log: those records are gone."""
    beyond: Partitions
    """The offsets beyond the end of the log."""
    unknown_topics: list[str]
    """The topics without an id. Nothing of them is started until an operator says where."""

    @classmethod
    def of(cls, one: GroupToRestore) -> Self:
        return cls(one.group, len(one.offsets), one.held, one.older, one.beyond, list(one.unknown))


class RestoreDocument(Document, frozen=True):
    """``kafka-coord restore FILE -o json``"""

    made: Time | None
    epoch: int
    wait_ms: int
    still_answering: list[str]
    groups: list[GroupToRestoreDocument]


@click.command()
@click.argument("file", type=_FILE)
@click.option("--execute", is_flag=True, help="Restore. Without it, the command only shows what it would do.")
@click.option(
    "--stopped",
    is_flag=True,
    help="Confirm, without a question, that the old instances and ZooKeeper servers are stopped.",
)
@click.option(
    "--epoch", default=0, metavar="N", help="The newest epoch that you know of, if it is newer than the backup."
)
@output_option
@connection_options
def restore(file: Path, execute: bool, stopped: bool, epoch: int, output: Format) -> None:
    """Put the backup in FILE into the empty tree at --zookeeper, after its disk was lost, or on other servers.

    Without --execute, the command shows each group, which offsets are older than the log's start or beyond its end, and
    how old the backup is. An offset may be older than the last that was committed, so that records are read again; none
    is newer, so none is skipped.

    First stop every instance, and the old ZooKeeper servers: while one lives, members may go on reading. The command
    names them, and tries their ports. Members may run on; they wait. If the command is interrupted, run it again.

    \b
    kafka-coord restore kafka-coord.backup --zookeeper new1:2181,new2:2181/kafka
    kafka-coord restore kafka-coord.backup --zookeeper new1:2181,new2:2181/kafka --execute
    """
    from kafka_coord.groups.backup import read_file
    from kafka_coord.groups.restore import plan_restore, require_empty, still_answering
    from kafka_coord.groups.restore import restore as write
    from kafka_coord.kafka.offsets import BrokerLog
    from kafka_coord.zk.options import parse_connect_string

    found, checksum = read_file(file)
    settings = current_settings()
    with open_store(settings) as store:
        require_empty(store, checksum)
        with closing(BrokerLog(store, settings.kafka.properties)) as brokers:
            plan = plan_restore(
                found,
                checksum,
                lambda partitions: _noted(brokers.known_ranges(partitions)),
                least_epoch=epoch,
            )
        answering = still_answering(found.header, parse_connect_string(settings.zookeeper.hosts).servers)
        documents = [GroupToRestoreDocument.of(one) for one in plan.groups]
        document = RestoreDocument(Time.of(found.header.made_ms), plan.epoch, plan.wait_ms, answering, documents)
        show(output, document, [Section("groups", _COLUMNS, [one.row() for one in documents])])
        _explain(plan, answering)
        if not execute:
            note(f"nothing was changed; --execute restores {len(plan.groups):,} groups")
            return
        confirm(_question(plan, answering), yes=stopped, option="--stopped")
        write(store, plan, _telling("znodes written"))
    click.echo(f"restored {len(plan.groups):,} groups; start the instances")


def _noted(found: BrokerRanges) -> Mapping[TopicPartition, LogRange]:
    if found.note:
        note(f"not every offset was compared with its log: {found.note}")
    return found.ranges


def _explain(plan: RestorePlan, answering: list[str]) -> None:
    header = plan.header
    age = duration(int(time.time() * 1000) - header.made_ms)
    note(f"the backup is {age} old ({iso_time(header.made_ms)}): what was committed since is read again")
    for text in plan.notes:
        note(text)
    if older := sum(len(one.older) for one in plan.groups):
        note(f"{older:,} offsets are below the start of their log: those records are gone")
    if beyond := sum(len(one.beyond) for one in plan.groups):
        note(f"{beyond:,} offsets are beyond the end of their log: it was cut, or this is another cluster")
    if unknown := sum(len(one.unknown) for one in plan.groups):
        note(f"{unknown:,} topics have no id in the backup: nothing of them is started until you reset their offsets")
    if plan.wait_ms:
        note(
            f"an instance was elected while the backup was made, so who held what in the end is unknown: for"
            f" {plan.wait_ms / 1000:g} s after the instances have started, no managed group is given anything"
        )
    for name in answering:
        note(f"{name} still accepts connections")


def _question(plan: RestorePlan, answering: list[str]) -> str:
    header = plan.header
    instances = ", ".join(str(one.broker_id) for one in header.instances) or "none was registered"
    still = "" if plan.wait_ms else ", and no instance has run on the old tree since the backup was made"
    warned = f" ({len(answering)} of their addresses still accept connections)" if answering else ""
    return (
        f"Are the old ZooKeeper servers ({', '.join(header.zookeeper)}) and all instances ({instances}) stopped{warned}"
        f"{still}?"
    )


def _telling(what: str) -> Callable[[int, int], None]:
    """Returns a function that says once a second how far something is."""
    last = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_S:
            last = time.monotonic()
            note(f"{done:,} of {of:,} {what}")

    return tell
