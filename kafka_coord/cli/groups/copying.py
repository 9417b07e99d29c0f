"""``groups import`` and ``groups export``: copy committed offsets from and to the brokers' own groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import click

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.opening import note_left_out
from kafka_coord.cli.options import ANSWER_TIMEOUT_S, ANY_GROUP, output_option, timeout_option, who
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, NotFound, RequestRefused, SettingsError
from kafka_coord.groups.group import Document
from kafka_coord.settings import Settings
from kafka_coord.zk.brokers import Brokers, read_brokers
from kafka_coord.zk.store import Store

if TYPE_CHECKING:
    from kafka_coord.groups.copies import GroupCopy, KafkaOffsetStore, OwnOffsetStore
    from kafka_coord.groups.copies import Row as CopyRow

_COLUMNS = columns("group topic #partition #source_offset=SOURCE #target_offset=TARGET verdict")


def _copying_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that both commands share."""
    for option in (
        connection_options,
        output_option,
        timeout_option(ANSWER_TIMEOUT_S, "How long to retry while coordinators are moving, loading or not responding."),
        click.option("--execute", is_flag=True, help="Copy the offsets, and read them back to verify the copy."),
        click.option(
            "--dry-run", is_flag=True, help="Only show the offsets that would be written. This is the default."
        ),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Also replace later offsets at the target, which makes the group read records again.",
        ),
        click.option(
            "--all", "everything", is_flag=True, help="Copy all groups of the source that have committed offsets."
        ),
        click.argument("groups", type=ANY_GROUP, nargs=-1, metavar="[GROUP…]"),
    ):
        command = option(command)
    return command


@click.command("import")
@click.option(
    "--from-kafka", "chosen", is_flag=True, help="Copy from __consumer_offsets, through the brokers' own listener."
)
@_copying_options
def import_command(**given: Any) -> None:
    """Copy committed offsets from the brokers' own groups into groups that instances coordinate.

    The command writes to the groups log, or to ZooKeeper if the group is managed. Without --execute, it only shows the
    changes. Groups that have members at the instances are skipped, and without --overwrite, later offsets at the target
    are kept. It is safe to run the command again.

    \b
    kafka-coord groups import --from-kafka delays
    kafka-coord groups import --from-kafka --all --execute
    """
    _copy("--from-kafka", to_kafka=False, **given)


@click.command("export")
@click.option(
    "--to-kafka", "chosen", is_flag=True, help="Copy to __consumer_offsets, through the brokers' own listener."
)
@_copying_options
def export_command(**given: Any) -> None:
    """Copy the committed offsets of the instances' groups to the brokers, so that their clients can go back.

    The command also copies managed groups, whose offsets are in ZooKeeper. Without --execute, it only shows the
    changes. Groups that have members at the brokers are skipped, and without --overwrite, later offsets at the target
    are kept. It is safe to run the command again.

    \b
    kafka-coord groups export --to-kafka delays
    kafka-coord groups export --to-kafka --all --execute
    """
    _copy("--to-kafka", to_kafka=True, **given)


def _copy(
    place: str,
    *,
    to_kafka: bool,
    chosen: bool,
    groups: tuple[str, ...],
    everything: bool,
    overwrite: bool,
    dry_run: bool,
    execute: bool,
    timeout_s: float,
    output: Format,
) -> None:
    from kafka_coord.groups.copies import CopyVerdict, compare, copy, with_namesakes

    if not chosen:
        raise SettingsError(f"add {place}, which is the only supported choice")
    if bool(groups) is everything:
        raise SettingsError("either name groups or give --all" if everything else "name groups, or give --all")
    if dry_run and execute:
        raise SettingsError("give either --dry-run or --execute")
    settings = current_settings()
    with open_store(settings) as store:
        kafka, own = _offset_stores(store, settings, timeout_s)
        source, target = (own, kafka) if to_kafka else (kafka, own)
        chosen_groups = groups or with_namesakes(store, source.groups())
        copies = compare(source, target, chosen_groups, kafka.existing, note, overwrite=overwrite)
        if groups and (without := [one.group for one in copies if not one.rows and not one.problem]):
            raise NotFound(f"{source.name} have no committed offsets for {', '.join(without)}; nothing was changed")
        problems = {one.group: one.problem for one in copies if one.problem and (one.rows or groups)}
        if execute:
            problems |= copy(target, copies, note)
    documents = [CopyDocument.of(one, row) for one in copies for row in one.rows]
    show(output, documents, [Section("offsets", _COLUMNS, [one.row() for one in documents])])
    for one in copies:
        if one.warning and one.rows:
            note(f"group {one.group}: {one.warning}")
    ahead = sum(row.verdict is CopyVerdict.AHEAD for one in copies for row in one.rows)
    if ahead:
        note(f"skipped {counted(ahead, 'partition')}, because the target is ahead; --overwrite also copies these")
    if problems:
        reasons = "; ".join(f"group {group}: {problem}" for group, problem in sorted(problems.items()))
        raise RequestRefused(f"{counted(len(problems), 'group')} {'not copied' if execute else 'refused'}: {reasons}")
    if not execute:
        written = sum(len(one.wanted()) for one in copies)
        note(f"nothing was changed; --execute writes {counted(written, 'offset')}")


def _offset_stores(store: Store, settings: Settings, timeout_s: float) -> tuple[KafkaOffsetStore, OwnOffsetStore]:
    from kafka_coord.groups.copies import KafkaOffsetStore, OwnOffsetStore, ZooKeeperOffsetStore
    from kafka_coord.groups.instances import read_instances

    properties = settings.kafka.properties
    instances = read_instances(store).addresses
    if not instances:
        raise BrokerError(
            "no instance serves Kafka clients; start the instances with 'kafka-coord serve --listen-kafka …'"
        )
    given = properties.get("bootstrap.servers") or _own_listeners(store, properties, instances)
    kafka = KafkaOffsetStore("the brokers", given, properties, timeout_s)
    if named := set(instances.values()) & set(kafka.addresses()):
        raise BrokerError(
            f"the brokers at {given} return addresses of instances ({', '.join(sorted(named))}), so this is the "
            "listener for instances. Give the brokers' own listener with --kafka-property bootstrap.servers=HOST:PORT"
        )
    log = KafkaOffsetStore("the instances", ",".join(instances.values()), properties, timeout_s)
    return kafka, OwnOffsetStore(log, ZooKeeperOffsetStore(store, timeout_s, who()))


def _own_listeners(store: Store, properties: Mapping[str, str], instances: Mapping[int, str]) -> str:
    """Returns the brokers' addresses on a listener of their own, one that does not lead to instances."""
    from kafka_coord.kafka.brokers import choose

    brokers = read_brokers(store) or Brokers()
    for one in brokers.unreadable:
        note_left_out(one)
    theirs = set(instances.values())
    for_instances = {one.name for broker in brokers.live for one in broker.listeners if one.address in theirs}
    own = tuple(
        replace(broker, listeners=tuple(one for one in broker.listeners if one.name not in for_instances))
        for broker in brokers.live
    )
    addresses, problem = choose(own, properties.get("security.protocol", "PLAINTEXT").upper(), None)
    if not addresses:
        raise BrokerError(problem or "no live broker is registered")
    return ",".join(addresses)


class CopyDocument(Document, frozen=True):
    """``kafka-coord groups import --from-kafka GROUP -o json``"""

    group: str
    topic: str
    partition: int
    source_offset: int
    target_offset: int | None
    """``null`` if none is stored there."""
    verdict: str
    """``copy``, ``same``, ``target is ahead``, ``no such partition`` or ``refused``."""

    @classmethod
    def of(cls, one: GroupCopy, row: CopyRow) -> Self:
        return cls(
            group=one.group,
            topic=row.partition.topic,
            partition=row.partition.partition,
            source_offset=row.source.offset,
            target_offset=row.target.offset if row.target else None,
            verdict="refused" if one.problem else row.verdict,
        )
