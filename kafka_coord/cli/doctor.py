"""``kafka-coord doctor``: checks the installation."""

from __future__ import annotations

import sys

import click

from kafka_coord.cli.connection import connection_options, current_settings
from kafka_coord.cli.opening import open_cluster
from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Column, Format, Section, show, stacked, terminal
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import VerificationFailed
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.next_records import next_records_of
from kafka_coord.monitor.doctor import LagSight, Severity, examine
from kafka_coord.monitor.doctor.findings import FindingDocument

_COLUMNS = (Column("severity"), Column("check"), Column("what"), Column("todo", "WHAT TO DO"))
_TABLE_WIDTH = 160
"""A narrower terminal shows paragraphs, because the columns of sentences would be too narrow to read or copy."""


@click.command()
@click.option("--strict", is_flag=True, help="Also exit with code 10 for warnings.")
@click.option("--all", "everything", is_flag=True, help="Also list checks without findings, as all other formats do.")
@output_option
@connection_options
def doctor(strict: bool, everything: bool, output: Format) -> None:
    """Check ZooKeeper, brokers, instances and every group, and suggest remedies. The exit code is 10 on any error.

    The command checks ZooKeeper's versions, limits, ACLs and clock; registered and reachable brokers; the coordinator
    and the instances that could replace it; the listeners and the groups log for Kafka clients; groups that exist at
    two coordinators; stale registrations, ledgers and channels; unanswered commands and requests; pauses; unreadable
    znodes; lag; and offsets that operators set in the last day. It does not change anything.

    \b
    kafka-coord doctor --all
    kafka-coord doctor -o json --strict
    """
    zookeeper = current_settings().zookeeper
    with open_cluster() as (instances, brokers):
        findings = list(
            examine(
                instances.store,
                zookeeper.hosts,
                session_timeout_ms=zookeeper.session_timeout_ms,
                tls=zookeeper.tls,
                kafka=instances.properties,
                lag=LagSight(
                    brokers.known_ranges,
                    LagService(
                        next_records=next_records_of(instances.store, instances.properties),
                        warning_ms=current_settings().serve.lag_warning_ms,
                    ),
                ),
            )
        )
    documents = [FindingDocument.of(one) for one in findings]
    shown = [
        one.row() for one in documents if everything or output is not Format.TABLE or one.severity is not Severity.OK
    ]
    width = terminal().width
    if output is Format.TABLE and sys.stdout.isatty() and shown and width < _TABLE_WIDTH:
        click.echo("\n".join(stacked(shown, width, ("severity", "check", "what"), "todo")))
    else:
        section = Section("findings", _COLUMNS, shown, empty="everything is in order (--all lists the checks)")
        show(output, documents, [section])
    counts = {severity: sum(one.severity is severity for one in findings) for severity in Severity}
    bad = counts[Severity.ERROR] + (counts[Severity.WARNING] if strict else 0)
    if bad:
        raise VerificationFailed(
            f"{counted(counts[Severity.ERROR], 'error')}, {counted(counts[Severity.WARNING], 'warning')}"
        )
