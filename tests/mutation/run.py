"""``scripts/mutate``: chooses places to change, tries each, and lists the changes that no test noticed."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import click

from tests.mutation import trial
from tests.mutation.mutator import Site, difference, sites
from tests.mutation.targets import ROOT, TARGETS, Target, modules, target_of

SLACK_S = 20.0
SLOWER = 2.0
"""A trial may take this many times the time of the traced, unchanged code, plus :data:`SLACK_S`. A longer one counts as
noticed."""
_BASELINE_S = 1_200.0
CHANGED = "+"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutation. The results contain its ``name``."""

    module: str
    key: str
    line: int

    @property
    def name(self) -> str:
        return f"{self.module}:{self.key}"


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of one change: ``killed``, ``timeout`` (noticed too), ``survived`` or ``unreached``."""

    name: str
    outcome: str
    seconds: float
    commit: str
    change: list[str]


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


@cache
def _sites(module: str) -> dict[str, Site]:
    return {site.key: site for site in sites(_parsed(module))}


def drawn(count: int, seed: int, only: str) -> list[Mutant]:
    """Places drawn at random, all equally likely. A larger count begins with the places of a smaller one."""
    found = [
        Mutant(name, site.key, site.line)
        for module in modules()
        if (name := str(module.relative_to(ROOT))).startswith(only)
        for site in _sites(name).values()
    ]
    random.Random(seed).shuffle(found)
    return found[:count]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The unchanged code of one target: how long its tests take, and which lines they run."""

    seconds: float
    lines: dict[str, set[int]]

    @classmethod
    def of(cls, target: Target) -> Baseline:
        """Raises :class:`click.ClickException` if the tests fail on unchanged code."""
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory, "lines.json")
            started = time.monotonic()
            if trial.ended(trial.forked(lambda: trial.traced(target, report)), _BASELINE_S) != trial.SURVIVED:
                raise click.ClickException(
                    f"the tests of {target.code} fail on unchanged code: {' '.join(target.tests)}"
                )
            lines = {name: set(found) for name, found in json.loads(report.read_text()).items()}
        return cls(time.monotonic() - started, lines)


_measuring = threading.Lock()
_baselines: dict[str, Baseline] = {}


def _baseline(target: Target, kept_at: Path) -> Baseline:
    """Measured on first use, and kept for later runs on the same commit."""
    with _measuring:
        if target.code not in _baselines:
            kept = kept_at / f"{target.code.replace('/', '-')}.json"
            if kept.exists() and not kept_at.name.endswith(CHANGED):
                told = json.loads(kept.read_text())
                found = Baseline(told["seconds"], {name: set(lines) for name, lines in told["lines"].items()})
            else:
                click.echo(f"{target.code}, unchanged ...")
                found = Baseline.of(target)
                click.echo(f"{target.code}, unchanged: {found.seconds:.0f} s, traced")
                kept_at.mkdir(parents=True, exist_ok=True)
                lines = {name: sorted(found_lines) for name, found_lines in found.lines.items()}
                kept.write_text(json.dumps({"seconds": found.seconds, "lines": lines}))
            _baselines[target.code] = found
        return _baselines[target.code]


def tried(mutant: Mutant, baseline: Baseline, commit: str) -> Tried:
    module, site = ROOT / mutant.module, _sites(mutant.module)[mutant.key]
    started = time.monotonic()
    if mutant.line not in baseline.lines[str(module)]:
        outcome = "unreached"
    else:
        target = target_of(module)
        ended = trial.ended(
            trial.forked(lambda: trial.trial(target, module, site)), SLACK_S + SLOWER * baseline.seconds
        )
        outcome = {None: "timeout", trial.SURVIVED: "survived"}.get(ended, "killed")
    return Tried(
        mutant.name, outcome, round(time.monotonic() - started, 1), commit, difference(_parsed(mutant.module), site)
    )


def commit() -> str:
    """The commit of the checkout, with :data:`CHANGED` if files were changed since."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "kafka_coord", "tests"], check=False).returncode
    return head.strip() + CHANGED * (changed != 0)


def told_before(results: Path, now: str) -> dict[str, Tried]:
    """The results for this commit that are in the file already; they are not tried again. Results of changed files do
    not count."""
    if not results.exists() or now.endswith(CHANGED):
        return {}
    read = (Tried(**json.loads(line)) for line in results.read_text().splitlines())
    return {each.name: each for each in read if each.commit == now}


def summary(outcomes: Iterable[Tried]) -> Iterator[str]:
    """A table by package in Markdown, and the changes that no test noticed."""
    results = list(outcomes)
    yield "| code | changes | noticed | not noticed | not reached | noticed, of those reached |"
    yield "|---|---|---|---|---|---|"
    for code in [*(target.code for target in TARGETS), ""]:
        counted = Counter(
            each.outcome for each in results if not code or target_of(ROOT / each.name.partition(":")[0]).code == code
        )
        noticed = counted["killed"] + counted["timeout"]
        reached = noticed + counted["survived"]
        if reached or counted["unreached"]:
            name = f"`{code}`" if code else "**all**"
            share = f"{100 * noticed / reached:.0f} %" if reached else ""
            row = (name, reached + counted["unreached"], noticed, counted["survived"], counted["unreached"], share)
            yield f"| {' | '.join(map(str, row))} |"
    for each in sorted(results, key=lambda each: each.name):
        if each.outcome == "survived":
            yield f"\nnot noticed: {each.name}"
            yield from (f"  {line}" for line in each.change)


@click.command()
@click.option("--count", default=300, show_default=True, help="The number of changes to try.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same changes.")
@click.option("--jobs", default=1, show_default=True, help="The number of trials at a time.")
@click.option("--only", default="", help="Only changes in paths with this prefix: kafka_coord/coordinator/plan.")
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), default=ROOT / "var" / "mutation.jsonl")
@click.option("--minutes", type=float, help="End after this time; the same command continues the run.")
@click.option("--report", is_flag=True, help="Only print the summary of the existing results.")
def main(count: int, seed: int, jobs: int, only: str, results: Path, minutes: float | None, report: bool) -> None:
    """Changes the code at random places, one at a time, and counts which changes the tests notice."""
    now = commit()
    mutants = drawn(count, seed, only)
    done = told_before(results, now)
    known = [done[mutant.name] for mutant in mutants if mutant.name in done]
    left = [] if report else [mutant for mutant in mutants if mutant.name not in done]
    if left:
        results.parent.mkdir(parents=True, exist_ok=True)
        known += _try_all(left, jobs, results, now, time.monotonic() + 60 * minutes if minutes else None)
    click.echo(f"\n{len(known)} of {len(mutants)} changes tried, seed {seed}, commit {now}\n")
    click.echo("\n".join(summary(known)))


def _try_all(left: list[Mutant], jobs: int, results: Path, now: str, deadline: float | None) -> list[Tried]:
    trial.preload()
    kept_at = results.with_name(f"{results.stem}-unchanged-{now}")
    found: list[Tried] = []
    started = time.monotonic()

    def one(mutant: Mutant) -> None:
        if deadline is not None and time.monotonic() > deadline:
            return
        outcome = tried(mutant, _baseline(target_of(ROOT / mutant.module), kept_at), now)
        found.append(outcome)
        with results.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        minutes = (time.monotonic() - started) / len(found) * (len(left) - len(found)) / 60
        click.echo(
            f"{len(found)}/{len(left)} {outcome.outcome} in {outcome.seconds} s: {outcome.name}; {minutes:.0f} min left"
        )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, sorted(left, key=lambda mutant: TARGETS.index(target_of(ROOT / mutant.module)))))
    return found


if __name__ == "__main__":
    main()
