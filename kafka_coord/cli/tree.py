"""``kafka-coord init`` begins a coordination tree, once, ``backup`` writes it to a file, and ``restore`` puts that into
an empty place. Also decides whether ``serve`` may begin a tree by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click
from msgspec import structs

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.options import confirm, output_option
from kafka_coord.cli.output import Format, Section, columns, note, paced, show
from kafka_coord.errors import BrokerError, NoNode, TreeRefused
from kafka_coord.groups.group import Document, Partitions, Time, duration, iso_time
from kafka_coord.settings import Settings
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, change_record, finish_tree, make_tree, read_cluster_record
from kafka_coord.zk.store import GetData, Store

if TYPE_CHECKING:
    from kafka_coord.grouplog.trees import LogTree
    from kafka_coord.groups.restore import GroupToRestore, RestorePlan
    from kafka_coord.kafka.cluster import Address, ClusterClient
    from kafka_coord.kafka.offsets import BrokerRanges
    from kafka_coord.model import TopicPartition
    from kafka_coord.model.offsets import LogRange

_COLUMNS = columns("group #offsets held older beyond unknown_topics")
_EVERY_S = 1.0
_INIT = "init"
_FILE = click.Path(path_type=Path, dir_okay=False)


_bootstrap_option = click.option(
    "--bootstrap", metavar="ADDRESSES", help="Brokers. [default: serve.bootstrap, or those in ZooKeeper]"
)


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
@click.option("--epoch", type=click.IntRange(0), default=0, help="An epoch that the lost tree's coordinators have had.")
@_bootstrap_option
@output_option
@connection_options
def restore(file: Path, execute: bool, stopped: bool, epoch: int, bootstrap: str | None, output: Format) -> None:
    """Put the backup in FILE into the empty tree at --zookeeper, after its disk was lost, or on other servers. Run it
    with the settings and the identity of an instance.

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
    settings = current_settings(**({"serve__bootstrap": bootstrap} if bootstrap is not None else {}))
    with open_store(settings) as store:
        require_empty(store, checksum)
        log = _log_if_known(settings, store, is_needed=execute)
        with closing(BrokerLog(store, _properties(settings))) as brokers:
            plan = plan_restore(
                found,
                checksum,
                lambda partitions: _noted(brokers.known_ranges(partitions)),
                generation=log.generation,
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
        complete(settings, store, write(store, plan, _telling("znodes written")), log, epoch)
    click.echo(f"restored {len(plan.groups):,} groups; start the instances")


def _log_if_known(settings: Settings, store: Store, *, is_needed: bool) -> LogTree:
    """Returns what the groups log tells, or nothing if no broker can be asked and it ``is_needed`` only to tell. Raises
    :class:`BrokerError`."""
    from kafka_coord.grouplog.trees import LogTree

    try:
        return read_log(settings, store)
    except BrokerError as error:
        if is_needed:
            raise BrokerError(f"the groups log may know a newer tree, and no broker tells: {error}") from error
        note(f"no broker was asked: {error}")
        return LogTree()


def _properties(settings: Settings) -> Mapping[str, str]:
    """Returns librdkafka's properties, with the brokers of ``serve.bootstrap``."""
    properties, addresses = settings.kafka.properties, _addresses(settings)
    given = {"bootstrap.servers": ",".join(f"{host}:{port}" for host, port in addresses)} if addresses else {}
    return {**given, **properties}


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
            f"an instance ran while the backup was made, so who held what in the end is unknown: for"
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
    return paced(_EVERY_S, lambda done, of: note(f"{done:,} of {of:,} {what}"))


# --- init -------------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--replace", metavar="ID", help="The lost tree to which the groups log belongs.")
@click.option("--epoch", type=click.IntRange(0), default=0, help="An epoch that the lost tree's coordinators have had.")
@_bootstrap_option
@connection_options
def init(replace: str | None, epoch: int, bootstrap: str | None) -> None:
    """Begin a coordination tree in an empty place. Run it once, with the settings and the identity of an instance, for
    a cluster that does not keep its metadata in this ZooKeeper; for others, the first instance begins it.

    If there is a tree already, this changes nothing. It is refused if the groups log belongs to another tree: restore
    that one (kafka-coord restore), or, if it is lost for good, name it with --replace.

    \b
    kafka-coord init --zookeeper zk1:2181/coordination --bootstrap b1:9092,b2:9092
    """
    settings = current_settings(**({"serve__bootstrap": bootstrap} if bootstrap is not None else {}))
    with open_store(settings) as store:
        found = read_log(settings, store)
        record = read_cluster_record(store)
        begun = _begin(store, record, found, replace)
        if begun is None:
            note(f"there is {record.name if record is not None else 'a tree'} already; nothing was changed")
            return
        partitions = complete(settings, store, begun, found, epoch)
    click.echo(
        f"made {begun.name}, of Kafka cluster {begun.kafka or '(unknown)'};"
        f" claimed {partitions} partitions of the groups log for it"
    )


def _begin(store: Store, record: ClusterRecord | None, found: LogTree, replace: str | None) -> ClusterRecord | None:
    """Returns the record of the tree that has been begun, or ``None`` if there is a complete one. Raises
    :class:`TreeRefused`."""
    if record is not None and record.making not in {"", _INIT}:
        raise TreeRefused(f"kafka-coord {record.making} was making {record.name}, and did not finish: run it again")
    if found.refuses(record) and found.claim is not None and replace != found.claim.tree:
        raise TreeRefused(_other_tree(found))
    if replace is not None and (found.claim is None or replace != found.claim.tree):
        known = found.claim.of_tree if found.claim is not None else "no tree"
        raise TreeRefused(f"the groups log belongs to {known}, not to tree {replace}")
    if record is None:
        record = ClusterRecord.new(store, found.generation + 1, kafka=found.kafka, making=_INIT)
        make_tree(store, record)
        return record
    if not found.refuses(record):
        return record if record.making else None
    begun = structs.replace(record, generation=found.generation + 1, making=_INIT, superseded_by="")
    change_record(store, lambda _: begun)
    return begun


def _other_tree(found: LogTree) -> str:
    claim = found.claim
    if claim is None:
        return ""
    return (
        f"the groups log belongs to {claim.of_tree}, which is not here. If that tree exists, correct --zookeeper; if"
        " you have a backup of it, run kafka-coord restore; if it is lost for good, with the offsets of its managed"
        f" groups, kafka-coord init --replace {claim.tree} (the {found.groups} groups in the log stay)"
    )


def complete(settings: Settings, store: Store, record: ClusterRecord, found: LogTree, epoch: int = 0) -> int:
    """Completes a tree that has been begun: its epoch exceeds all that are known, and the groups log is claimed for it.
    Returns how many of the log's partitions were."""
    from kafka_coord.grouplog.trees import epoch_of_new_tree, write_generation
    from kafka_coord.kafka.client import run_with
    from kafka_coord.zk.election import decode_epoch

    try:
        there = decode_epoch(store.get(layout.COORDINATOR_EPOCH).data) or 0
    except NoNode:
        there = None
    first = epoch_of_new_tree(there or 0, found.epoch, epoch)
    if first and there is None:
        store.create(layout.COORDINATOR_EPOCH, str(first).encode())
    elif first > (there or 0):
        store.set(layout.COORDINATOR_EPOCH, str(first).encode())
    partitions = 0
    if found.terms:
        write = partial(write_generation, store=store, record=record)
        partitions = run_with(brokers_of(settings, store), write)
    finish_tree(store, record)
    return partitions


def read_log(settings: Settings, store: Store) -> LogTree:
    """Returns what the groups log tells. Raises :class:`BrokerError`."""
    from kafka_coord.grouplog.trees import LogTree, read_log_tree
    from kafka_coord.kafka.authentication import knows_all
    from kafka_coord.kafka.client import run_with

    if not knows_all(settings.kafka.properties):
        return LogTree()  # an instance cannot write to the groups log either
    return run_with(brokers_of(settings, store), read_log_tree)


def brokers_of(settings: Settings, store: Store) -> ClusterClient:
    """Returns a client of the brokers in ``serve.bootstrap`` or, by default, of those in ZooKeeper. Raises
    :class:`BrokerError`."""
    from kafka_coord.kafka.authentication import broker_security
    from kafka_coord.kafka.brokers import bootstrap_servers
    from kafka_coord.kafka.cluster import ClusterClient

    properties, addresses = settings.kafka.properties, _addresses(settings)
    if addresses is None:
        return ClusterClient.of(bootstrap_servers(store, properties), properties)
    return ClusterClient(addresses, broker_security(properties))


def _addresses(settings: Settings) -> Sequence[Address] | None:
    """Returns the brokers in ``serve.bootstrap``, of whatever listeners, or ``None`` if it is not set."""
    from kafka_coord.kafka.metadata import bootstraps

    if settings.serve.bootstrap is None:
        return None
    given = bootstraps(settings.serve.bootstrap)
    return given.get("") or [address for some in given.values() for address in some]


def begin_where_allowed(settings: Settings, store: Store) -> ClusterRecord:
    """Returns the record of the tree that ``serve`` begins: where Kafka keeps its metadata, or where there is a groups
    log without a group. Raises :class:`TreeRefused` anywhere else, as for a mistyped chroot, and :class:`BrokerError`
    if no broker answers."""
    (kafka,) = store.read_many([GetData(layout.KAFKAS_ROOT)])
    if kafka is not None:
        return ClusterRecord.new(store, 1)
    found = read_log(settings, store) if settings.serve.bootstrap is not None else None
    if found is not None and found.terms and not found.groups:
        return ClusterRecord.new(store, found.generation + 1, kafka=found.kafka)
    if found is not None and found.claim is not None:
        raise TreeRefused(f"there is no coordination tree at {settings.zookeeper.hosts}: {_other_tree(found)}")
    raise TreeRefused(
        f"there is no coordination tree at {settings.zookeeper.hosts}: neither {layout.CLUSTER} nor Kafka's /brokers"
        " exists below it. If its chroot is mistyped, correct --zookeeper; if this cluster is new here, run kafka-coord"
        " init once, with --bootstrap unless Kafka uses this ZooKeeper; if a tree was lost, kafka-coord restore"
    )
