"""Builds HTML and SVG. Escapes all text that is not :class:`Markup`."""

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
