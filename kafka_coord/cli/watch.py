"""``kafka-coord watch``: shows groups, owners, lag and commands live."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.opening import open_cluster
from kafka_coord.cli.options import ANY_GROUP, output_option
from kafka_coord.cli.output import (
    Format,
    Section,
    clean,
    columns,
    duration,
    plain_lines,
    rich_table,
    terminal,
    tsv_lines,
)
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import StoreUnavailable
from kafka_coord.model import GroupKind
from kafka_coord.monitor.client_groups.asking import Instances
from kafka_coord.monitor.client_groups.groups import read_client_group
from kafka_coord.monitor.documents import command_document, group_document, iso_time
from kafka_coord.monitor.groups import LogRanges, kind_of
from kafka_coord.monitor.offsets import LagTotal
from kafka_coord.monitor.operate import require_group
from kafka_coord.monitor.overview import Overview, read_overview

_GROUPS = columns("group state #generation=GEN #members #partitions #pending #lag")
_OWNERS = columns("group consumer owned stopping #pending #lag")
_COMMANDS = columns("group consumer command waits_for=WAITS partitions")


@click.command()
@click.argument("groups", type=ANY_GROUP, nargs=-1, metavar="[GROUP…]")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two updates.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N updates. [default: until Ctrl-C]")
@click.option("--no-lag", is_flag=True, help="Do not query the brokers or show the lag.")
@output_option
@connection_options
def watch(groups: tuple[str, ...], interval: float, count: int | None, no_lag: bool, output: Format) -> None:
    """Show groups, owners, lag and unacknowledged commands live, until Ctrl-C.

    Without a terminal, the command prints the updates one after another. -o json prints one object per line.

    \b
    kafka-coord watch
    kafka-coord watch delays --interval 0.5
    kafka-coord watch delays --count 1 -o json
    """
    with open_cluster() as (instances, brokers):
        for group in groups:
            if kind_of(instances.store, group) is GroupKind.MANAGED:
                require_group(instances.store, group)
            else:
                read_client_group(instances, group)
        log_ranges = None if no_lag else brokers.known_ranges
        frames = _frames(instances, groups, log_ranges, interval, count)
        if output is Format.TABLE and sys.stdout.isatty():
            _live(frames)
        else:
            for at, frame in enumerate(frames):
                _print(output, frame, first=at == 0)


def _frames(
    instances: Instances, groups: tuple[str, ...], log_ranges: LogRanges | None, interval: float, count: int | None
) -> Iterator[Overview | str]:
    """Yields a frame for each update, or an error message while ZooKeeper does not respond."""
    for number in range(count) if count is not None else itertools.count():
        if number:
            time.sleep(interval)
        try:
            yield read_overview(instances, groups, log_ranges)
        except StoreUnavailable as error:
            yield f"ZooKeeper does not respond: {error}"


def _live(frames: Iterator[Overview | str]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=terminal(), screen=True, auto_refresh=False) as live:
        for frame in frames:
            if isinstance(frame, str):
                live.update(Text(clean(frame), style="red"), refresh=True)
                continue
            parts: list[Any] = [Text(_sentence(frame), style="bold")]
            parts += [rich_table(section) for section in _sections(frame, limit=live.console.height)]
            if frame.note:
                parts.append(Text(clean(frame.note), style="yellow"))
            live.update(Group(*parts), refresh=True)


def _print(output: Format, frame: Overview | str, *, first: bool) -> None:
    document = {"error": frame} if isinstance(frame, str) else _document(frame)
    if output is Format.JSON:
        click.echo(json.dumps(document, ensure_ascii=False))
    elif output is Format.YAML:
        import yaml

        click.echo("---\n" + yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
    elif isinstance(frame, str):
        click.echo(f"# {frame}" if output is Format.TSV else frame)
    else:
        lines = (
            tsv_lines(_sections(frame)) if output is Format.TSV else plain_lines(_sections(frame), [_sentence(frame)])
        )
        click.echo("\n".join([*([] if first else [""]), *lines]))
    sys.stdout.flush()


def _sentence(frame: Overview) -> str:
    elected = frame.cluster.coordinator
    who = (
        f"broker {elected.broker_id} coordinates, epoch {elected.epoch}"
        if elected
        else "an instance is elected, but its znode cannot be read"
    )
    if frame.cluster.undecided:
        who = f"NO WORKING COORDINATOR: {frame.cluster.undecided}"
    paused = "; all groups are paused" if frame.cluster.pause else ""
    return f"{iso_time(round(time.time() * 1000))}  {who}; {counted(len(frame.cluster.groups), 'group')}{paused}"


def _sections(frame: Overview, limit: int | None = None) -> list[Section]:
    groups = [
        group_document(row) | {"lag": _lag(frame.lags[row.group]) if row.group in frame.lags else None}
        for row in frame.groups
    ]
    owners = [
        {
            "group": row.group,
            "consumer": row.consumer or "(none)",
            "owned": str(row.owned),
            "stopping": str(row.stopping) if row.stopping else None,
            "pending": row.pending,
            "lag": _lag(row.lag),
        }
        for row in frame.owners
    ]
    now_ms = round(time.time() * 1000)
    commands = [
        command_document(one) | {"waits_for": duration(one.age_ms(now_ms)), "partitions": str(one.partitions)}
        for one in frame.waiting
    ]
    most = None
    if limit is not None:  # the busiest groups come first, because the screen may not have room for all
        most = max(3, limit // 3 - 3)
        groups.sort(key=lambda row: row["group"] not in frame.lags)
    return [
        Section("groups", _GROUPS, groups[:most]),
        Section("owners", _OWNERS, owners[:most]),
        Section("commands", _COMMANDS, commands[:most], empty="no unacknowledged commands"),
    ]


def _lag(total: LagTotal) -> str:
    if not total.unknown:
        return str(total.lag or 0)
    return f"{total.lag} + {total.unknown} unknown" if total.lag else "unknown"


def _lag_fields(total: LagTotal | None) -> dict[str, int | None]:
    if total is None:
        return {"lag": None, "lag_unknown": None}
    return {"lag": total.lag or 0, "lag_unknown": total.unknown}


def _document(frame: Overview) -> dict[str, Any]:
    elected = frame.cluster.coordinator
    return {
        "at": iso_time(round(time.time() * 1000)),
        "coordinator": elected.broker_id if elected else None,
        "epoch": elected.epoch if elected else None,
        "undecided": frame.cluster.undecided or None,
        "groups": [group_document(row) | _lag_fields(frame.lags.get(row.group)) for row in frame.groups],
        "owners": [
            {
                "group": row.group,
                "consumer": row.consumer,
                "owned": row.owned.to_json(),
                "stopping": row.stopping.to_json(),
                "pending": row.pending,
                **_lag_fields(row.lag),
            }
            for row in frame.owners
        ],
        "commands": [command_document(one) for one in frame.waiting],
        "lag_note": frame.note or None,
    }
