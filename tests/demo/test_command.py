"""How ``kafka-coord demo`` ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafka_coord.cli.main import cli
from kafka_coord.dev.demo import run
from kafka_coord.dev.demo.countdown import Part, Took
from kafka_coord.dev.demo.options import DemoOptions
from kafka_coord.dev.demo.run import Outcome
from kafka_coord.dev.demo.verification import verify
from kafka_coord.errors import DevClusterError
from tests.demo.evidence import SmallRun, timeline


@pytest.fixture(autouse=True)
def _own_signal_handlers() -> Iterator[None]:
    """Restores the signal handler, because the command turns SIGTERM of its process into an interrupt."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def ends_with(monkeypatch: pytest.MonkeyPatch, world: SmallRun) -> list[tuple[DemoOptions, Path]]:
    """Runs nothing; the outcome is that of ``world``. Records its arguments."""
    calls: list[tuple[DemoOptions, Path]] = []

    def play(options: DemoOptions, directory: Path, report: Path, view: object, *, keep: bool) -> Outcome:
        calls.append((options, directory))
        return Outcome(
            verify(world.evidence()), timeline(world), report, (Took(Part.START, 8.2), Took(Part.PLAY, 50.0))
        )

    monkeypatch.setattr(run, "run_demo", play)
    return calls


def demo(tmp_path: Path, *arguments: str) -> Any:
    report = [] if "--report" in arguments else ["--report", str(tmp_path / "report.html")]
    return CliRunner().invoke(cli, ["demo", *report, *arguments])


def test_a_verified_run_ends_with_exit_code_0_and_lists_every_rebalance_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ends_with(monkeypatch, SmallRun())

    done = demo(tmp_path, "--quick", "--seed", "5")

    assert done.exit_code == 0, done.output
    assert done.output.count("member c2 left") == 2
    assert "10 repeated, all consumed by c2 after its last commit" in done.output
    assert f"report: {tmp_path / 'report.html'}" in done.output
    assert re.search(r"^verified, \d+ s in all: starting 8 s, playing 50 s$", done.output, re.MULTILINE)
    assert calls[0][0].seed == 5
    assert not calls[0][1].exists()


def test_a_lost_record_is_exit_code_10_with_what_differs_and_keeps_the_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SmallRun()
    world.c1.pop()
    calls = ends_with(monkeypatch, world)

    done = demo(tmp_path, "--dir", str(tmp_path / "demo"))

    assert done.exit_code == 10
    assert "NOT verified" in done.output
    assert "nobody consumed offsets 60-99 (40)" in done.output
    assert str(calls[0][1]) in done.output
    assert calls[0][1].is_dir()


def test_a_cluster_that_does_not_start_is_reported_with_the_directory_of_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Outcome:
        raise DevClusterError("no Java")

    monkeypatch.setattr(run, "run_demo", fail)
    done = demo(tmp_path, "--dir", str(tmp_path / "demo"))

    assert done.exit_code == 9
    assert "kafka-coord: no Java" in done.output
    assert f"logs and journals are in {tmp_path / 'demo'}" in done.output


def test_a_report_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ends_with(monkeypatch, SmallRun())
    (tmp_path / "file").write_text("")

    done = demo(tmp_path, "--report", str(tmp_path / "file" / "report.html"))

    assert done.exit_code == 2
    assert "cannot be written" in done.output
    assert calls == []


def test_too_few_records_are_refused_with_the_reason(tmp_path: Path) -> None:
    done = demo(tmp_path, "--records", "7")

    assert done.exit_code == 2
    assert "--records 7" in done.output
