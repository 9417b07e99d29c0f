"""The moves of a group between the brokers and the instances: how long its members waited, and what was refused."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tests.chaos.journal import (
    Closed,
    Committed,
    Committing,
    ConsumerJournal,
    Handed,
    Kind,
    Lost,
    Phase,
    Started,
    Stopped,
    read_consumers,
)
from tests.chaos.judge.attempts import NEVER
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import ChaosFinding, Rule, Ruling, Severity, ruling, violation

_MEDIAN_S, _WORST_S = 0.5, 3.0


@dataclass(frozen=True, slots=True)
class Move:
    """A move, from its request at ``begin`` until the group was settled. ``paused_s`` is the longest time in which a
    member had no partitions, or waited for a commit, and ``silent_s`` that in which a member received no record: a
    killed instance is also missing between members and its broker. ``killed`` is that instance. ``load`` is the
    machine's load average at the end."""

    to: str
    killed: str
    begin: float
    done: bool
    message: str
    refused: Sequence[str]
    took_s: float
    paused_s: float
    silent_s: float
    load: float


def moves(records: Records) -> tuple[Move, ...]:
    """Returns the moves in order."""
    begins = [one.t for one in records.of(Kind.MOVED, phase=Phase.BEGIN)]
    ends = records.of(Kind.MOVED, phase=Phase.END)
    if not ends:
        return ()
    journals = read_consumers(records.directory)
    times = [[line.t for line in one.lines if isinstance(line, Handed)] for one in journals]
    waits = [wait for one in journals for wait in _waits(one)]
    found = []
    for begin, end in zip(begins, ends, strict=False):
        told = end.detail
        silent_s = max((_longest(one, begin, end.t) for one in times), default=0.0)
        paused_s = max((until - since for since, until in waits if begin < until <= end.t), default=0.0)
        done = told["result"] == "done"
        after = (told["message"], told["refused"], told["took_s"], paused_s, silent_s, told["load"])
        found.append(Move(told["to"], told["killed"], begin, done, *after))
    return tuple(found)


def moved(found: Sequence[Move]) -> Ruling:
    """Checks that every move was done, if necessary after some tries."""
    findings: list[ChaosFinding] = []
    for number, one in enumerate(found, start=1):
        if not one.done:
            findings.append(violation(Rule.MOVES, f"move {number} to {one.to}", f"it was not done: {one.refused[-1:]}"))
        if one.refused:
            text = "; ".join(one.refused)
            findings.append(
                ChaosFinding(Rule.MOVES, Severity.WARNING, f"move {number} to {one.to} {one.killed}".strip(), text)
            )
    loads = [one.load for one in found] or [0.0]
    kills = sum(bool(one.killed) for one in found)
    checked = f"{len(found)} moves, {kills} with a kill, at loads of {min(loads):.0f} to {max(loads):.0f}"
    return ruling(Rule.MOVES, findings, checked=checked, exercised=bool(found))


def paused(found: Sequence[Move]) -> Ruling:
    """Checks that members waited no longer than they may."""
    middle_s, worst_s = _both([one.paused_s for one in found])
    calm = _both([one.paused_s for one in found if not one.killed])
    findings = [
        violation(Rule.PAUSES, "all moves", f"the {name} pause was {seconds:.2f} s, more than {most_s:g} s")
        for name, seconds, most_s in (("median", middle_s, _MEDIAN_S), ("longest", worst_s, _WORST_S))
        if seconds > most_s
    ]
    told = f"median {middle_s:.2f} s, worst {worst_s:.2f} s; without a kill {calm[0]:.2f} s, {calm[1]:.2f} s"
    bound = f"median {_MEDIAN_S:g} s, worst {_WORST_S:g} s"
    figures = {"median_s": middle_s, "worst_s": worst_s}
    return ruling(Rule.PAUSES, findings, checked=told, bound=bound, exercised=bool(found), figures=figures)


def _both(seconds: Sequence[float]) -> tuple[float, float]:
    return (median(seconds), max(seconds)) if seconds else (0.0, 0.0)


def table(found: Sequence[Move]) -> Iterator[str]:
    """Yields the lines of a table in Markdown: a line for each direction, with and without a kill."""
    yield "| to | killed | moves | pause: median, worst | no record: both | answered: both | refused |"
    yield "|---|---|---|---|---|---|---|"
    kinds = sorted({(one.to, bool(one.killed)) for one in found})
    for to, kills in kinds:
        those = [one for one in found if (one.to, bool(one.killed)) == (to, kills)]
        figures = ([one.paused_s for one in those], [one.silent_s for one in those], [one.took_s for one in those])
        told = " | ".join("{:.2f} s, {:.2f} s".format(*_both(one)) for one in figures)
        refused = Counter(_reason(text) for one in those for text in one.refused)
        why = "; ".join(f"{count} {text}" for text, count in refused.most_common()) or "none"
        yield f"| {to} | {'yes' if kills else ''} | {len(those)} | {told} | {why} |"


def _reason(text: str) -> str:
    return text.rpartition("was not moved: ")[2]


def _waits(journal: ConsumerJournal) -> Iterator[tuple[float, float]]:
    """Yields the times in which the member had no partitions, or waited for the answer to a commit."""
    gone = asked = NEVER
    for line in journal.lines:
        if isinstance(line, Handed | Committing | Committed | Closed) and asked < line.t:
            yield asked, line.t
            asked = NEVER
        if isinstance(line, Committing):
            asked = line.t
        elif isinstance(line, Stopped | Lost):
            gone = min(gone, line.t)
        elif isinstance(line, Started) and gone < line.t:
            yield gone, line.t
            gone = NEVER


def _longest(times: Sequence[float], begin: float, end: float) -> float:
    """Returns the longest gap between two times that ends in the span, or 0 if there is none."""
    first = max(0, bisect.bisect_right(times, begin) - 1)
    within = times[first : bisect.bisect_right(times, end)]
    return max((after - before for before, after in itertools.pairwise(within)), default=0.0)
