"""Runs many seeds on all cores, and prints each failure and the shortest story of the first (``scripts/simulate``)."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

import click

from tests.simulation.cluster import TURMOIL
from tests.simulation.faults import ALL_FAULTS
from tests.simulation.shrinking import History, Played, play, shrink

CHUNK = 20
"""The number of histories in a chunk for a process. A chunk takes about a second, so the end does not wait long."""
_TOLD_LINES = 200
_SHRINK_S = 90.0
_INTERRUPTED = 130


def _ready() -> None:
    """Prepares each process. Only the main process handles signals, and lets the others finish their chunks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000, 20, 1_000)  # a cluster creates garbage mainly at its end


def _failing(histories: Sequence[History]) -> list[tuple[History, str]]:
    return [(played.history, played.broken) for played in map(play, histories) if played.broken]


@dataclass(slots=True)
class Tally:
    """Reports progress every few seconds."""

    seeds: int
    done: int = 0
    failed: list[History] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)
    _said_at: float = field(default_factory=time.monotonic)

    def add(self, done: int, failed: Sequence[tuple[History, str]]) -> None:
        self.done += done
        for history, broken in failed:
            self.failed.append(history)
            click.echo(f"FAILED seed {history.seed}: {broken}\n  scripts/simulate {history.options()}")
        every_s = 1.0 if sys.stdout.isatty() else 10.0
        if time.monotonic() >= self._said_at + every_s:
            self._said_at = time.monotonic()
            left_s = (self.seeds - self.done) / self.rate()
            click.echo(f"{self}, {int(left_s // 60)} min {int(left_s % 60):02d} s left")

    def rate(self) -> float:
        """Returns the histories per second."""
        return self.done / max(time.monotonic() - self._started, 1e-9)

    def __str__(self) -> str:
        held = self.done - len(self.failed)
        return f"{held} of {self.seeds} histories held, {len(self.failed)} failed, {self.rate():.1f}/s"


@click.command()
@click.option("--seeds", type=click.IntRange(1), help="How many histories.  [default: 100; 1 with --story]")
@click.option("--seed", default=0, show_default=True, help="Seed of the first history.")
@click.option("--jobs", type=click.IntRange(1), help="How many processes.  [default: one for each core]")
@click.option("--fail-fast", is_flag=True, help="Stop at the first failure.")
@click.option("--story", is_flag=True, help="Print what happens in each history.")
@click.option("--faults", default=",".join(sorted(ALL_FAULTS)), help="Only these kinds of faults, or none.")
@click.option("--turmoil", default=TURMOIL, show_default=True, help="Number of steps in which faults happen.")
@click.option("--spare", default="", help="The numbers of single faults that do not happen.")
def main(
    seeds: int | None,
    seed: int,
    jobs: int | None,
    *,
    fail_fast: bool,
    story: bool,
    faults: str,
    turmoil: int,
    spare: str,
) -> None:
    """Runs seeded histories with faults and checks every invariant after every step.

    Exit code 1 if an invariant was violated; the shortest history found that leads to the first violation is printed.
    Exit code 130 if interrupted; the results so far are printed.
    """
    kinds = frozenset() if faults == "none" else frozenset(faults.split(","))
    if not kinds <= ALL_FAULTS:
        raise click.BadParameter(f"{', '.join(sorted(kinds - ALL_FAULTS))}: there are {', '.join(sorted(ALL_FAULTS))}")
    spared = frozenset(int(number) for number in spare.split(",") if number)
    count = seeds if seeds is not None else 1 if story else 100
    histories = [History(number, kinds, turmoil, spared) for number in range(seed, seed + count)]
    logging.disable(logging.CRITICAL)
    if story:
        sys.exit(_tell_each(histories))
    sys.exit(_run(histories, jobs or len(os.sched_getaffinity(0)), fail_fast=fail_fast))


def _run(histories: Sequence[History], jobs: int, *, fail_fast: bool) -> int:
    tally = Tally(len(histories))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_ready) as pool:
        try:
            for done, failed in _results(pool, histories, jobs):
                tally.add(done, failed)
                if tally.failed and fail_fast:
                    break
        except KeyboardInterrupt:
            click.echo(f"interrupted: {tally}")
            pool.shutdown(cancel_futures=True)
            return 1 if tally.failed else _INTERRUPTED
        pool.shutdown(cancel_futures=True)
    click.echo(f"{tally}")
    if not tally.failed:
        return 0
    first = min(tally.failed, key=lambda history: history.seed)
    click.echo(f"failed: seeds {', '.join(str(h.seed) for h in sorted(tally.failed, key=lambda h: h.seed))}")
    _tell_shortest(play(first))
    return 1


def _results(
    pool: ProcessPoolExecutor, histories: Sequence[History], jobs: int
) -> Iterator[tuple[int, list[tuple[History, str]]]]:
    """Yields the number of histories run and the failed ones, chunk by chunk, as they end."""
    waiting = deque(histories[first : first + CHUNK] for first in range(0, len(histories), CHUNK))
    running: dict[Future[list[tuple[History, str]]], int] = {}
    while waiting or running:
        while waiting and len(running) < jobs * 2:
            chunk = waiting.popleft()
            running[pool.submit(_failing, chunk)] = len(chunk)
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


def _tell_each(histories: Sequence[History]) -> int:
    failed = False
    for history in histories:
        played = play(history)
        click.echo("\n".join(played.cluster.story))
        outcome, cluster = played.broken or "held", played.cluster
        click.echo(f"seed {history.seed}: {outcome}, {cluster.steps} steps, digest {cluster.server.digest()}")
        if played.broken:
            failed = True
            _tell_shortest(played)
    return int(failed)


def _tell_shortest(failed: Played) -> None:
    shortest = shrink(failed, _SHRINK_S)
    click.echo(f"the shortest history found for the failure of seed {failed.history.seed}:")
    click.echo("\n".join(shortest.cluster.story[-_TOLD_LINES:]))
    happened, steps = shortest.cost()
    click.echo(f"after {steps} steps and {happened} faults: {shortest.broken}")
    click.echo(f"  scripts/simulate {shortest.history.options()}")


if __name__ == "__main__":
    main()
