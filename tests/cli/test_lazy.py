"""Tests of the commands of a distribution that is not installed: they are not listed, and calling one causes an
explanation."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner

from kafka_coord.cli import main
from tests.cli.running import run

OF_THE_SECOND_DISTRIBUTION = sorted(name for name, (where, _) in main._COMMANDS.items() if ".dev." in where)


@pytest.fixture
def without_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the package ``kafka_coord.dev`` missing, as after ``pip install .``."""
    find_spec = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> Any:
        if name.startswith("kafka_coord.dev"):
            raise ModuleNotFoundError(name)
        return find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_the_second_distribution_has_bench_demo_and_dev() -> None:
    assert OF_THE_SECOND_DISTRIBUTION == ["bench", "demo", "dev"]


@pytest.mark.parametrize("name", OF_THE_SECOND_DISTRIBUTION)
@pytest.mark.usefixtures("without_dev")
def test_a_command_that_is_not_installed_says_what_to_install(name: str) -> None:
    ran = run(name, "--help")
    assert ran.code == 2
    assert f"{name} needs a package that is not installed" in ran.err
    assert "pip install ./kafka_coord/dev (in a clone" in ran.err


@pytest.mark.usefixtures("without_dev")
def test_the_help_does_not_mention_commands_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.reload(main)
    told = CliRunner().invoke(main.cli, ["--help"]).output
    monkeypatch.undo()
    importlib.reload(main)
    assert "kafka-coord dev" not in told
    listed = told.split("Commands:")[1].split()
    assert not set(OF_THE_SECOND_DISTRIBUTION) & set(listed)
    assert "doctor" in listed


def test_the_help_lists_the_second_distributions_commands_if_installed() -> None:
    told = run("--help").out
    assert "kafka-coord dev up" in told
    listed = told.split("Commands:")[1].split()
    assert set(OF_THE_SECOND_DISTRIBUTION) <= set(listed)
