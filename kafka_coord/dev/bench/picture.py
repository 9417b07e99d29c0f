"""Writes the report of a benchmark as an HTML page with bar charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kafka_coord.dev.bench.report import BenchReport, Drawing, Table
from kafka_coord.dev.html import Markup, join, page, table, tag

_WIDTH, _LEFT, _RIGHT = 1120.0, 380.0, 90.0
_ROW, _BAR = 24.0, 16.0
_LOGARITHMIC_FROM = 30.0
"""If the largest value is at least this many times the smallest, the bars are logarithmic."""
_VERDICTS = {True: ("met", "good"), False: ("missed", "bad"), None: ("not measured", "")}


def picture(report: BenchReport) -> str:
    return page(
        f"kafka-coord bench {report.bench}",
        tag("h1", f"kafka-coord bench {report.bench}"),
        *(tag("p", sentence, class_="lead") for sentence in report.setup.sentences()),
        *(tag("p", note, class_="note") for note in report.notes),
        _bars(report),
        *(_section(one) for one in report.tables if one.rows),
    )


def _bars(report: BenchReport) -> Markup:
    if not report.bars:
        return Markup("")
    rows = [
        (tag("span", _VERDICTS[bar.met][0], class_=_VERDICTS[bar.met][1] or None), bar.name, bar.wanted, bar.found)
        for bar in report.bars
    ]
    heads = [("", ""), ("bar", ""), ("wanted", ""), ("found", "")]
    return tag("section", tag("h2", "Bars"), table(heads, rows))


def _section(found: Table) -> Markup:
    columns = list(found.rows[0])
    numeric = {name for name in columns if isinstance(found.rows[0][name], int | float)}
    heads = [(name.replace("_", " "), "n" if name in numeric else "") for name in columns]
    rows = [[_told(row.get(name)) for name in columns] for row in found.rows]
    drawn = (part for drawing in found.drawings for part in _drawn(found, drawing))
    return tag("section", tag("h2", found.name), *drawn, table(heads, rows))


def _told(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _drawn(found: Table, drawing: Drawing) -> Sequence[Markup]:
    rows = [row for row in found.rows if isinstance(row.get(drawing.value), int | float) and row[drawing.value] > 0]
    if not rows:
        return ()
    ends = [max(row[drawing.value], row.get(drawing.most) or 0) for row in rows]
    smallest, largest = min(row[drawing.value] for row in rows), max(ends)
    logarithmic = largest >= _LOGARITHMIC_FROM * smallest

    def length(value: float) -> float:
        room = _WIDTH - _LEFT - _RIGHT
        if not logarithmic:
            return float(room * value / largest)
        share: float = math.log(value / smallest * 2) / math.log(largest / smallest * 2)
        return room * max(0.01, share)

    parts: list[Markup] = []
    first = drawing.labels[0]
    colours: dict[object, str] = {}
    for at, (row, end) in enumerate(zip(rows, ends, strict=True)):
        y = at * _ROW
        colour = colours.setdefault(row[first], f"c{len(colours) % 8}")
        label = ", ".join(_told(row[name]) for name in drawing.labels)
        told = f"{_told(row[drawing.value])}" + (f" ({_told(row[drawing.most])})" if drawing.most else "")
        x = _LEFT + length(end)
        parts.append(tag("text", label, x=_LEFT - 8, y=y + _BAR - 3, class_="label", text_anchor="end"))
        parts.append(
            tag("rect", x=_LEFT, y=y, width=length(row[drawing.value]), height=_BAR, rx=2.5, class_=f"bar {colour}")
        )
        if drawing.most and row.get(drawing.most):
            parts.append(tag("line", x1=x, x2=x, y1=y, y2=y + _BAR, class_="event"))
        parts.append(tag("text", told, x=x + 6, y=y + _BAR - 3, class_="tick"))
    title = drawing.value.replace("_", " ") + (f" ({drawing.most.replace('_', ' ')})" if drawing.most else "")
    scale = "; lengths are logarithms" if logarithmic else ""
    svg = tag("svg", *parts, viewBox=f"0 0 {_WIDTH:g} {len(rows) * _ROW:g}", class_="chart", role="img")
    return (tag("p", join(title, scale), class_="note"), svg)
