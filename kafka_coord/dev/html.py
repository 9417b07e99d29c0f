"""Builds self-contained HTML pages for the reports of the demo and of the benchmarks: markup and SVG, the style sheet,
light and dark, for screen and print, and the page around a report's content."""

from __future__ import annotations

import html
from collections.abc import Sequence


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """Returns an element. ``class_`` becomes ``class``, and ``stroke_width`` becomes ``stroke-width``. Attributes and
    children that are None are left out, and children that are not :class:`Markup` are escaped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(child if isinstance(child, Markup) else _escaped(child) for child in children if child)
    if not inner and name in {"br", "meta", "rect", "line", "path", "circle", "polyline", "col"}:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inner}</{name}>")


def join(*parts: str) -> Markup:
    """Concatenates parts, escaping those that are not :class:`Markup`."""
    return Markup("".join(part if isinstance(part, Markup) else _escaped(part) for part in parts))


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> Markup:
    """Returns a table that scrolls if it is too wide. ``heads`` lists each heading with the class of its column, or
    with ``""``."""
    header = tag("tr", *(tag("th", head, class_=kind or None) for head, kind in heads))
    body = [
        tag("tr", *(tag("td", cell, class_=kind or None) for cell, (_, kind) in zip(row, heads, strict=True)))
        for row in rows
    ]
    return scroll(tag("table", tag("thead", header), tag("tbody", *body)))


def scroll(wide: Markup) -> Markup:
    """Lets an element scroll if it is too wide for the page."""
    return tag("div", wide, class_="scroll")


def section(title: str, about: str, *parts: str) -> Markup:
    """Returns a section of the page with its heading and a sentence or two about it."""
    return tag("section", tag("h2", title), tag("p", about, class_="note"), *parts)


def _escaped(text: str) -> str:
    """Escapes the text, and replaces control characters, which are meaningless or illegal in a page, with U+FFFD."""
    return html.escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text))


def _text(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


STYLE = (
    """
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --card: #fffffd; --ink: #16181b; --soft: #5a5f66; --faint: #e6e6e1; --edge: #dcdcd5;
  --good: #12743f; --good-soft: #def3e6; --bad: #b3261e; --bad-soft: #fbe4e1; --none: #b9bcc0;
  --c0: #2a78d6; --c1: #d9602a; --c2: #158a5f; --c3: #7357c9; --c4: #b07a00; --c5: #c9508a; --c6: #0f8b98;
  --c7: #7d6a56;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131416; --card: #1b1d20; --ink: #ecedee; --soft: #a2a7ae; --faint: #2a2d31; --edge: #32363b;
    --good: #6fd79c; --good-soft: #15351f; --bad: #ff8a80; --bad-soft: #45201d; --none: #565b61;
    --c0: #4a90e6; --c1: #e0743f; --c2: #2aa876; --c3: #9a83ec; --c4: #c9961c; --c5: #dc6fa2; --c6: #35a9b5;
    --c7: #a08c76;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 28px 72px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 8px; text-wrap: balance; }
h2 { font-size: 19px; letter-spacing: -0.005em; margin: 0 0 4px; }
p { margin: 0 0 12px; max-width: 78ch; }
.lead { font-size: 16.5px; color: var(--soft); margin-bottom: 24px; }
.note { color: var(--soft); margin-bottom: 14px; }
.badge { display: inline-block; border-radius: 999px; padding: 3px 13px; font-weight: 600; font-size: 14px;
  margin-bottom: 14px; }
.badge.good { background: var(--good-soft); color: var(--good); }
.badge.bad { background: var(--bad-soft); color: var(--bad); }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 22px 24px 20px;
  margin: 18px 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px;
  margin: 0 0 18px; }
.figure { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 13px 16px 12px; }
.figure b { display: block; font-size: 24px; line-height: 1.25; font-weight: 650; letter-spacing: -0.015em; }
.figure span { color: var(--soft); font-size: 13px; line-height: 1.35; display: block; }
.scroll { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; font-family: inherit; }
svg.chart { min-width: 760px; }
.smalls { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 14px 18px;
  margin-top: 16px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 10px; font-size: 13.5px; color: var(--soft); }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
text { fill: var(--ink); font-size: 11.5px; }
.tick, .label { fill: var(--soft); font-variant-numeric: tabular-nums; }
.small-title { font-weight: 600; }
.grid { stroke: var(--faint); stroke-width: 1; }
.event { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; opacity: 0.5; }
.marker { fill: var(--ink); }
.marker-text { fill: var(--card); font-size: 10.5px; font-weight: 650; }
.in-bar { fill: #fff; font-size: 10.5px; font-weight: 600; pointer-events: none; }
.reign { fill: var(--faint); stroke: var(--edge); }
.in-reign { fill: var(--soft); font-size: 10.5px; pointer-events: none; }
.span:hover rect { filter: brightness(1.12); }
.cross { stroke: var(--bad); stroke-width: 2.4; fill: none; stroke-linecap: round; }
.area { opacity: 0.24; } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.area.total { fill: var(--soft); } .line.total { stroke: var(--ink); }
.touch { fill: transparent; } .touch:hover { fill: var(--ink); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12.5px; padding: 6px 14px 6px 0;
  border-bottom: 1px solid var(--edge);
  white-space: nowrap; vertical-align: bottom; }
td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--faint); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.wide { min-width: 220px; }
td.bar-cell { width: 22%; }
.moves { color: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
.good { color: var(--good); } .bad { color: var(--bad); }
td.mark { width: 30px; font-weight: 700; }
.number { display: inline-block; min-width: 20px; height: 20px; line-height: 20px; border-radius: 10px;
  background: var(--ink); color: var(--card);
  text-align: center; font-size: 11.5px; font-weight: 650; }
.meter { display: block; height: 7px; border-radius: 4px; background: var(--c0); min-width: 2px; margin-top: 7px; }
footer { color: var(--soft); font-size: 13px; margin-top: 28px; }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media print { body { background: #fff; } section, .figure { break-inside: avoid; } }
"""
    + "".join(
        f".c{n}.bar, .c{n}.area, i.c{n} {{ fill: var(--c{n}); background: var(--c{n}); }}\n"
        f".c{n}.line {{ stroke: var(--c{n}); }}\n"
        for n in range(8)
    )
    + ".c-none.area { fill: var(--none); }\n.c-none.line { stroke: var(--none); }\n"
    + "i.c-none { background: var(--none); }\n"
)


def page(title: str, *sections: str) -> str:
    """Returns the whole HTML file, which includes the style sheet and loads no other files."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', tag('main', *sections)), lang='en')}\n"
