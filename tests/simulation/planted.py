"""Runs every check against each deliberate defect, and writes the table of the results (``scripts/planted``)."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import click
from hypothesis import Phase, settings

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import FAULTS, UNREADABLE
from tests.simulation.mutations import MUTATIONS, TELLING, mutated
from tests.simulation.rule_mutations import RULE_MUTATIONS

TABLE = Path(__file__).with_name("planted.md")
HEAD = "| fault | simulator | property tests | audit |\n|---|---|---|---|\n"

FAULTS_UNDER = TELLING | {
    "a step with an unreadable offset is left out of its plan": frozenset({UNREADABLE, "kill", "close", "grow"}),
    "an unreadable offset counts as no offset": frozenset({UNREADABLE, "kill", "close", "grow"}),
    "offsets reset while a partition is held": frozenset({"reset", "kill", "cut"}),
    "a recreated topic starts at the old offsets": frozenset({"topic", "kill"}),
    "members of a paused group receive commands": frozenset({"pause", "pause-group", "grow", "kill"}),
    "partitions kept during a grace period are started elsewhere": frozenset({"kill", "close", "grow"}),
    "an epoch written without compare-and-set": frozenset({"resign", "depose", "freeze", "cut"}),
    "no grace period": frozenset({"kill", "close"}),
}
"""The faults to run a defect with, if other faults hide it for long."""

PURE_TESTS = (
    *("tests/coordinator/test_deadlines.py", "tests/coordinator/test_handler.py"),
    *(f"tests/coordinator/plan/test_{name}.py" for name in ("asking", "causes", "moving", "violations", "invariants")),
    *("tests/frontends/machine", "tests/frontends/test_offsets_stay.py", "tests/channel/test_membership.py"),
    *("tests/consumer/test_leaving.py", "tests/consumer/test_positions.py", "tests/consumer/test_waiting_steps.py"),
    "tests/frontends/kafka/managed",
)
"""The tests without a server, which take seconds. The tests of the planner run with a few examples each."""
EXAMPLES = 25
NOT_SEEN = "-"
NOT_RUN = ""
_CELLS = 4


@dataclass(slots=True)
class Seen:
    """The checks that found one defect, with the number of histories, or ``None`` for checks that did not find it."""

    name: str
    simulator: int | None = None
    audit: int | None = None
    rule: str = ""
    properties: str = NOT_RUN

    def row(self) -> str:
        def shown(histories: int | None) -> str:
            return NOT_SEEN if histories is None else f"{histories}"

        audit = shown(self.audit) + (f" (`{self.rule}`)" if self.rule else "")
        return f"| {self.name} | {shown(self.simulator)} | {self.properties} | {audit} |"


def look(name: str, seeds: Iterable[int], budget_s: float) -> Seen:
    """Runs histories with the defect until the simulator and the audit have found it."""
    seen, until = Seen(name), time.monotonic() + budget_s
    with mutated(name):
        for seed in seeds:
            cluster = SimulatedCluster(seed, FAULTS_UNDER.get(name, FAULTS))
            try:
                broken = cluster.verdict() is not None
            except Exception:  # noqa: BLE001 - the defect may show as an error of the code that has it
                broken = True
            if broken and seen.simulator is None:
                seen.simulator = seed + 1
            if seen.audit is None and (objection := cluster.audit()):
                seen.audit, seen.rule = seed + 1, objection.partition(": ")[2].split(": ")[1]
            if (seen.simulator and seen.audit) or time.monotonic() > until:
                break
    return seen


def ask_properties(name: str) -> str:
    """Runs the tests without a server in a process that has the defect."""
    run = [sys.executable, "-m", "tests.simulation.planted", "--pytest", name]
    try:
        done = subprocess.run(run, capture_output=True, timeout=300, check=False, text=True)
    except subprocess.TimeoutExpired:
        return "no answer in time"
    failed = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?test_(\w+)\.py", done.stdout, re.MULTILINE)
    return f"`{failed[1]}`" if failed else NOT_SEEN


def run_properties(name: str) -> int:
    """Runs the tests in this process. Without a name, plants no defect."""
    import pytest

    from tests.coordinator.plan.machines import EAGER_GROUP, GROUP

    for case in (GROUP, EAGER_GROUP):
        case.settings = settings(
            case.settings, max_examples=EXAMPLES, database=None, derandomize=True, phases=[Phase.generate]
        )
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with mutated(name) if name else nullcontext():
        return int(pytest.main([*options, "-m", "not zookeeper and not kafka", "-k", "not is_shrunk", *PURE_TESTS]))


def rows(path: Path = TABLE) -> dict[str, str]:
    """Reads the row of each defect in the table."""
    table = path.read_text().partition(HEAD)[2]
    return {row.split(" | ")[0].removeprefix("| "): row for row in table.splitlines()}


def likely_first(name: str, seeds: int) -> list[int]:
    """Returns the seeds in the defect's row of the table, and then all others below this number."""
    first = [int(found) - 1 for found in re.findall(r"\| (\d+)\b", rows().get(name, ""))]
    return sorted({*first, *range(seeds)}, key=lambda seed: (seed not in first, seed))


def write_table(found: list[Seen], path: Path = TABLE) -> None:
    """Writes the rows. Keeps the rows of other defects, and the results of other checks."""
    before, known = path.read_text().partition(HEAD)[0], rows(path)
    for seen in found:
        cells = known.get(seen.name, "").split(" | ")
        if len(cells) == _CELLS:
            seen.properties = cells[2] if seen.properties == NOT_RUN else seen.properties
        known[seen.name] = seen.row()
    table = [f"{known[name]}\n" for name in (*RULE_MUTATIONS, *MUTATIONS) if name in known]
    path.write_text("".join([before, HEAD, *table]))


@click.command()
@click.option("--seeds", default=300, show_default=True, help="The most histories per defect.")
@click.option("--budget", default=20.0, show_default=True, help="The most seconds per defect.")
@click.option("--only", default="", help="Only defects whose name contains one of these, separated by commas.")
@click.option("--rules", is_flag=True, help="Only defects that break a rule about ZooKeeper's contents.")
@click.option(
    "--properties/--no-properties",
    default=True,
    help="Also run the tests that need no server: 15 seconds per defect.",
)
@click.option("--write", is_flag=True, help="Write the table into planted.md.")
@click.option("--pytest", "planted", default="", hidden=True)
def main(*, seeds: int, budget: float, only: str, rules: bool, properties: bool, write: bool, planted: str) -> None:
    """Plants each defect in the code, one at a time, and shows which checks find it.

    The figures are the numbers of simulated histories until the defect was found. Exit code 1 if the audit misses a
    defect that breaks a rule about ZooKeeper's contents, or if no check finds a defect.
    """
    logging.disable(logging.CRITICAL)
    if planted:
        sys.exit(run_properties(planted))
    names = [
        name
        for name in (*RULE_MUTATIONS, *(() if rules else MUTATIONS))
        if any(part in name for part in only.split(","))
    ]
    found = []
    for number, name in enumerate(names, 1):
        seen = look(name, range(seeds), budget)
        if properties:
            seen.properties = ask_properties(name)
        found.append(seen)
        click.echo(f"{number} of {len(names)}: {seen.row()}")
    if write:
        write_table(found)
    missed = [one.name for one in found if one.audit is None and (one.name in RULE_MUTATIONS or one.simulator is None)]
    if missed:
        raise click.ClickException(f"not seen: {', '.join(missed)}")


if __name__ == "__main__":
    main()
