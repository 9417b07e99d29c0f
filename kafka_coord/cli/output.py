"""Prints results: tables for humans; json, yaml and tsv for programs."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import methodcaller
from typing import TYPE_CHECKING, Any

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
    TSV = "tsv"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``key`` is its name in json, yaml and tsv. ``title`` is the heading in tables (default: the key in
    capitals)."""

    key: str
    title: str = ""
    right: bool = False

    @property
    def heading(self) -> str:
        return self.title or self.key.upper().replace("_", "-")


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
    """Prints a result to standard output: ``document`` as json or yaml, ``sections`` as a table or tsv. Tables are
    preceded by the lines of ``summary``."""
    if output is Format.JSON:
        click.echo(json.format(json.encode(document, enc_hook=_JSON_FORM), indent=2).decode())
    elif output is Format.YAML:
        click.echo(yaml_of(document), nl=False)
    elif output is Format.TSV:
        for line in tsv_lines(sections):
            click.echo(line)
    elif sys.stdout.isatty():
        console = terminal()
        for line in summary:
            console.print(clean(line), markup=False)
        for at, section in enumerate(sections):
            if at or summary:
                console.print()
            console.print(rich_table(section))
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
    for at, section in enumerate(sections):
        if at:
            yield ""
        if len(sections) > 1:
            yield f"# {section.name}"
        yield "\t".join(column.key for column in section.columns)
        for row in section.rows:
            yield "\t".join("" if row.get(c.key) in (None, "") else cell(row[c.key]) for c in section.columns)


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


def rich_table(section: Section) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if not section.rows:
        table = Table(box=None, show_header=False)
        table.add_row(Text(f"{section.name}: {section.empty}", style="dim"))
        return table
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in section.columns:
        table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
    for row in section.rows:
        cells = ((column.key, cell(row.get(column.key))) for column in section.columns)
        table.add_row(*(Text(text, style=_STYLES.get(text, "") if key in _STYLED else "") for key, text in cells))
    return table


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


def note_earlier(last: int, **found: int) -> None:
    """Says how many earlier entries of each kind are not shown, if only the ``last`` ones of those found are."""
    for what, count in found.items():
        if count > last:
            note(f"{count - last} earlier {what} are not shown; --last {count} shows all")
