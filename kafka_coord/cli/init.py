"""``kafka-coord init``: begins a coordination tree, once; and decides whether ``serve`` may begin one by itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click
from msgspec import structs

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.output import note
from kafka_coord.errors import NoNode, TreeRefused
from kafka_coord.settings import Settings
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, change_record, finish_tree, make_tree, read_cluster_record
from kafka_coord.zk.store import GetData, Store

if TYPE_CHECKING:
    from kafka_coord.grouplog.trees import LogTree
    from kafka_coord.kafka.cluster import ClusterClient

_COMMAND = "init"


@click.command()
@click.option("--replace", metavar="ID", help="The lost tree to which the groups log belongs.")
@click.option("--epoch", type=click.IntRange(0), default=0, help="An epoch that the lost tree's coordinators have had.")
@click.option("--bootstrap", metavar="ADDRESSES", help="Brokers. [default: serve.bootstrap, or those in ZooKeeper]")
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
    if record is not None and record.making not in {"", _COMMAND}:
        raise TreeRefused(f"kafka-coord {record.making} was making {record.name}, and did not finish: run it again")
    if found.refuses(record) and found.claim is not None and replace != found.claim.tree:
        raise TreeRefused(_other_tree(found))
    if replace is not None and (found.claim is None or replace != found.claim.tree):
        known = found.claim.of_tree if found.claim is not None else "no tree"
        raise TreeRefused(f"the groups log belongs to {known}, not to tree {replace}")
    if record is None:
        record = ClusterRecord.new(store, found.generation + 1, kafka=found.kafka, making=_COMMAND)
        make_tree(store, record)
        return record
    if not found.refuses(record):
        return record if record.making else None
    begun = structs.replace(record, generation=found.generation + 1, making=_COMMAND, superseded_by="")
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
    from kafka_coord.kafka.metadata import bootstraps

    properties = settings.kafka.properties
    if settings.serve.bootstrap is None:
        return ClusterClient.of(bootstrap_servers(store, properties), properties)
    given = bootstraps(settings.serve.bootstrap)
    addresses = given.get("") or [address for some in given.values() for address in some]
    return ClusterClient(addresses, broker_security(properties))


def begin_where_allowed(settings: Settings, store: Store) -> ClusterRecord:
    """Returns the record of the tree that ``serve`` begins: where Kafka keeps its metadata, or where there is a groups
    log without a group. Raises :class:`TreeRefused` anywhere else, as for a mistyped chroot, and :class:`BrokerError`
    if no broker answers."""
    (kafka,) = store.read_many([GetData(layout.kafkas_own("/brokers"))])
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
