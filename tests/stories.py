"""Stories: transcripts of what is said to a machine, and of everything that it does about it.

A ``.story`` file holds several. ``= ...`` begins one and is its name; ``#`` begins a comment. Every other line is a
command, such as ``m1 joins instance=i1``. After ``->`` stands what happened, or on the indented lines below if it does
not fit. A story fails if anything else happens. ``pytest --rewrite -n 0`` writes what happens into the file: read the
difference before you keep it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

_WIDTH = 120


class Stage:
    """Carries out commands: ``m1 joins first generation=3`` calls ``joins("m1", "first", generation="3")``, as the
    first of its first two words that is the name of a method. What happens is put into :attr:`said`."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._shown = ""

    def shown(self) -> str:
        """The state, which is added in brackets to what has happened if it has changed."""
        return ""

    def does(self, command: str) -> list[str]:
        """Returns what happened, with the number of times if it happened several times in a row."""
        words = [word.partition("=") for word in shlex.split(command)]
        named = {key: value for key, equals, value in words if equals}
        plain = [key for key, equals, _ in words if not equals]
        verb = next(word for word in plain[:2] if callable(getattr(self, word, None)))
        plain.remove(verb)
        getattr(self, verb)(*plain, **named)
        said, self.said = self.said, []
        before, self._shown = self._shown, self.shown()
        if self._shown != before:
            said.append(f"[{self._shown}]")
        counted = [(what, len([*all_of_it])) for what, all_of_it in groupby(said)]
        return [what if count == 1 else f"{what} ({count} times)" for what, count in counted]


@dataclass(frozen=True, slots=True)
class Story:
    file: Path
    name: str
    text: str

    def __str__(self) -> str:
        return self.name

    def played(self, stage: Stage) -> str:
        lines = []
        for line in self.text.splitlines():
            if line.startswith(" "):
                continue  # what happened when it was written
            if not line or line[0] in "=#":
                lines.append(line)
                continue
            command = line.partition("->")[0].rstrip()
            happened = stage.does(command)
            whole = f"{command}  -> {'; '.join(happened)}"
            lines += [whole] if len(whole) <= _WIDTH and happened else [command, *(f"    {one}" for one in happened)]
        return "\n".join([*lines, ""])

    def check(self, stage: Stage, config: pytest.Config) -> None:
        found = self.played(stage)
        if config.getoption("rewrite"):
            self.file.write_text(self.file.read_text().replace(self.text, found))
        else:
            assert found == self.text


def stories(file: Path) -> Iterator[Story]:
    """Yields the stories of a file, each with the text up to the next one."""
    for text in re.split(r"^(?==)", file.read_text(), flags=re.MULTILINE)[1:]:
        yield Story(file, text.partition("\n")[0].strip("= "), text)


def of(*files: Path) -> pytest.MarkDecorator:
    """Parametrizes a test with the stories of the files."""
    return pytest.mark.parametrize("story", [story for file in files for story in stories(file)], ids=str)
