"""The contents of the two distributions: the operator's has no development tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.cli.running import Ran, environment
from tests.imported import imported
from tests.packaging.build import Built

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kafka_coord"
MAY_IMPORT_DEV = {"kafka_coord/cli/load.py", "kafka_coord/testing/fixtures.py"}
"""The bundled flights are read, and a real cluster for tests is started, only on request."""


def sources(folder: Path) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in folder.rglob("*.py") if "build" not in path.parts}


@pytest.fixture(scope="module")
def wheels(built: Built) -> dict[str, Path]:
    return {"main": built.wheel, "dev": built.dev_wheel}


def modules(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}


def test_each_module_is_in_one_distribution_and_tests_in_none(wheels: dict[str, Path]) -> None:
    dev = sources(PACKAGE / "dev")
    assert modules(wheels["main"]) == sources(PACKAGE) - dev
    assert modules(wheels["dev"]) == dev - {"kafka_coord/dev/setup.py"}


def test_what_an_operator_installs_imports_nothing_that_he_does_not(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["main"]) as wheel:
        found = {
            name
            for name in modules(wheels["main"])
            for what in imported(wheel.read(name).decode(), r"\b(dev|tests)\b")
            if f"{what}.".startswith(("kafka_coord.dev.", "tests."))
        }
    assert found == MAY_IMPORT_DEV


_RUN_EACH = """
import json, sys
from click.testing import CliRunner
from kafka_coord.cli.main import cli

ran = [CliRunner().invoke(cli, arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in ran]))
"""


def kafka_coord(where: Path, *commands: tuple[str, ...]) -> list[Ran]:
    """Runs the commands in one process, which has only the packages that are in the directory."""
    process = subprocess.run(
        [sys.executable, "-S", "-c", _RUN_EACH, json.dumps(commands)],  # -S: no editable install of this checkout
        cwd=where,
        env={**environment(), "PYTHONPATH": os.pathsep.join((str(where), sysconfig.get_path("purelib")))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return [Ran(*one) for one in json.loads(process.stdout)]


def test_the_commands_that_are_there_work_and_the_others_say_what_to_install(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    zipfile.ZipFile(wheels["main"]).extractall(tmp_path)
    there = ("serve", "consume", "groups", "doctor", "pipeline")
    missing = (("demo",), ("pipeline", "run", "flights"))
    listed, *said = kafka_coord(tmp_path, ("--help",), *((command, "--help") for command in there), *missing)
    assert all(f"\n  {command} " in listed.out for command in there)
    assert not any(f"\n  {command} " in listed.out for command in ("demo", "bench", "dev"))
    assert [one.code for one in said] == [0] * len(there) + [2] * len(missing)
    assert all("pip install ./kafka_coord/dev" in one.err for one in said[len(there) :])

    zipfile.ZipFile(wheels["dev"]).extractall(tmp_path)
    there_too = (("demo",), ("dev", "up"), ("bench",), ("pipeline", "run", "flights"), ("pipeline", "report"))
    for one in kafka_coord(tmp_path, *((*command, "--help") for command in there_too)):
        assert (one.code, one.err) == (0, "")


def test_a_checkout_is_found_by_programs_that_run_in_another_directory(tmp_path: Path) -> None:
    """The demo's consumers run in their own directory, without PYTHONPATH."""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import kafka_coord.dev.demo.worker; print(kafka_coord.Consumer.__name__)"]

    ran = subprocess.run(command, cwd=tmp_path, env=without, capture_output=True, text=True, check=False)

    assert ran.stdout.strip() == "Consumer", ran.stderr
