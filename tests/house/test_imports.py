"""Which package may import which. The tests break each contract of ``setup.cfg`` in a copy, and it must be refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imported import imported

ROOT = Path(__file__).resolve().parents[2]


PLANTED = (
    ("frontends/socket/gateway.py", "import kazoo", "- kafka_coord.frontends.socket.gateway -> kazoo"),
    ("cli/main.py", "from kazoo.client import KazooClient", "- kafka_coord.cli.main -> kazoo"),
    (
        "coordinator/plan/planning.py",
        "import kafka_coord.zk.session",
        "- kafka_coord.coordinator.plan.planning -> kafka_coord.zk.session kafka_coord.zk.session -> kazoo",
    ),
    ("coordinator/plan/target.py", "import time", "- kafka_coord.coordinator.plan.target -> time"),
    (
        "coordinator/assignors/kept_partitions.py",
        "import random",
        "- kafka_coord.coordinator.assignors.kept_partitions -> random",
    ),
    ("channel/frames.py", "import socket", "- kafka_coord.channel.frames -> socket"),
    (
        "channel/messages.py",
        "import kafka_coord.channel.link",
        "- kafka_coord.channel.messages -> kafka_coord.channel.link kafka_coord.channel.link -> threading",
    ),
    ("channel/frames.py", "import threading", "- kafka_coord.channel.frames -> threading"),
    ("coordinator/deadlines.py", "import time", "- kafka_coord.coordinator.deadlines -> time"),
    ("frontends/members/machine/__init__.py", "import socket", "- kafka_coord.frontends.members.machine -> socket"),
    ("classic_groups/__init__.py", "import random", "- kafka_coord.classic_groups -> random"),
    ("wire/__init__.py", "import threading", "- kafka_coord.wire -> threading"),
    (
        "model/partitions.py",
        "import kafka_coord.coordinator.queue",
        "kafka_coord.model is not allowed to import kafka_coord.coordinator: "
        "- kafka_coord.model.partitions -> kafka_coord.coordinator.queue",
    ),
    ("spark/ranges.py", "import os", "- kafka_coord.spark.ranges -> os"),
    (
        "coordinator/handler.py",
        "import kafka_coord.consumer",
        "kafka_coord.coordinator is not allowed to import kafka_coord.consumer: "
        "- kafka_coord.coordinator.handler -> kafka_coord.consumer",
    ),
    (
        "frontends/socket/server.py",
        "import confluent_kafka",
        "- kafka_coord.frontends.socket.server -> confluent_kafka",
    ),
    (
        "errors.py",
        "import kafka_coord.model",
        "kafka_coord.errors is not allowed to import kafka_coord.model: - kafka_coord.errors -> kafka_coord.model",
    ),
)
"""A module, the line that it gets, and the refusal: the imports from that line to what is forbidden. The heading comes
first if another refusal begins with the same imports."""
NEW_PACKAGE = "somewhere"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and of its contracts."""
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "kafka_coord", copy / "kafka_coord", ignore=shutil.ignore_patterns("__pycache__", "build"))
    shutil.copy(ROOT / "setup.cfg", copy)
    return copy


@pytest.fixture(scope="module")
def kept(checkout: Path) -> tuple[int, str]:
    """What ``lint-imports`` says of the unchanged copy."""
    return lint_imports(checkout)


@pytest.fixture(scope="module")
def refusals(kept: tuple[int, str], checkout: Path) -> str:
    """What ``lint-imports`` says after all lines and the new package are planted, in one line without line numbers."""
    for where, line, _ in PLANTED:
        with (checkout / "kafka_coord" / where).open("a") as module:
            module.write(f"\n{line}\n")
    room = checkout / "kafka_coord" / NEW_PACKAGE
    room.mkdir()
    (room / "__init__.py").write_text("import kazoo\n")
    status, told = lint_imports(checkout)
    assert status == 1, told
    return " ".join(re.sub(r"\(l\.[^)]*\)", "", told).split())


def lint_imports(checkout: Path) -> tuple[int, str]:
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    result = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=checkout,
        env={"PYTHONPATH": str(checkout), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


def test_the_contracts_are_kept(kept: tuple[int, str]) -> None:
    status, told = kept
    assert status == 0, told


@pytest.mark.parametrize(("where", "line", "refused"), PLANTED)
def test_a_planted_import_is_refused(refusals: str, where: str, line: str, refused: str) -> None:
    assert refused in refusals


def test_a_new_package_that_no_contract_names_is_refused(refusals: str) -> None:
    new = f"kafka_coord.{NEW_PACKAGE}"
    assert f"- {new} -> kazoo" in refusals, "only zk may import kazoo, whoever else comes"
    assert f"not listed as layers: - {new}" in refusals


def test_no_module_imports_a_test() -> None:
    modules = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "kafka_coord").rglob("*.py")]
    found = {
        f"{module.relative_to(ROOT)} imports {name}"
        for module in modules
        for name in imported(module.read_text(), r"(?<!def )\btest_")
        if any(part.startswith("test_") for part in name.split("."))
    }
    assert not found, "what several tests need belongs into a module of its own"


def test_nothing_that_is_installed_imports_what_is_not() -> None:
    found = {
        f"{module.relative_to(ROOT)} imports {name}"
        for module in (ROOT / "kafka_coord").rglob("*.py")
        for name in imported(module.read_text(), r"\btests\b")
        if name.split(".")[0] == "tests"
    }
    assert not found
