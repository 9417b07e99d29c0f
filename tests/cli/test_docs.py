"""Tests that every command in the documents and help texts exists, and that output has the documented shapes."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kafka_coord.cli.main import cli
from kafka_coord.cli.serve import serve
from kafka_coord.model import PartitionSet, StopFetcher
from kafka_coord.monitor.audit.report import AuditRule
from kafka_coord.monitor.log_audit import LogRule
from kafka_coord.settings import keys, variable_of
from tests.cli.commands import OPERATIONS, commands, promised
from tests.cli.running import Run
from tests.monitor.written import Tree

ROOT = Path(__file__).parents[2]
_INLINE = re.compile(r"`(kafka-coord [^`]+)`")
_PLACEHOLDERS = {"GROUP": "delays", "CONSUMER": "c1", "TOPIC": "flights"}


def typed_in_documents() -> Iterator[tuple[str, str]]:
    for document in sorted({*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")}):
        text = document.read_text()
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                at = line.find("kafka-coord ")
                if at in {0} or "$(kafka-coord " in line:
                    yield document.name, line[at:]
        for line in _INLINE.findall(text):
            yield document.name, line


def typed_in_help() -> Iterator[tuple[str, str]]:
    for path in commands():
        command: Any = cli
        for name in path:
            command = command.get_command(click.Context(command), name)
        for line in (command.help or "").splitlines():
            found = re.search(r"(?:^|: +)(kafka-coord .*)", line.strip())
            if found:
                yield " ".join(path), found.group(1)


def parse(line: str) -> None:
    """Parses a command line as the program would, without running it. Raises :class:`click.UsageError`."""
    words = shlex.split(re.split(r" (?:[|#]|>+) | {2,}#|\)", line.replace("…", "x"))[0])
    words = [_PLACEHOLDERS.get(word, word) for word in words]
    name = words.pop(0)
    ctx: click.Context = click.Context(cli, info_name=name)
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        _, found, _ = command.resolve_command(ctx, words)
        assert found is not None
        command, ctx = found, click.Context(found, info_name=words.pop(0), parent=ctx)
    if isinstance(command, click.Group) and not words:
        return  # the line names only a group of commands
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(ctx.info_name, words, parent=ctx.parent)


@pytest.mark.parametrize(("where", "line"), sorted({*typed_in_documents(), *typed_in_help()}), ids=lambda x: x[:60])
def test_every_command_line_in_documents_and_help_parses(where: str, line: str) -> None:
    parse(line)


def test_many_command_lines_are_found_and_wrong_ones_are_refused() -> None:
    assert len(list(typed_in_documents())) > 40
    assert len(list(typed_in_help())) > 30
    with pytest.raises(click.UsageError):
        parse("kafka-coord groups describe delays --no-such-option")
    with pytest.raises(click.UsageError):
        parse("kafka-coord groups nonsense")


def test_every_setting_is_an_option_of_serve_or_in_the_table() -> None:
    options = {f"serve.{one.name}" for one in serve.params}
    table = OPERATIONS.read_text().partition("| setting | meaning |\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+\.\w+)` \| ", table, re.MULTILINE)
    assert sorted(listed) == sorted(keys().keys() - options)


def test_variables_are_named_as_the_document_says() -> None:
    said = {key: f"KAFKA_COORD_{key.replace('.', '_').upper()}" for key in keys()}
    assert {key: variable_of(key) for key in keys()} == said | {"zookeeper.hosts": "KAFKA_COORD_ZOOKEEPER"}


def test_every_rule_of_the_audits_is_listed_with_its_meaning(coord: Run) -> None:
    listed = {one["rule"]: one["meaning"] for one in coord("audit", "--rules", "-o", "json").json()}
    assert listed.keys() == set(AuditRule)
    assert listed["offset-back"] == "5: an offset was moved back by someone who did not hold the partition."
    of_the_log = {one["rule"] for one in coord("audit", "--rules", "--group-log", "-o", "json").json()}
    assert of_the_log == set(LogRule)


def test_the_json_output_has_the_documented_shapes(tree: Tree, coord: Run) -> None:
    tree.coordinator()
    tree.topic("flights", 1)
    tree.group("delays")
    incarnation = tree.member("delays", "c1")
    tree.ledger("delays", "c1", stopping="0")
    tree.target("delays", {"c1": ""})
    tree.command("delays", "c1", StopFetcher(3, 7, incarnation, PartitionSet({"flights": [0]}), "why"))

    offsets = coord("groups", "describe", "delays", "--offsets", "-o", "json").json()
    assert list(offsets) == list(promised("groups describe --offsets"))
    assert list(offsets["offsets"][0]) == list(promised("groups describe --offsets")["offsets"][0])
    (member,) = coord("groups", "describe", "delays", "--members", "-o", "json").json()["members"]
    assert list(member) == list(promised("groups describe --members"))
    (row,) = coord("groups", "list", "-o", "json").json()
    assert list(row) == list(promised("groups list"))
    (command,) = coord("channel", "list", "-o", "json").json()
    assert list(command) == list(promised("channel list"))
    findings = json.loads(coord("doctor", "-o", "json").out)
    assert list(findings[0]) == list(promised("doctor"))
