"""``groups reset-offsets``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kafka_coord.cli.connection import current_settings, open_store
from kafka_coord.cli.groups.kinds import any_group_argument, kind_of, kind_option
from kafka_coord.cli.groups.partitions import all_partitions, parse_scope
from kafka_coord.cli.lag import BrokerLog
from kafka_coord.cli.options import who
from kafka_coord.cli.output import Column, Format, Section, note, number, show
from kafka_coord.cli.requests import asked, asking_options, reason_option
from kafka_coord.errors import NotFound, RequestRefused, SettingsError
from kafka_coord.model import PartitionSet, Request, RequestType, TopicPartition
from kafka_coord.monitor.client_groups.asking import Instances
from kafka_coord.monitor.client_groups.changes import write_offsets
from kafka_coord.monitor.client_groups.groups import read_client_group
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.groups import GroupKind, snapshot_of
from kafka_coord.monitor.offsets import holders, partitions_of, read_committed
from kafka_coord.monitor.reset import ResetRow, Rule, RuleKind, compute, duration_ms, read_csv, time_ms

IN_ONE_REQUEST = 2_000
"""Partitions in one request: the coordinator writes each request as one multi, which must fit ZooKeeper's limit."""

_COLUMNS = (
    Column("group"),
    Column("topic"),
    number("partition"),
    number("current_offset", "CURRENT"),
    number("new_offset", "NEW-OFFSET"),
    Column("owner"),
    Column("note"),
)


@dataclass(frozen=True, slots=True)
class _Resettable:
    """The data of a group of either kind that a reset needs. ``known`` are its partitions, ``owners`` maps them to
    their owners; ``write`` sets offsets and returns a sentence about the result.
    """

    cluster: Cluster
    committed: Mapping[TopicPartition, int]
    known: PartitionSet
    owners: Mapping[TopicPartition, str]
    write: Callable[[Mapping[TopicPartition, int]], str]


@click.command("reset-offsets")
@any_group_argument
@kind_option
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1-3]", help="A topic, or some of its partitions.")
@click.option("--all-topics", is_flag=True, help="Every topic the group subscribes to or has offsets for.")
@click.option("--to-earliest", is_flag=True, help="To the first record in the log.")
@click.option("--to-latest", is_flag=True, help="To the end: only new records.")
@click.option("--to-current", is_flag=True, help="To the committed offset, or to the end if there is none.")
@click.option("--to-offset", type=click.IntRange(0, (1 << 63) - 1), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="N records forward, or back if N is negative.")
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="To the first record that is not older than this: PT1H30M, P7D."
)
@click.option("--to-datetime", metavar="TIME", help="To the first record from then on: 2026-01-31T12:00:00.000 (UTC).")
@click.option("--from-file", metavar="FILE", help="To the offsets of a CSV file, as --export writes it.")
@click.option("--dry-run", is_flag=True, help="Only show the changes. This is the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--export", is_flag=True, help="Print topic,partition,offset lines instead of a table.")
@reason_option
@asking_options
def reset_offsets(
    group: str,
    kind: str | None,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    by_duration: str | None,
    to_datetime: str | None,
    from_file: str | None,
    dry_run: bool,
    execute: bool,
    export: bool,
    reason: str,
    timeout_s: float,
    output: Format,
) -> None:
    """Set committed offsets by one of the rules. Shows the changes; --execute makes them.

    Refused while a member owns one of the partitions: stop the consumers, or evict them. Offsets outside the log
    become its nearest end, as with Kafka's own tool.

    \b
    kafka-coord groups reset-offsets delays --topic flights --to-earliest
    kafka-coord groups reset-offsets delays --topic flights:0,3-5 --shift-by -100 --execute
    kafka-coord groups reset-offsets delays --all-topics --by-duration PT2H --execute
    kafka-coord groups reset-offsets delays --all-topics --to-current --export > offsets.csv
    kafka-coord groups reset-offsets delays --from-file offsets.csv --execute
    """
    if dry_run and execute:
        raise SettingsError("--dry-run and --execute exclude each other")
    rule = _rule(
        {
            RuleKind.TO_EARLIEST: to_earliest or None,
            RuleKind.TO_LATEST: to_latest or None,
            RuleKind.TO_CURRENT: to_current or None,
            RuleKind.TO_OFFSET: to_offset,
            RuleKind.SHIFT_BY: shift_by,
            RuleKind.FROM_FILE: from_file,
        },
        by_duration,
        to_datetime,
    )
    explicit = _read_file(from_file, group) if from_file is not None else None
    if explicit is not None and (topics or all_topics):
        raise SettingsError("--from-file names the partitions itself: leave out --topic and --all-topics")
    scope = parse_scope(topics, all_topics=all_topics) if explicit is None else None
    settings = current_settings()
    with open_store(settings) as store:
        found = _resettable(Instances(store, settings.kafka.properties), group, kind, reason, timeout_s)
        there = all_partitions(found.cluster.topics)
        if explicit is not None:
            wanted = PartitionSet.of(explicit)
            _require_existing(wanted, there)
        elif scope is not None:
            wanted = scope.choose(there if topics else found.known & there, group)
        with BrokerLog(store, settings) as log:
            rows = compute(rule, wanted, found.committed, log, explicit)
        if execute:
            _execute(group, found, rows)
    _show(output, group, found.owners, rows, export=export)
    if not execute and not export:
        note("nothing was changed; add --execute to make the changes")


def _resettable(instances: Instances, group: str, kind: str | None, reason: str, timeout_s: float) -> _Resettable:
    store = instances.store
    if kind_of(store, group, kind) is GroupKind.CLIENT_ASSIGNED:
        client, cluster = read_client_group(instances, group), read_cluster(store)
        return _Resettable(
            cluster,
            client.committed,
            client.partitions(cluster.topics),
            client.held,
            lambda offsets: f"done: {write_offsets(instances, group, offsets, timeout_s)}",
        )

    def ask_for(offsets: Mapping[TopicPartition, int]) -> str:
        """Sends the offsets to the coordinator. Only it can ensure that no start happens at the same time."""
        request = Request(RequestType.RESET_OFFSETS, group=group, offsets=offsets, reason=reason, by=who())
        answer = asked(store, request, timeout_s)
        return f"{answer['result']}: {answer['message']}"

    cluster, snapshot = snapshot_of(store, group)
    committed = read_committed(store, group, cluster.topics)
    return _Resettable(
        cluster,
        committed.offsets,
        partitions_of(snapshot.observation, committed),
        {tp: owner for tp, (owner, _) in holders(snapshot.observation.ledgers.values()).items()},
        ask_for,
    )


def _rule(given: Mapping[RuleKind, Any], by_duration: str | None, to_datetime: str | None) -> Rule:
    chosen = [
        Rule(kind, value if isinstance(value, int) and not isinstance(value, bool) else 0)
        for kind, value in given.items()
        if value is not None
    ]
    if by_duration is not None:
        chosen.append(Rule(RuleKind.TO_TIME, max(0, round(time.time() * 1000) - duration_ms(by_duration))))
    if to_datetime is not None:
        chosen.append(Rule(RuleKind.TO_TIME, time_ms(to_datetime)))
    if len(chosen) != 1:
        raise SettingsError(
            f"{'no rule' if not chosen else f'{len(chosen)} rules'} given: give one of --to-earliest, --to-latest, "
            "--to-current, --to-offset, --shift-by, --by-duration, --to-datetime, --from-file"
        )
    return chosen[0]


def _read_file(name: str, group: str) -> dict[TopicPartition, int]:
    try:
        if name == "-":
            return read_csv(sys.stdin, group, "standard input")
        return read_csv(Path(name).read_text(encoding="utf-8").splitlines(), group, name)
    except OSError as error:
        raise SettingsError(f"--from-file {name!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"--from-file {name!r} is not text") from None


def _require_existing(wanted: PartitionSet, there: PartitionSet) -> None:
    missing = wanted - there
    if missing:
        raise NotFound(f"the file names partitions that do not exist: {missing}; nothing was changed")


def _execute(group: str, found: _Resettable, rows: tuple[ResetRow, ...]) -> None:
    owned = {tp: found.owners[tp] for row in rows if (tp := TopicPartition(row.topic, row.partition)) in found.owners}
    if owned:
        owners = ", ".join(sorted(set(owned.values())))
        raise RequestRefused(
            f"{PartitionSet.of(owned)} of group {group!r} owned by {owners}; nothing was changed. "
            "Stop these consumers first (or evict them)"
        )
    done = 0
    for part in _parts(rows):
        try:
            sentence = found.write({TopicPartition(row.topic, row.partition): row.new_offset for row in part})
        except RequestRefused as error:
            raise RequestRefused(f"{error}" + (f"; {done} partitions were reset before" if done else "")) from error
        done += len(part)
        note(sentence)


def _parts(rows: tuple[ResetRow, ...]) -> Iterator[tuple[ResetRow, ...]]:
    return (rows[at : at + IN_ONE_REQUEST] for at in range(0, len(rows), IN_ONE_REQUEST))


def _show(
    output: Format, group: str, owners: Mapping[TopicPartition, str], rows: tuple[ResetRow, ...], *, export: bool
) -> None:
    if export:
        for row in rows:
            click.echo(f"{row.topic},{row.partition},{row.new_offset}")
        return
    documents = [
        {
            "group": group,
            "topic": row.topic,
            "partition": row.partition,
            "current_offset": row.current_offset,
            "new_offset": row.new_offset,
            "owner": owners.get(TopicPartition(row.topic, row.partition)),
            "note": row.note or None,
        }
        for row in rows
    ]
    show(output, documents, [Section("offsets", _COLUMNS, documents)])
