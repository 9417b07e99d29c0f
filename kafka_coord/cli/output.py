"""Prints results: tables for humans; json, yaml, csv and tsv for programs."""

from __future__ import annotations

import csv
import io
import logging
import re
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec import json, to_builtins

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_JSON_FORM = methodcaller("to_json")
"""Encodes sets of partitions and times."""
Row = Mapping[str, Any]


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    TSV = "tsv"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``key`` is its name in json, yaml, csv and tsv. ``title`` is the heading in tables (default: the key
    in capitals)."""

    key: str
    title: str = ""
    right: bool = False

    @property
    def heading(self) -> str:
        return self.title or self.key.upper().replace("_", "-")

    @property
    def is_prose(self) -> bool:
        """Whether a cell may continue in another line of the terminal."""
        return self.key in _PROSE and not self.right


@dataclass(frozen=True, slots=True)
class Section:
    """The rows under one heading. ``empty`` is the text that a table shows if there are no rows."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str = "none"


def columns(written: str) -> tuple[Column, ...]:
    """Parses keys separated by spaces. ``#`` before a key makes a column of right-aligned numbers, and
    ``=TITLE`` after it sets the heading."""
    found = []
    for one in written.split():
        key, _, title = one.removeprefix("#").partition("=")
        found.append(Column(key, title, right=one.startswith("#")))
    return tuple(found)


def show(output: Format, document: Any, sections: Sequence[Section], *, summary: Sequence[str] = ()) -> None:
    """Prints a result to standard output: ``document`` as json or yaml, ``sections`` as a table, csv or tsv. Tables are
    preceded by the lines of ``summary``."""
    if output is Format.JSON:
        click.echo(json.format(json.encode(document, enc_hook=_JSON_FORM), indent=2).decode())
    elif output is Format.YAML:
        click.echo(yaml_of(document), nl=False)
    elif output in LINES:
        for line in LINES[output](sections):
            click.echo(line)
    elif sys.stdout.isatty():
        console = terminal()
        for line in summary:
            console.print(clean(line), markup=False)
        for at, section in enumerate(sections):
            if at or summary:
                console.print()
            console.print(rich_table(section, console.width))
    else:
        for line in plain_lines(sections, summary):
            click.echo(line)


def yaml_of(document: Any) -> str:
    import yaml

    builtins = to_builtins(document, enc_hook=_JSON_FORM)
    return yaml.safe_dump(builtins, sort_keys=False, allow_unicode=True)


def tsv_lines(sections: Sequence[Section]) -> Iterable[str]:
    """Yields a heading and one line per row. If there are several sections, each begins with ``# name``, and a blank
    line separates them."""
    return _separated(sections, "\t".join)


def csv_lines(sections: Sequence[Section]) -> Iterable[str]:
    """Like :func:`tsv_lines`, but quotes the cells that need it."""
    return _separated(sections, _csv_line)


LINES: Mapping[Format, Callable[[Sequence[Section]], Iterable[str]]] = {Format.CSV: csv_lines, Format.TSV: tsv_lines}
"""The formats for programs that print the cells of tables."""


def _separated(sections: Sequence[Section], line: Callable[[Iterable[str]], str]) -> Iterable[str]:
    for at, section in enumerate(sections):
        if at:
            yield ""
        if len(sections) > 1:
            yield f"# {section.name}"
        yield line(column.key for column in section.columns)
        for row in section.rows:
            yield line(_cell_of_sheet(row.get(column.key)) for column in section.columns)


def _cell_of_sheet(value: Any) -> str:
    from kafka_coord.model.names import no_formula

    if value in (None, ""):
        return ""
    return cell(value) if isinstance(value, int | float) else no_formula(cell(value))


def _csv_line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def plain_lines(sections: Sequence[Section], summary: Sequence[str] = ()) -> Iterable[str]:
    """Yields aligned columns for pipes, without colour, borders or truncation."""
    yield from (clean(line) for line in summary)
    for at, section in enumerate(sections):
        if at or summary:
            yield ""
        if not section.rows:
            yield f"{section.name}: {section.empty}"
            continue
        cells = [[column.heading for column in section.columns]]
        cells += [[cell(row.get(column.key)) for column in section.columns] for row in section.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            aligned = (
                text.rjust(width) if column.right else text.ljust(width)
                for text, width, column in zip(line, widths, section.columns, strict=True)
            )
            yield "  ".join(aligned).rstrip()


def rich_table(section: Section, width: int) -> Table:
    """Returns a table that is no wider than a terminal of ``width`` columns, if that is possible (:func:`fitted`)."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if not section.rows:
        table = Table(box=None, show_header=False)
        table.add_row(Text(f"{section.name}: {section.empty}", style="dim"))
        return table
    shown, rows, left_out = fitted(section, width)
    caption = Text(f"not shown at this width: {', '.join(left_out)}", style="dim") if left_out else None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
    for column in shown:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.heading, justify=justify, overflow="fold", no_wrap=not column.is_prose)
    for row in rows:
        cells = zip(shown, row, strict=True)
        table.add_row(*(Text(text, style=_STYLES.get(text, "") if c.key in _STYLED else "") for c, text in cells))
    return table


_EDGES, _GAP = 2, 3
_PROSE = frozenset(
    {
        *("acl", "change", "endpoints", "found", "fact", "gained", "lost", "message", "note", "owned", "partitions"),
        *("pending", "reason", "software", "stopping", "subscription", "target", "todo", "value", "waiting_for"),
        *("wanted", "what", "why"),
    }
)
"""The columns whose cells may continue in another line, if they are no numbers."""
_LEAST_PROSE, _LEAST_NAME = 16, 12
_LEAST = (
    *("incarnation", "software", "protocol", "address", "registered", "rack", "capacity", "mode", "rejoin_grace_ms"),
    *("zxid", "release", "lag_s_by", "coordinator", "unreadable", "epoch", "generation", "channel", "client", "pid"),
    *(
        "assignor",
        "pending",
        "held",
        "heard",
        "since",
        "host",
        "holding",
        "start_offset",
        "lag_unknown",
        "worst_lag",
        "kind",
    ),
    *("stopped_after", "members", "partitions", "moved", "up", "request", "by", "gone", "stopping"),
)
"""The columns that a narrow terminal leaves out, the least important first."""
_TIME = re.compile(r"(\d{4})-(\d\d-\d\d)T(\d\d:\d\d)(:\d\d)(?:\.\d+)?Z")


def fitted(section: Section, width: int, today: str = "") -> tuple[list[Column], list[list[str]], list[str]]:
    """Returns the columns and cells to show on a terminal of ``width`` columns, and the headings of the columns that do
    not fit. Times become short first. Then prose takes several lines, and names longer than a third of the width are
    shortened in the middle. Then the least important columns go, and at last names become shorter still. ``today`` is
    the date, as ``2026-11-29`` (default: the real one)."""
    shown = list(section.columns)
    cells = {one.key: [cell(row.get(one.key)) for row in section.rows] for one in shown}

    def needed(limits: Mapping[str, int]) -> int:
        widths = [min(limits.get(one.key, width), _widest(one, cells)) for one in shown]
        return _EDGES + sum(widths) + _GAP * (len(widths) - 1)

    if needed({}) > width:
        today = today or datetime.now(UTC).date().isoformat()
        cells = {key: [_short_time(text, today) for text in texts] for key, texts in cells.items()}
    names = [one.key for one in shown if not one.right and not one.is_prose]
    limits = dict.fromkeys(names, max(_LEAST_NAME, width // 3))
    limits |= {one.key: _LEAST_PROSE for one in shown if one.is_prose}
    left_out = []
    for key in _LEAST:
        if needed(limits) <= width:
            break
        left_out += [one.heading for one in shown if one.key == key and one is not shown[0]]
        shown = [one for one in shown if one.key != key or one is shown[0]]
    for limit in range(width // 3, _LEAST_NAME - 1, -1):
        if needed(limits) > width:
            limits |= {key: min(limit, limits[key]) for key in names}
    for one in sorted(shown, key=lambda one: one.is_prose):  # first names, then prose, take what is left
        if one.key in limits:
            limits[one.key] = min(_widest(one, cells), limits[one.key])
            limits[one.key] += max(0, min(width - needed(limits), _widest(one, cells) - limits[one.key]))
    return shown, _shortened(shown, cells, limits), left_out


def _widest(column: Column, cells: Mapping[str, Sequence[str]]) -> int:
    return max(len(column.heading), *map(len, cells[column.key]))


def _shortened(
    shown: Sequence[Column], cells: Mapping[str, Sequence[str]], limits: Mapping[str, int]
) -> list[list[str]]:
    def short(column: Column, text: str) -> str:
        limit = limits.get(column.key, len(text))
        parts = text.split(" ") if column.is_prose else [text]
        return " ".join(in_the_middle(part, limit) for part in parts)

    by_column = [[short(one, text) for text in cells[one.key]] for one in shown]
    return [list(row) for row in zip(*by_column, strict=True)]


def in_the_middle(name: str, limit: int) -> str:
    """Shortens a name in its middle, because names differ at their beginning and their end."""
    if len(name) <= limit:
        return name
    tail = (limit - 1) // 2
    return f"{name[: limit - 1 - tail]}…{name[len(name) - tail :]}"


def _short_time(text: str, today: str) -> str:
    """Shortens a time: ``12:00:07Z`` if it is today, ``11-28 12:00Z`` in the same year, otherwise ``2025-11-28``."""
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    year, day, minute, second = found.groups()
    if f"{year}-{day}" == today:
        return f"{minute}{second}Z"
    return f"{day} {minute}Z" if today.startswith(year) else f"{year}-{day}"


def stacked(rows: Iterable[Mapping[str, Any]], width: int, lead: Sequence[str], then: str) -> Iterable[str]:
    """Yields each row as a paragraph, for a terminal that is too narrow for columns of sentences: the ``lead`` columns,
    and below them ``then``. Words stay whole, unless they are longer than a line, and a command to copy is one line of
    the output, however long."""
    for row in rows:
        cells = [cell(row.get(key)) for key in lead]
        first, *rest = _paragraph("  ".join(cells), width, "  ")
        yield from (first.replace(cells[0], click.style(cells[0], fg=_STYLES.get(cells[0])), 1), *rest)
        said, of_command, command = cell(row.get(then)).partition(_COMMAND)
        yield from _paragraph(f"  → {said}{of_command[:1]}", width, "    ") if row.get(then) else ()
        if of_command:
            yield f"    {of_command[2:]}{command}"


_COMMAND = ": kafka-coord "


def _paragraph(text: str, width: int, indent: str) -> list[str]:
    most = width - len(indent)
    words = " ".join(in_the_middle(one, most) for one in text.split(" "))
    return textwrap.wrap(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def terminal() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


_STYLED = {"state", "severity", "holding"}
_STYLES = {
    "Stable": "green",
    "Rebalancing": "yellow",
    "Paused": "magenta",
    "Empty": "dim",
    "Dead": "red",
    "ok": "green",
    "info": "cyan",
    "warning": "yellow",
    "error": "red",
    "stopping": "yellow",
}


def cell(value: Any) -> str:
    """Formats a value for a table or tsv. A missing value is ``-``."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(cell(one) for one in value) or "-"
    if isinstance(value, Mapping):
        return " ".join(f"{clean(str(k))}[{cell(v)}]" for k, v in value.items()) or "-"
    return clean(str(value))


def clean(text: str) -> str:
    """Escapes control characters, so that the content of consumers' znodes cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == " " else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    return f"\\u{{{ord(character):x}}}" if unicodedata.category(character) != "Zs" else " "


ACTIONS = columns("at by action reason change")
"""The columns of an operator action (:class:`~kafka_coord.groups.group.ActionDocument`)."""


def duration(ms: int | None) -> str | None:
    """Returns ``850 ms``, ``4.2 s``, ``3 min 20 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    if ms is None:
        return None
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def note(text: str) -> None:
    """Prints a remark on standard error, so that it never mixes with piped data."""
    click.echo(clean(text), err=True)


class _WarningsAsNotes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Prints this project's warnings as notes, for commands that stay: other commands report problems themselves."""
    handler = _WarningsAsNotes(logging.WARNING)
    logging.getLogger("kafka_coord").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("kafka_coord").removeHandler(handler)


def paced(every_s: float, say: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that passes its arguments on to ``say``, at most once in that time."""
    last = time.monotonic()

    def say_sometimes(*figures: int) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            say(*figures)

    return say_sometimes


def note_earlier(last: int, **found: int) -> None:
    """Says how many earlier entries of each kind are not shown, if only the ``last`` ones of those found are."""
    for what, count in found.items():
        if count > last:
            note(f"{count - last} earlier {what} are not shown; --last {count} shows all")
