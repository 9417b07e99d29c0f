"""Tests that each imported module of another project comes with this package or an extra, and that a command says which
extra is missing."""

from __future__ import annotations

import ast
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kafka_coord.cli.start import _EXTRA, missing
from tests.cli.running import run

ROOT = Path(__file__).resolve().parents[2]
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
BASE = {"confluent_kafka", "kazoo", "msgspec", "re2"}
LAZY = {"confluent_kafka", "kazoo", "rich", "yaml", "crc32c", "prometheus_client", "pyspark", "asyncio", "tomllib"}
"""Modules that make the program slow to start. Most commands do not need them."""


def distributions(lines: str) -> set[str]:
    """The names in a list of requirements, spelt like modules."""
    names = (line.split(";")[0].split("[")[0].split()[0] for line in lines.splitlines() if line.strip())
    return {name.lower().replace("-", "_") for name in names}


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def test_each_module_of_another_project_comes_with_the_package_or_an_extra() -> None:
    used = set()
    for module in (ROOT / "kafka_coord").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import):
                used |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                used.add(node.module.partition(".")[0])
    found = used - set(sys.stdlib_module_names) - {"kafka_coord"}
    of_tools = {"_typeshed", "pytest", "setuptools", "typing_extensions"}  # for type checkers and tests
    compared = {"aiokafka", "kafka"}  # bench rebalance --compare installs them into separate environments
    assert found - {"numpy", "py4j"} - of_tools - compared == BASE | set(_EXTRA), "two come with pyspark and pandas"


def test_each_extra_installs_the_modules_listed_for_it() -> None:
    extras = SETUP["options.extras_require"]
    home = packages_distributions()
    for module, extra in _EXTRA.items():
        names = {name.lower().replace("-", "_") for name in home[module]}
        brought = distributions(extras[extra] + extras.get(f"{extra}-requirements", ""))
        assert names & brought, f"the extra {extra} does not bring {module}"
    assert distributions(SETUP["options"]["install_requires"]) == {"confluent_kafka", "google_re2", "kazoo", "msgspec"}


def test_a_consumer_needs_no_extra() -> None:
    told = python(
        f"""
import importlib, pkgutil, sys
for name in {sorted(_EXTRA)}:
    sys.modules[name] = None
import kafka_coord
for room in ("channel", "consumer", "model", "testing", "zk"):
    package = importlib.import_module(f"kafka_coord.{{room}}")
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
print(kafka_coord.Consumer.__name__)
"""
    )
    assert told == "Consumer\n"


def test_the_program_starts_without_modules_that_few_commands_need() -> None:
    assert python(f"import sys, kafka_coord.cli.main; print({LAZY} & set(sys.modules))") == "set()\n"


def test_the_console_script_says_how_to_install_the_command_line() -> None:
    told = python("import sys; sys.modules['click'] = None; import kafka_coord.cli.start as s; s.main()")
    wanted = "this command needs the package click, which is not installed: pip install 'kafka-coord[cli]'"
    assert told == f"kafka-coord: {wanted}\n"


def test_a_command_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    ran = run("pipeline", "list", "-o", "yaml")
    assert ran.code == 2
    assert "needs the package yaml, which is not installed: pip install 'kafka-coord[cli]'" in ran.err
    assert missing(ModuleNotFoundError("no", name="pyspark.sql")) is not None
    assert missing(ModuleNotFoundError("no", name="kafka_coord.nowhere")) is None, "a missing own module is a bug"
