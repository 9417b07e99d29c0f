"""The consumer of docs/examples/go-consumer, as a program for tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from kafka_coord.dev.cluster.process import ChildProcess

SOURCE = Path(__file__).parents[1] / "docs" / "examples" / "go-consumer"


def go_consumer(directory: Path) -> Path | None:
    """Builds the program below ``directory`` and returns its path, or ``None`` if there is no Go toolchain."""
    if shutil.which("go") is None:
        return None
    made = directory / "go-consumer"
    built = subprocess.run(
        ["go", "build", "-o", str(made), "."], cwd=SOURCE, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return made


def records_of(program: ChildProcess) -> list[tuple[int, int]]:
    """The partition and offset of each record in its output, without an unfinished last line: it flushes its buffer
    whenever it is full."""
    whole, _, _ = program.log.read_text().rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return [(line["partition"], line["offset"]) for line in lines]
