"""``scripts/simulate``: many seeds, progress, and the story of the first that fails."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time

import click

from kafka_coord.dev.simulation.world import FAULTS, judged, shrunk


def _failed(seed: int) -> int | None:
    logging.disable(logging.CRITICAL)
    return seed if judged(seed) is not None else None


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many histories.")
@click.option("--seed", default=0, show_default=True, help="The first one's seed.")
@click.option("--jobs", default=1, show_default=True, help="How many processes.")
def main(seeds: int, seed: int, jobs: int) -> None:
    """Runs seeded histories with faults and checks every invariant."""
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for done, failed in enumerate(pool.imap(_failed, range(seed, seed + seeds), chunksize=5), 1):
            if failed is not None:
                pool.terminate()
                _tell(failed)
                sys.exit(1)
            if done % 100 == 0 or done == seeds:
                click.echo(f"{done} of {seeds} histories held, {done / (time.monotonic() - started):.1f}/s")


def _tell(seed: int) -> None:
    logging.disable(logging.CRITICAL)
    failure, faults = judged(seed), FAULTS
    for fewer, broken, story in shrunk(seed):
        failure, faults = (broken, story), fewer
    if failure is not None:
        click.echo("\n".join(failure[1][-200:]))
        click.echo(f"seed {seed}, with faults {', '.join(sorted(faults))}: {failure[0]}", err=True)


if __name__ == "__main__":
    main()
