"""Finds a short history that leads to a failure, with fewer faults of the same seed and an earlier end of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.simulation.cluster import TURMOIL, SimulatedCluster
from tests.simulation.faults import FAULTS


@dataclass(frozen=True, slots=True)
class History:
    """Everything that determines a history: see :class:`~tests.simulation.cluster.SimulatedCluster`."""

    seed: int
    faults: frozenset[str] = FAULTS
    turmoil: int = TURMOIL
    spared: frozenset[int] = frozenset()

    def options(self) -> str:
        """The options that make ``scripts/simulate`` replay this history."""
        words = [f"--seed {self.seed} --story"]
        if self.faults != FAULTS:
            words.append(f"--faults {','.join(sorted(self.faults)) or 'none'}")
        if self.turmoil != TURMOIL:
            words.append(f"--turmoil {self.turmoil}")
        if self.spared:
            words.append(f"--spare {','.join(map(str, sorted(self.spared)))}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Played:
    """A history and its outcome. ``broken`` is empty if every invariant held."""

    history: History
    broken: str
    cluster: SimulatedCluster

    def cost(self) -> tuple[int, int]:
        """The length of a history, as its faults and then its steps."""
        spared = sum(number <= self.cluster.faults_met for number in self.history.spared)
        return self.cluster.faults_met - spared, self.cluster.steps


def play(history: History) -> Played:
    """Runs a history to its end or to a failure of any kind."""
    cluster = SimulatedCluster(history.seed, history.faults, history.turmoil, history.spared)
    try:
        verdict = cluster.verdict()
        broken = cluster.audit() if verdict is None else str(verdict)
    except Exception as error:  # noqa: BLE001 - the code under test must not raise any exception
        broken = f"{type(error).__name__}: {error}"
    return Played(history, broken, cluster)


def shrink(failed: Played, budget_s: float) -> Played:
    """Returns the shortest failing history that it finds within ``budget_s``. From ``failed``, it first leaves out
    whole kinds of faults, then single faults in halves and smaller parts, and then the last steps with faults. The last
    violation may be of another invariant than the first one, because the seed continues differently."""
    until = time.monotonic() + budget_s
    found, again = failed, True
    while again:
        again = False
        for attempt in _shorter(found):
            if time.monotonic() > until:
                return found
            played = play(attempt)
            if played.broken and played.cost() < found.cost():
                found, again = played, True
                break
    return found


def _shorter(played: Played) -> Iterator[History]:
    history = played.history
    for kind in sorted(history.faults):
        yield replace(history, faults=history.faults - {kind}, spared=frozenset())
    happened = [number for number in range(1, played.cluster.faults_met + 1) if number not in history.spared]
    size = len(happened)
    while size:
        for first in range(0, len(happened), size):
            yield replace(history, spared=history.spared | frozenset(happened[first : first + size]))
        size //= 2
    shortest = min(history.turmoil, played.cluster.steps)
    for sixteenths in range(16):
        if (turmoil := shortest * sixteenths // 16) < history.turmoil:
            yield replace(history, turmoil=turmoil)
