"""``kafka-coord audit``: audits ZooKeeper's transaction log, or the groups log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import UNSET, UnsetType

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Column, Format, Section, columns, note, show
from kafka_coord.errors import NoNode, VerificationFailed
from kafka_coord.monitor.audit import EventHistory, Selection, parse_partition
from kafka_coord.monitor.audit import audit as run_audit
from kafka_coord.monitor.audit.report import AuditRule, EventDocument, F, Findings

_FINDINGS = columns("when zxid rule group what who")
_LOG_FINDINGS = columns("when #partition #offset rule group what")
_EVENTS = columns("when group what why who")
_FIGURES = columns("checked #count")
_RULES = columns("rule meaning")


@click.command()
@click.argument("directories", nargs=-1, metavar="[DIR...]", type=click.Path(path_type=Path))
@click.option("--chroot", default="", metavar="PATH", help="The chroot in the connect string, such as /kafka.")
@click.option(
    "--running",
    is_flag=True,
    help="Report groups that have not reached their target as warnings instead of violations. Use it if the cluster "
    "was running when the log was copied.",
)
@click.option("--partition", metavar="TOPIC-N", help="Print the history of a partition, with the reason for each move.")
@click.option(
    "--group",
    default="",
    help="Print the history of a group. With --partition or --consumer, print only events of this group.",
)
@click.option("--consumer", default="", help="Print the history of a consumer.")
@click.option(
    "--group-log",
    is_flag=True,
    help="Audit the groups log in Kafka, which stores the groups and offsets of stock clients.",
)
@click.option("--rules", is_flag=True, help="Only list the rules; with --group-log, those of the groups log.")
@connection_options
@output_option
def audit(
    directories: tuple[Path, ...],
    chroot: str,
    running: bool,
    group_log: bool,
    rules: bool,
    partition: str | None,
    group: str,
    consumer: str,
    output: Format,
) -> None:
    """Prove from ZooKeeper's transaction log that no partition ever had two owners.

    DIR is the dataDir (or dataLogDir) of a ZooKeeper server, or a copy of it. If you give the directories of several
    servers of an ensemble, gaps in one log are filled from the others. The command replays and checks every write in
    order, and exits with code 10 if it finds a violation. It only reads files and does not contact a server.

    With --group-log, the command proves from the groups log that two instances never wrote a group at the same time,
    and that no committed offset moved backwards. It reads the log from the brokers registered in ZooKeeper (or from
    bootstrap.servers), and compares it with the znodes below /consumers/kafka.

    \b
    kafka-coord audit /var/lib/zookeeper
    kafka-coord audit zk1 zk2 zk3 --chroot /kafka -o json
    kafka-coord audit /var/lib/zookeeper --group delays --partition flights-3
    kafka-coord audit --group-log -z zk1:2181
    kafka-coord audit --rules
    """
    if rules:
        _list_rules(output, group_log)
        return
    if group_log:
        if directories or chroot or running or partition or group or consumer:
            raise click.UsageError("--group-log cannot be combined with DIR or with options for ZooKeeper's log.")
        _audit_groups_log(output)
        return
    if not directories:
        raise click.UsageError("Missing argument 'DIR...' (or --group-log).")
    history = EventHistory(Selection(group, consumer, parse_partition(partition) if partition else None))
    with_history = bool(partition or group or consumer)
    report = run_audit(directories, chroot=chroot, running=running, watch=history if with_history else None)
    events = [event.document() for event in history.events] if with_history else UNSET
    if with_history and not any(event.group for event in history.events):
        note("the log has nothing about what --group, --consumer and --partition name")
    checked = "{transactions} transactions, {grants} partition grants, {commands} commands, {commits} commits"
    _show(output, report, _FINDINGS, checked, events)


def _list_rules(output: Format, group_log: bool) -> None:
    from kafka_coord.monitor.log_audit import LogRule

    rows = [{"rule": one.value, "meaning": one.meaning} for one in (LogRule if group_log else AuditRule)]
    show(output, rows, [Section("rules", _RULES, rows)])


def _audit_groups_log(output: Format) -> None:
    from kafka_coord.cli.opening import note_left_out
    from kafka_coord.grouplog.trees import stored_term
    from kafka_coord.kafka.brokers import bootstrap_servers
    from kafka_coord.kafka.cluster import ClusterClient
    from kafka_coord.monitor.log_audit import audit_groups_log
    from kafka_coord.zk import layout

    settings = current_settings()
    properties = settings.kafka.properties
    with open_store(settings) as store:

        def newest_term(partition: int) -> int:
            try:
                path = layout.log_partition(partition)
                return stored_term(path, store.get(path))
            except NoNode:
                return -1

        cluster = ClusterClient.of(bootstrap_servers(store, properties, note_left_out), properties)
        report = audit_groups_log(cluster, newest_term)
    checked = "{records} records of {partitions} partitions, {terms} terms, {commits} commits"
    _show(output, report, _LOG_FINDINGS, checked)


def _show(
    output: Format,
    report: Findings[F],
    columns: Sequence[Column],
    checked: str,
    events: list[EventDocument] | UnsetType = UNSET,
) -> None:
    """Prints the report. Raises :class:`VerificationFailed` if it contains violations."""
    verdict = ("{violations} violations, {warnings} warnings in " + checked).format_map(Counter(report.figures))
    figures = [{"checked": name.replace("_", " "), "count": count} for name, count in report.figures.items()]
    document = report.document(events)
    sections = [
        Section("violations", columns, [one.row() for one in document.violations]),
        Section("warnings", columns, [one.row() for one in document.warnings]),
        Section("checked", _FIGURES, figures),
    ]
    if events is not UNSET:
        sections.insert(0, Section("history", _EVENTS, [one.row() for one in events]))
    show(output, document, sections, summary=[verdict])
    if not report.clean:
        raise VerificationFailed(verdict)
