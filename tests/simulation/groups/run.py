"""Runs histories of client-assigned groups on all cores, or prints one (``scripts/simulate --groups``)."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import click

from tests.simulation.groups.history import FAULTS, TURMOIL_S, GroupHistory, play
from tests.simulation.groups.planted import PLANTED, TELLING, planted

_CHUNK = 10


@dataclass(frozen=True, slots=True)
class Failed:
    """A violation, and the seed and options that replay it."""

    seed: int
    broken: str
    faults: frozenset[str]
    turmoil_s: float

    def options(self) -> str:
        words = [f"--groups --seed {self.seed} --story"]
        if self.faults != FAULTS:
            words.append(f"--faults {','.join(sorted(self.faults)) or 'none'}")
        if self.turmoil_s != TURMOIL_S:
            words.append(f"--turmoil {self.turmoil_s:g}")
        return " ".join(words)


def failing(seeds: range, faults: frozenset[str], turmoil_s: float) -> list[Failed]:
    logging.disable(logging.CRITICAL)
    played = ((seed, play(seed, faults, turmoil_s)[0]) for seed in seeds)
    return [Failed(seed, broken, faults, turmoil_s) for seed, broken in played if broken]


def shortest(failed: Failed) -> tuple[Failed, GroupHistory]:
    """Tries the same seed with fewer kinds of faults and a shorter turmoil, as long as the violation remains."""
    found, history = failed, play(failed.seed, failed.faults, failed.turmoil_s)[1]
    shorter: list[tuple[frozenset[str] | None, float]] = [
        (found.faults - {kind}, found.turmoil_s) for kind in sorted(found.faults)
    ]
    shorter += [(None, failed.turmoil_s * eighths / 8) for eighths in range(1, 8)]
    for faults, turmoil_s in shorter:
        tried = found.faults if faults is None else found.faults & faults
        broken, played = play(failed.seed, tried, min(turmoil_s, found.turmoil_s))
        if broken and turmoil_s <= found.turmoil_s:
            found, history = Failed(failed.seed, broken, tried, turmoil_s), played
    return found, history


def caught_after(name: str, seeds: Iterable[int]) -> int | None:
    """Returns the number of histories until a planted defect is found, or ``None`` if it is not found."""
    with planted(name):
        for count, seed in enumerate(seeds, 1):
            if failing(range(seed, seed + 1), TELLING.get(name, FAULTS), TURMOIL_S):
                return count
    return None


@click.command()
@click.option("--groups", is_flag=True, help="Groups of Kafka clients: this command.")
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many histories.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the first history.")
@click.option("--jobs", type=click.IntRange(1), help="How many processes.  [default: one for each core]")
@click.option("--faults", default="", help="Only these kinds, separated by commas; 'none' for none.  [default: all]")
@click.option("--turmoil", default=TURMOIL_S, show_default=True, help="Virtual seconds in which faults happen.")
@click.option("--story", is_flag=True, help="Print the history of --seed.")
@click.option(
    "--planted", "plant", is_flag=True, help="Plant each defect, and print after how many histories it is found."
)
def main(
    *, groups: bool, seeds: int, seed: int, jobs: int | None, faults: str, turmoil: float, story: bool, plant: bool
) -> None:
    """Runs seeded histories of instances, clients and one partition of the groups log. A seed replays exactly.

    Exit code 1 if an invariant was violated; the shortest history found is printed. Kinds of faults: ahead,
    alternate, away, client-freeze, client-kill, compact, delay, delete, deny, die, emptied, evict, forget, freeze,
    idle, kill, lazy, loss, move, newcomer, outage, replicas, restore, return, size, stop, topics, twin, unclear,
    znode, zookeeper.
    """
    kinds = FAULTS if not faults else frozenset() if faults == "none" else frozenset(faults.split(","))
    if not kinds <= FAULTS:
        raise click.BadParameter(f"{', '.join(sorted(kinds - FAULTS))}: there are {', '.join(sorted(FAULTS))}")
    if plant:
        sys.exit(_plant_each(seeds))
    if story:
        broken, history = play(seed, kinds, turmoil)
        click.echo("\n".join(history.story))
        click.echo(f"seed {seed}: {broken or 'held'}, digest {history.digest()}")
        sys.exit(bool(broken))
    sys.exit(_run(range(seed, seed + seeds), kinds, turmoil, jobs or len(os.sched_getaffinity(0))))


def _plant_each(seeds: int) -> int:
    missed = 0
    for name in PLANTED:
        histories = caught_after(name, range(seeds))
        missed += histories is None
        click.echo(f"{name}: {'not seen' if histories is None else histories}")
    return int(missed > 0)


def _run(seeds: range, kinds: frozenset[str], turmoil_s: float, jobs: int) -> int:
    began = time.monotonic()
    failed: list[Failed] = []
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
        for found in pool.map(failing, chunks, [kinds] * len(chunks), [turmoil_s] * len(chunks)):
            for one in found:
                click.echo(f"FAILED seed {one.seed}: {one.broken}\n  scripts/simulate {one.options()}")
            failed += found
    rate = len(seeds) / (time.monotonic() - began)
    click.echo(f"{len(seeds) - len(failed)} of {len(seeds)} histories held, {len(failed)} failed, {rate:.1f}/s")
    if failed:
        logging.disable(logging.CRITICAL)
        least, history = shortest(failed[0])
        click.echo("\n".join(history.story))
        click.echo(f"the shortest history found: {least.broken}\n  scripts/simulate {least.options()}")
    return int(bool(failed))


if __name__ == "__main__":
    main()
