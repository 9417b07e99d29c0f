"""``kafka-coord watch``: shows groups, owners, lag and commands live."""

from __future__ import annotations

import itertools
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import click

from kafka_coord.cli.connection import connection_options
from kafka_coord.cli.opening import lag_service, open_cluster
from kafka_coord.cli.options import ANY_GROUP, output_option
from kafka_coord.cli.output import (
    LINES,
    Format,
    Section,
    clean,
    columns,
    duration,
    plain_lines,
    rich_table,
    terminal,
    yaml_of,
)
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import StoreUnavailable
from kafka_coord.groups.directory import (
    DETAILED,
    SORTS,
    GroupDirectory,
    Overview,
    OwnerRow,
    age_order,
    read_overview,
    selected,
)
from kafka_coord.groups.group import (
    NOT_MEASURED,
    Document,
    Gone,
    GroupRow,
    LagSeconds,
    LagSecondsBy,
    LagSum,
    LagTotal,
    LogRanges,
    Time,
    WaitingCommand,
    WorstLag,
    encode,
    iso_time,
)

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text


class WatchedGroup(GroupRow, kw_only=True, frozen=True):
    """A group. The fields about the lag are ``null`` if the group was not read in detail"""

    lag: LagSum
    worst_lag: WorstLag
    lag_unknown: int | None  # type: ignore[assignment]
    gone: Gone
    lag_s: LagSeconds
    lag_s_by: LagSecondsBy

    @classmethod
    def of(cls, row: GroupRow, total: LagTotal | None) -> Self:
        return cls(**(row.fields() | (total.fields() if total is not None else NOT_MEASURED)))


class WatchDocument(Document, frozen=True):
    """``kafka-coord watch -o json``: one frame"""

    at: Time | None
    coordinator: int | None
    epoch: int | None
    undecided: str | None
    groups: list[WatchedGroup]
    owners: list[OwnerRow]
    commands: list[WaitingCommand]
    left_out: int
    """The number of groups that were not read in detail."""
    lag_note: str | None

    @classmethod
    def of(cls, frame: Overview) -> Self:
        elected = frame.cluster.coordinator
        return cls(
            at=Time.of(round(time.time() * 1000)),
            coordinator=elected.broker_id if elected else None,
            epoch=elected.epoch if elected else None,
            undecided=frame.cluster.undecided or None,
            groups=[WatchedGroup.of(row, frame.lags.get(row.group)) for row in frame.groups],
            owners=list(frame.owners),
            commands=list(frame.waiting),
            left_out=frame.left_out,
            lag_note=frame.note or None,
        )


_GROUPS = columns("group state #generation=GEN #members #partitions #pending #lag #lag_s lag_s_by=BY #gone")
_OWNERS = columns("group consumer owned stopping #pending #lag #lag_s lag_s_by=BY #gone")
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
@click.option(
    "--sort", type=click.Choice(list(SORTS)), default="lag-s", show_default=True, help="The order, as in groups list."
)
@output_option
@connection_options
def watch(groups: tuple[str, ...], interval: float, count: int | None, no_lag: bool, sort: str, output: Format) -> None:
    """Show groups, owners, lag and unacknowledged commands live, until Ctrl-C.

    Without a terminal, the command prints the updates one after another. -o json prints one object per line.

    \b
    kafka-coord watch
    kafka-coord watch delays --interval 0.5
    kafka-coord watch delays --count 1 -o json
    """
    with open_cluster() as (instances, brokers):
        directory = GroupDirectory(instances)
        for group in groups:
            directory.find(group).require(group)
        log_ranges = None if no_lag else brokers.known_ranges
        read = partial(read_overview, instances, groups, log_ranges, lag_service(instances))
        furthest = Furthest(directory, None if groups else log_ranges)
        frames = _frames(lambda: ordered(read(furthest.names()), sort), interval, count)
        if output is Format.TABLE and sys.stdout.isatty():
            _live(frames)
        else:
            for at, frame in enumerate(frames):
                _print(output, frame, first=at == 0)


class Furthest:
    """The groups with lag, the largest first. They are measured every :data:`_EVERY_S` seconds, or less often if that
    takes long. Without ``log_ranges``, there are none."""

    def __init__(self, directory: GroupDirectory, log_ranges: LogRanges | None) -> None:
        self._directory, self._log_ranges = directory, log_ranges
        self._names: list[str] = []
        self._next_at = 0.0

    def names(self) -> Sequence[str]:
        began = time.monotonic()
        if self._log_ranges is not None and began >= self._next_at:
            self._names = [row.group for row in self._directory.list(self._log_ranges).rows if row.lag]
            self._next_at = time.monotonic() + max(_EVERY_S, _REST * (time.monotonic() - began))
        return self._names


_EVERY_S, _REST = 10.0, 20


def _frames(read: Callable[[], Overview], interval: float, count: int | None) -> Iterator[Overview | str]:
    """Yields a frame for each update, or an error message while ZooKeeper does not respond."""
    for number in range(count) if count is not None else itertools.count():
        if number:
            time.sleep(interval)
        try:
            yield read()
        except StoreUnavailable as error:
            yield f"ZooKeeper does not respond: {error}"


def ordered(frame: Overview, sort: str) -> Overview:
    """Returns the frame with its groups in this order, and the owners likewise, or else as their groups."""
    groups = selected((row.with_lag(frame.lags.get(row.group)) for row in frame.groups), sort=sort)
    places = {row.group: at for at, row in enumerate(groups)}

    def rank(row: OwnerRow) -> tuple[Any, ...]:
        age = age_order(row.lag_s) if sort == "lag-s" else ()
        return (*age, -(row.lag or 0)) if sort.startswith("lag") else (places.get(row.group, len(places)),)

    return replace(frame, groups=tuple(groups), owners=tuple(sorted(frame.owners, key=rank)))


def _live(frames: Iterator[Overview | str]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=terminal(), screen=True, auto_refresh=False) as live:
        for frame in frames:
            if isinstance(frame, str):
                live.update(Text(clean(frame), style="red"), refresh=True)
                continue
            live.update(_fitting(frame, live.console), refresh=True)


def _fitting(frame: Overview, console: Console) -> Group:
    """Returns as much of the frame as fills the screen. Below each table that does not fit stands how many rows are
    missing."""
    from rich.console import Group
    from rich.text import Text

    sections = _sections(frame)

    def with_rows(most: Sequence[int]) -> Group:
        shown: list[Text | Table] = [Text(_sentence(frame), style="bold")]
        if frame.note:
            shown.append(Text(clean(frame.note), style="yellow"))
        for one, rows in zip(sections, most, strict=True):
            if rows or not one.rows:
                shown.append(rich_table(replace(one, rows=one.rows[:rows]), console.width))
            if rows < len(one.rows):
                shown.append(Text(f" {len(one.rows) - rows} more {one.name} below", style="yellow"))
        return Group(*shown)

    def overflows(most: Sequence[int]) -> bool:
        return len(console.render_lines(with_rows(most))) > console.height

    longest = max(len(one.rows) for one in sections)
    alike = bisect_left(range(1, longest + 1), True, key=lambda most: overflows(_at_most(sections, most)))
    most = _at_most(sections, alike)
    for at, one in enumerate(sections):  # what some tables do not need is for the others

        def more(rows: int, at: int = at) -> bool:
            return overflows([*most[:at], rows, *most[at + 1 :]])

        most[at] += bisect_left(range(most[at] + 1, len(one.rows) + 1), True, key=more)
    return with_rows(most)


def _at_most(sections: Sequence[Section], most: int) -> list[int]:
    return [min(most, len(one.rows)) for one in sections]


def _print(output: Format, frame: Overview | str, *, first: bool) -> None:
    document = {"error": frame} if isinstance(frame, str) else WatchDocument.of(frame)
    if output is Format.JSON:
        click.echo(encode(document).decode())
    elif output is Format.YAML:
        click.echo("---\n" + yaml_of(document), nl=False)
    elif isinstance(frame, str):
        click.echo(f"# {frame}" if output in LINES else frame)
    else:
        notes = [frame.note] if frame.note else []
        if output in LINES:
            lines = [*(f"# {clean(one)}" for one in notes), *LINES[output](_sections(frame))]
        else:
            lines = list(plain_lines(_sections(frame), [_sentence(frame), *notes]))
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
    left_out = f"; owners and lag of {frame.left_out} of them are not shown: name up to {DETAILED} groups"
    return (
        f"{iso_time(round(time.time() * 1000))}  {who}; {counted(len(frame.groups), 'group')}"
        f"{left_out if frame.left_out else ''}{paused}"
    )


def _sections(frame: Overview) -> list[Section]:
    groups = [row.row(**_lag_cells(frame.lags.get(row.group))) for row in frame.groups]
    owners = [
        {
            "group": row.group,
            "consumer": row.consumer or "(none)",
            "owned": str(row.owned),
            "stopping": str(row.stopping) if row.stopping else None,
            "pending": row.pending,
            **_lag_cells(row),
        }
        for row in frame.owners
    ]
    now_ms = round(time.time() * 1000)
    commands = [
        one.row(waits_for=duration(one.waited_ms(now_ms)), partitions=str(one.partitions)) for one in frame.waiting
    ]
    return [
        Section("groups", _GROUPS, groups),
        Section("owners", _OWNERS, owners),
        Section("commands", _COMMANDS, commands, empty="no unacknowledged commands"),
    ]


def _lag_cells(total: LagTotal | OwnerRow | None) -> dict[str, Any]:
    if total is None:
        return {"lag": None, "gone": None}
    unknown = f"{total.lag} + {total.lag_unknown} unknown" if total.lag is not None else "unknown"
    return total.row(lag=unknown if total.lag_unknown else total.lag)
