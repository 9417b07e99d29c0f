"""Builds the HTML page around a report's content."""

from __future__ import annotations

from kafka_coord.dev.html.markup import Markup, tag
from kafka_coord.dev.html.style import STYLE


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
