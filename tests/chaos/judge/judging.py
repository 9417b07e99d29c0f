"""Applies all rules to one run, and returns the report."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.journal import Event, Phase, Run
from tests.chaos.judge import failovers, groups, moves, phases, reading, world
from tests.chaos.judge.commits import commits, commits_of_owners
from tests.chaos.judge.cost import Cost, costs
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import Ruling, Status
from tests.chaos.judge.tables import TABLES, tables


@dataclass(frozen=True, slots=True)
class Report:
    """The judgement of a run. ``done`` counts the faults by ``role kind``. ``minutes`` is the duration of the
    run. ``happened`` are the events of the world."""

    run: Run
    rulings: tuple[Ruling, ...]
    costs: tuple[Cost, ...]
    done: dict[str, int]
    events: tuple[Event, ...]
    minutes: float
    happened: tuple[world.Happening, ...] = ()
    phases: tuple[phases.Seen, ...] = ()
    moves: tuple[moves.Move, ...] = ()

    @property
    def held(self) -> bool:
        """Whether no rule was broken. Rules without evidence do not count."""
        return not any(ruling.status is Status.BROKEN for ruling in self.rulings)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switches the garbage collector off, because it would search millions of values that have no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def judge(directory: Path) -> Report:
    """Judges a run by the files in its directory. Raises :class:`MalformedValue` for other files."""
    with _uncollected():
        records = Records(directory)
    rulings = _of_clients(records) if records.run.clients == "kafka" else _of_library(records)
    happened, seen, moved = world.happenings(records), phases.phases(records), moves.moves(records)
    if moved:  # no member loses its session, so the stronger rules hold, too
        rulings += (reading.one_owner(records), reading.repeats(records), moves.moved(moved), moves.paused(moved))
    done = Counter(fault.label for fault in records.faults) + Counter(f"{one.kind}" for one in happened)
    return Report(
        records.run,
        rulings + world.rulings(records, happened) + ((phases.migration(seen),) if seen else ()),
        costs(records),
        dict(sorted(done.items())),
        tuple(event for event in records.events if event.phase is not Phase.END),
        (records.until - records.run.started) / 60,
        happened,
        seen,
        moved,
    )


def _of_clients(records: Records) -> tuple[Ruling, ...]:
    """Applies the rules for stock clients, whose guarantees are weaker. A client that has lost its membership hands out
    records until it learns of the loss, while the next owner may already hand out the same records.
    """
    return (
        reading.nothing_missing(records),
        commits(records),
        reading.order(records),
        groups.convergence(records),
        groups.no_leaks(records),
        groups.no_spin(records),
        failovers.audited_groups_log(records),
        groups.complete(records),
    )


def _of_library(records: Records) -> tuple[Ruling, ...]:
    audit, found = failovers.audited(records)
    return (
        reading.nothing_missing(records),
        reading.one_owner(records),
        reading.repeats(records),
        reading.order(records),
        *([commits_of_owners(records)] if records.run.clients == "mixed" else []),
        *([tables(records)] if (records.directory / TABLES).is_dir() else []),
        groups.convergence(records),
        failovers.clean(records),
        failovers.killed(records),
        failovers.frozen(records, found),
        groups.unmoved(records),
        groups.explained(records),
        groups.no_leaks(records),
        groups.no_spin(records),
        audit,
        *([failovers.audited_groups_log(records)] if records.run.clients == "mixed" else []),
        groups.complete(records),
    )
