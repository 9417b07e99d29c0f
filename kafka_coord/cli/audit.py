"""``kafka-coord audit``."""

from __future__ import annotations

from pathlib import Path

import click

from kafka_coord.cli.options import output_option
from kafka_coord.cli.output import Column, Format, Section, show
from kafka_coord.errors import VerificationFailed
from kafka_coord.monitor.audit import Report, Selection, Story, parse_partition
from kafka_coord.monitor.audit import audit as run_audit

_FINDINGS = (
    Column("when"),
    Column("zxid"),
    Column("rule"),
    Column("group"),
    Column("what"),
    Column("who"),
)
_EVENTS = (Column("when"), Column("group"), Column("what"), Column("why"), Column("who"))
_FIGURES = (Column("checked"), Column("count", right=True))


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--chroot", default="", metavar="PATH", help="The chroot in the connect string, such as /kafka.")
@click.option(
    "--running", is_flag=True, help="Only warn about groups that have not reached their target when the log ends."
)
@click.option("--partition", metavar="TOPIC-N", help="Tell the history of a partition: why did it move?")
@click.option("--group", default="", help="Tell the history of a group, or only of this group.")
@click.option("--consumer", default="", help="Tell the history of a consumer.")
@output_option
def audit(
    directories: tuple[Path, ...],
    chroot: str,
    running: bool,
    partition: str | None,
    group: str,
    consumer: str,
    output: Format,
) -> None:
    """Prove from ZooKeeper's transaction log that no partition ever had two owners. Exit code 10 if it shows otherwise.

    DIR is the dataDir (or dataLogDir) of a ZooKeeper server, or a copy of it; the servers of an ensemble may be given
    together, and make up for what one of them missed. Every write is replayed in its order and checked. Reads files
    only: no server is asked.

    \b
    kafka-coord audit /var/lib/zookeeper
    kafka-coord audit zk1 zk2 zk3 --chroot /kafka -o json
    kafka-coord audit /var/lib/zookeeper --group delays --partition flights-3
    """
    story = Story(Selection(group, consumer, parse_partition(partition) if partition else None))
    told = bool(partition or group or consumer)
    report = run_audit(directories, chroot=chroot, running=running, watch=story if told else None)
    document, sections = report.to_json(), _sections(report)
    if told:
        events = [event.to_json() for event in story.events]
        document["history"] = events
        sections.insert(0, Section("history", _EVENTS, events))
    show(output, document, sections, summary=[_verdict(report)])
    if not report.clean:
        raise VerificationFailed(_verdict(report))


def _sections(report: Report) -> list[Section]:
    figures = [{"checked": name.replace("_", " "), "count": count} for name, count in report.figures.items()]
    return [
        Section("violations", _FINDINGS, [found.to_json() for found in report.violations]),
        Section("warnings", _FINDINGS, [found.to_json() for found in report.warnings]),
        Section("checked", _FIGURES, figures),
    ]


def _verdict(report: Report) -> str:
    figures = report.figures
    checked = f"{figures.get('transactions', 0)} transactions, {figures.get('grants', 0)} grants of partitions"
    return (
        f"{figures.get('violations', 0)} violations, {figures.get('warnings', 0)} warnings in {checked},"
        f" {figures.get('commands', 0)} commands, {figures.get('commits', 0)} commits"
    )
