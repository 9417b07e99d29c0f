"""``scripts/fuzz``: feeds every decoder hostile input for a given time, in processes that may hang or die."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import click

from tests.fuzzing.judge import MAX_MEMORY_BYTES, Judge, case, kind_of, shortened
from tests.fuzzing.target import Target

DEFAULT_TARGETS = "tests.fuzzing.targets:TARGETS"
_HANGS_AFTER_S = 30.0
"""Wall time, on a machine that may be busy: ten times the CPU limit."""
_BEGINS_WITHIN_S = 120.0
_MAX_PROCESS_BYTES = 4 << 30
_REPORT_EVERY_S = 1.0
_INTERRUPTED = 130
_STOPPING = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class _Tried:
    """A process's report: the number of inputs since the last one, and its present case."""

    count: int


@dataclass(frozen=True, slots=True)
class _Failed:
    """One input with a wrong reaction."""

    target: str
    number: int
    fault: str
    raw: bytes


def targets_of(names: Sequence[str]) -> tuple[Target, ...]:
    """The targets of ``module:attribute`` references."""
    found: list[Target] = []
    for name in names:
        module, _, attribute = name.partition(":")
        found += getattr(importlib.import_module(module), attribute)
    return tuple(found)


def _work(reports: Connection, *rest: Any) -> None:
    """A worker process of a run, which ends with it."""
    with contextlib.suppress(BrokenPipeError):
        _try_all(reports, *rest)


def _try_all(
    reports: Connection,
    at: Any,
    sources: Sequence[str],
    chosen: Sequence[str],
    seed: int,
    first: int,
    step: int,
    max_memory_bytes: int,
) -> None:
    """The work of one process: every ``step``-th round over the targets. ``at`` tells its parent the present case
    (target, number) and whether the process is shortening it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_PROCESS_BYTES, _MAX_PROCESS_BYTES))
    targets = [(index, target) for index, target in enumerate(targets_of(sources)) if target.name in chosen]
    judge = Judge(max_memory_bytes)
    known: set[str] = set()
    count, said_at = 0, time.monotonic()
    for number in itertools.count(first, step):
        for index, target in targets:
            at[0], at[1] = index, number
            raw = case(target, seed, number)
            fault = judge.fault(target, raw)
            count += 1
            if fault is not None and (kind := kind_of(target, fault)) not in known:
                known.add(kind)
                at[2] = True
                reports.send(_Failed(target.name, number, fault, shortened(judge, target, raw)))
                at[2] = False
            if time.monotonic() >= said_at + _REPORT_EVERY_S:
                reports.send(_Tried(count))
                count, said_at = 0, time.monotonic()


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    reports: Connection
    at: Any
    heard: float = field(default_factory=time.monotonic)
    last: tuple[int, int] = (-1, -1)


@dataclass(slots=True)
class Hunt:
    """A run: its processes and findings."""

    sources: Sequence[str]
    targets: Sequence[Target]
    chosen: Sequence[str]
    seed: int
    jobs: int
    failures: Path
    hangs_after_s: float = _HANGS_AFTER_S
    max_memory_bytes: int = MAX_MEMORY_BYTES
    tried: int = 0
    found: Counter[str] = field(default_factory=Counter)
    _workers: list[_Worker] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Runs until the time is over, and reports progress every few seconds. If interrupted, it stops its
        processes."""
        began = said_at = time.monotonic()
        for first in range(self.jobs):
            self._start(first)
        try:
            while (now := time.monotonic()) < began + seconds:
                self._listen(min(0.5, began + seconds - now))
                every_s = 5.0 if sys.stdout.isatty() else 15.0
                if time.monotonic() >= said_at + every_s:
                    said_at = time.monotonic()
                    left_s = max(0, int(began + seconds - said_at))
                    click.echo(f"{self.summary(said_at - began)}, {left_s // 60} min {left_s % 60:02d} s left")
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
                self._drain(worker)
                worker.reports.close()

    def summary(self, took_s: float) -> str:
        """So far."""
        rate = self.tried / max(took_s, 1e-9)
        return f"{self.tried:,} inputs, {rate:,.0f}/s, {len(self.chosen)} decoders, {len(self.found)} kinds of faults"

    def _start(self, first: int) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        at = context.Array("q", [-1, -1, False], lock=False)
        arguments = (theirs, at, self.sources, self.chosen, self.seed, first, self.jobs, self.max_memory_bytes)
        process = context.Process(target=_work, args=arguments, name=f"fuzz-{first}", daemon=True)
        # block the signals: a process that is stopped while it starts would only log errors
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        try:
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours, at))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)

    def _listen(self, timeout_s: float) -> None:
        wait([worker.reports for worker in self._workers], timeout_s)
        for worker in list(self._workers):
            alive = self._drain(worker)
            place = (worker.at[0], worker.at[1])
            if place != worker.last:
                worker.last, worker.heard = place, time.monotonic()
            if not alive:
                worker.process.join()
                self._replace(worker, f"ended the process with {worker.process.exitcode}")
            elif time.monotonic() > worker.heard + self._patience_s(worker):
                worker.process.kill()
                worker.process.join()
                self._replace(worker, f"hangs for {self.hangs_after_s:.0f} s")

    def _patience_s(self, worker: _Worker) -> float:
        """Longer while it imports its targets, and while it shortens an input."""
        beginning = worker.at[0] < 0
        return _BEGINS_WITHIN_S if beginning else self.hangs_after_s + (_HANGS_AFTER_S if worker.at[2] else 0.0)

    def _drain(self, worker: _Worker) -> bool:
        """Handles the process's reports. Returns ``False`` once it has ended."""
        try:
            while worker.reports.poll():
                said = worker.reports.recv()
                worker.heard = time.monotonic()
                if isinstance(said, _Tried):
                    self.tried += said.count
                else:
                    self._tell(said)
        except (EOFError, OSError):
            return False
        return True

    def _replace(self, worker: _Worker, fault: str) -> None:
        """Reports the input that a process did not survive, and continues after it."""
        self._workers.remove(worker)
        worker.reports.close()
        index, number = worker.last
        if index < 0:
            raise click.ClickException(f"a process could not begin: it {fault}")
        target = self.targets[index]
        self._tell(_Failed(target.name, number, fault, case(target, self.seed, number)))
        self._start(number + self.jobs)

    def _tell(self, failed: _Failed) -> None:
        target = next(one for one in self.targets if one.name == failed.target)
        kind = kind_of(target, failed.fault)
        self.found[kind] += 1
        if self.found[kind] > 1:  # another process found it too
            return
        self.failures.mkdir(parents=True, exist_ok=True)
        file = self.failures / f"{failed.target}-{self.seed}-{failed.number}.input"
        file.write_bytes(failed.raw)
        click.echo(f"FAULT {failed.target}: {failed.fault}")
        click.echo(f"  {len(failed.raw)} bytes: {failed.raw[:200]!r}")
        click.echo(f"  saved as {file}; again: scripts/fuzz --target {failed.target} --replay {file}")
        click.echo(f"  as it was made: scripts/fuzz --target {failed.target} --seed {self.seed} --case {failed.number}")


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same inputs.")
@click.option("--jobs", type=click.IntRange(1), help="The number of processes.  [default: one for each core]")
@click.option("--target", "chosen", multiple=True, help="Only this decoder; repeatable.  [default: all]")
@click.option("--case", "number", type=click.IntRange(0), help="Try only this case of --target and --seed.")
@click.option(
    "--replay", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Try only this saved input."
)
@click.option(
    "--failures",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("fuzz-failures"),
    show_default=True,
    help="The directory for inputs that revealed a fault.",
)
@click.option("--hangs-after", default=_HANGS_AFTER_S, hidden=True)
@click.option("--max-memory-mb", default=MAX_MEMORY_BYTES >> 20, hidden=True)
@click.option("--targets", "sources", multiple=True, default=(DEFAULT_TARGETS,), hidden=True)
def main(
    minutes: float,
    seed: int,
    jobs: int | None,
    chosen: tuple[str, ...],
    number: int | None,
    replay: Path | None,
    failures: Path,
    sources: tuple[str, ...],
    hangs_after: float,
    max_memory_mb: int,
) -> None:
    """Feeds damaged values to every decoder: each must return a value or raise its documented error, soon, in bounded
    memory.

    Exit code 1 if one did not; the shortest such input found is saved. Exit code 130 if interrupted.
    """
    targets = targets_of(sources)
    names = [target.name for target in targets]
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none; there are {', '.join(names)}", param_hint="--target")
    if replay is not None or number is not None:
        if len(chosen) != 1:
            raise click.UsageError("say with --target of which decoder it is")
        target = targets[names.index(chosen[0])]
        sys.exit(_try_one(target, replay.read_bytes() if replay else case(target, seed, number or 0)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    workers = jobs or len(os.sched_getaffinity(0))
    hunt = Hunt(sources, targets, chosen or names, seed, workers, failures, hangs_after, max_memory_mb << 20)
    began = time.monotonic()
    try:
        hunt.run(minutes * 60)
    except KeyboardInterrupt:
        click.echo(f"interrupted: {hunt.summary(time.monotonic() - began)}")
        sys.exit(_INTERRUPTED)
    click.echo(hunt.summary(time.monotonic() - began))
    sys.exit(1 if hunt.found else 0)


def _try_one(target: Target, raw: bytes) -> int:
    click.echo(f"{target.name}: {len(raw)} bytes: {raw[:400]!r}")
    fault = Judge().fault(target, raw)
    click.echo(f"FAULT: {fault}" if fault else "taken as promised")
    return 1 if fault else 0


if __name__ == "__main__":
    main()
