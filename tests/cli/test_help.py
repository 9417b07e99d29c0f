"""Tests that every command has ``--help`` with an example, and prints it quickly."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from kafka_coord import Consumer
from kafka_coord.cli.main import LazyCommands, cli
from tests.cli.commands import OPERATIONS, commands
from tests.cli.running import environment, run

HEAVY = ("kazoo", "confluent_kafka", "rich", "re2", "yaml")


@pytest.mark.parametrize("path", sorted(commands()), ids=" ".join)
def test_the_help_of_every_command_has_an_example(path: tuple[str, ...]) -> None:
    ran = run(*path, "--help")
    assert ran.code == 0
    assert re.search(rf"kafka-coord {' '.join(path)}\b", ran.out.split("Options:")[0].partition("\n")[2]), ran.out


def test_each_kind_of_pause_names_the_others() -> None:
    names = {
        "groups pause": run("groups", "pause", "--help").out,
        "groups resume": run("groups", "resume", "--help").out,
        "reset-offsets --pause": run("groups", "reset-offsets", "--help").out,
        "Consumer.pause": str(Consumer.pause.__doc__),
    }
    for name, text in names.items():
        told = " ".join(text.split()).replace("``", "`")
        others = {"groups pause", "Consumer.pause"} - {name}
        assert all(one in told for one in others), (name, told)
    table = OPERATIONS.read_text().partition("| word | what stops | until |")[2].partition("\n\n")[0]
    assert all(f"`{word}" in table for word in ("groups pause", "Consumer.pause", "hold", "drain", "freeze"))


def test_help_loads_no_slow_modules() -> None:
    program = (
        "import sys\nfrom kafka_coord.cli.main import cli\nsys.argv = ['kafka-coord', '--help']\n"
        f"try: cli()\nexcept SystemExit: print('LOADED', [m for m in {HEAVY} if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), timeout=60, check=True
    )
    assert "LOADED []" in ran.stdout
    assert "Commands:" in ran.stdout


def groups_of(at: click.Command = cli) -> Iterator[LazyCommands]:
    if isinstance(at, LazyCommands):
        yield at
    if isinstance(at, click.Group):
        for name in at.list_commands(click.Context(at)):
            if name != "demo":
                found = at.get_command(click.Context(at), name)
                assert found is not None
                yield from groups_of(found)


def test_every_listed_command_can_be_loaded_by_its_name() -> None:
    for group in groups_of():
        for name in group.list_commands(click.Context(group)):
            found = group.get_command(click.Context(group), name)
            assert found is not None
            assert name in {found.name, "demo"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    assert "_KAFKA_COORD_COMPLETE" in ran.out


def test_completion_works() -> None:
    completing = environment(_KAFKA_COORD_COMPLETE="bash_complete", COMP_WORDS="kafka-coord groups res", COMP_CWORD="2")
    ran = subprocess.run(
        [sys.executable, "-m", "kafka_coord.cli.main"],
        capture_output=True,
        text=True,
        env=completing,
        timeout=60,
        check=False,
    )
    assert "plain,reset-offsets" in ran.stdout
    assert "plain,resume" in ran.stdout
