"""Writes man pages and completion scripts from the program's own commands.

A page has what ``--help`` prints: click calls the same methods of the formatter, and this one writes roff.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from kafka_coord import __version__
from kafka_coord.cli.main import cli

_NAME = "kafka-coord"
_COMPLETIONS = {"bash": _NAME, "zsh": f"_{_NAME}", "fish": f"{_NAME}.fish"}


class Roff(click.HelpFormatter):
    """Help as a man page. Only what :mod:`click` calls is overridden."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.write(f".SH SYNOPSIS\n.B {_escaped(prog)}\n{_escaped(args)}\n.SH DESCRIPTION\n")

    def write_heading(self, heading: str) -> None:
        self.write(f".SH {_escaped(heading).upper()}\n")

    def write_paragraph(self) -> None:
        return

    def write_text(self, text: str) -> None:
        for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
            first, _, rest = paragraph.lstrip(" \n").partition("\n")
            if first.strip() == "\b":  # click's mark of lines to be kept as they are
                self.write(f".PP\n.nf\n{_escaped(rest)}\n.fi\n")
            else:
                self.write(f".PP\n{_escaped(' '.join(paragraph.split()))}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        for term, meaning in rows:
            self.write(f".TP\n.B {_escaped(term)}\n{_escaped(meaning)}\n")


def _escaped(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    text = re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)
    return "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in text)


def commands(context: click.Context) -> Iterator[click.Context]:
    """The command of this context and all below it that help lists."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from commands(command.context_class(command, info_name=name, parent=context))


def page(context: click.Context, epoch: int) -> str:
    """The man page of a command; ``epoch`` is its date in seconds."""
    formatter = Roff()
    context.command.format_help(context, formatter)
    name = context.command_path.replace(" ", "-")
    day = datetime.fromtimestamp(epoch, UTC).date()
    summary = context.command.get_short_help_str(200).rstrip(".") or name
    title = f'.TH "{name.upper()}" 1 "{day}" "kafka_coord {__version__}" "User Commands"'
    see = "" if context.parent is None else f".SH SEE ALSO\n.BR {_escaped(_NAME)} (1)\n"
    return f"{title}\n.SH NAME\n{_escaped(name)} \\- {_escaped(summary)}\n{formatter.getvalue()}{see}"


def write(out: Path, epoch: int) -> list[Path]:
    """Writes ``man/man1/*.1`` and ``completions/<shell>/…``; returns the files."""
    written = []
    pages, completions = out / "man" / "man1", out / "completions"
    for context in commands(cli.make_context(_NAME, [], resilient_parsing=True)):
        written.append(pages / f"{context.command_path.replace(' ', '-')}.1")
        _put(written[-1], page(context, epoch))
    for shell, name in _COMPLETIONS.items():
        made = get_completion_class(shell)
        assert made is not None
        written.append(completions / shell / name)
        _put(written[-1], made(cli, {}, _NAME, "_KAFKA_COORD_COMPLETE").source())
    return written


def _put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
