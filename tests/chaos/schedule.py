"""Computes the schedule of faults from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.journal import WORLD, Kind
from tests.chaos.links import Direction

_MEAN_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned fault, which begins ``at_s`` seconds after its stretch and lasts ``duration_s``. ``pick`` (0 to 1)
    chooses the target among the processes of ``role`` that are free at that moment."""

    at_s: float
    kind: Kind
    role: str
    pick: float
    duration_s: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sort:
    weight: float
    kind: Kind
    role: str
    lasts_s: tuple[float, float] = (0.0, 0.0)
    detail: dict[str, tuple[Any, ...]] = field(default_factory=dict)


_ONE_WAY = {"direction": (Direction.TO_SERVER, Direction.FROM_SERVER)}
_BOTH_WAYS = {"direction": (Direction.BOTH,)}
_SLOWLY = {"latency_ms": (40, 150, 400), "bytes_per_s": (0, 20_000)}
_JUMPS = {"seconds": (-86_400.0, -600.0, -5.0, 5.0, 600.0, 86_400.0)}

# Sessions last 6 s in a run, so longer faults end them.
_SORTS = (
    _Sort(4, Kind.KILL, "consumer", (0.0, 10.0)),
    _Sort(2, Kind.FREEZE, "consumer", (0.5, 4.0)),
    _Sort(2, Kind.FREEZE, "consumer", (7.0, 14.0)),
    _Sort(3, Kind.STOP, "consumer", (0.0, 6.0)),
    _Sort(1, Kind.CUT, "consumer", (1.0, 4.0), _BOTH_WAYS),
    _Sort(2, Kind.CUT, "consumer", (7.0, 14.0), _BOTH_WAYS),
    _Sort(2, Kind.CUT, "consumer", (3.0, 12.0), _ONE_WAY),
    _Sort(1, Kind.SLOW, "consumer", (5.0, 15.0), _SLOWLY),
    _Sort(1, Kind.RESET_CONNECTIONS, "consumer"),
    _Sort(2, Kind.EXPIRE, "consumer"),
    _Sort(1, Kind.CLOCK, "consumer", (5.0, 20.0), _JUMPS),
    _Sort(1.5, Kind.JOIN, "consumer", (10.0, 30.0)),
    _Sort(2, Kind.KILL, "serve", (0.0, 10.0)),
    _Sort(1, Kind.FREEZE, "serve", (0.5, 4.0)),
    _Sort(2, Kind.FREEZE, "serve", (7.0, 14.0)),
    _Sort(1.5, Kind.STOP, "serve", (0.0, 6.0)),
    _Sort(1.5, Kind.CUT, "serve", (7.0, 14.0), _BOTH_WAYS),
    _Sort(1.5, Kind.CUT, "serve", (3.0, 12.0), _ONE_WAY),
    _Sort(1, Kind.SLOW, "serve", (5.0, 15.0), _SLOWLY),
    _Sort(0.5, Kind.RESET_CONNECTIONS, "serve"),
    _Sort(1.5, Kind.EXPIRE, "serve"),
    _Sort(1, Kind.CLOCK, "serve", (5.0, 20.0), _JUMPS),
    _Sort(2, Kind.KILL, "zookeeper", (0.0, 8.0)),
    _Sort(1.5, Kind.FREEZE, "zookeeper", (1.0, 10.0)),
    _Sort(0.7, Kind.STOP, "zookeeper", (0.0, 4.0)),
    _Sort(1.2, Kind.CUT, "zookeeper", (2.0, 10.0), _BOTH_WAYS),
    _Sort(0.6, Kind.SLOW, "zookeeper", (5.0, 10.0), {"latency_ms": (20, 100), "bytes_per_s": (0,)}),
    _Sort(1.2, Kind.KILL, "kafka", (0.0, 8.0)),
    _Sort(0.8, Kind.FREEZE, "kafka", (2.0, 10.0)),
    _Sort(0.7, Kind.STOP, "kafka", (0.0, 4.0)),
    _Sort(0.6, Kind.CUT, "kafka", (5.0, 10.0), _BOTH_WAYS),
    _Sort(1.5, Kind.REBALANCE, "group"),
    _Sort(1, Kind.EVICT, "consumer"),
    _Sort(0.7, Kind.RESIGN, "operator"),
    _Sort(0.7, Kind.PAUSE, "group", (5.0, 12.0)),
    _Sort(0.5, Kind.RESET, "group"),
    _Sort(0.6, Kind.PARTITIONS_ADDED, "topic"),
    _Sort(0.4, Kind.TOPIC_ADDED, "topic"),
)


SORTS_OF_MIXED = (*_SORTS, _Sort(3, Kind.LEADERS_MOVED, "log"))
"""Stock clients have other coordinators when the leaders of the groups log move."""

# Stock clients connect only to the instances, so only the instances' links can be cut.
SORTS_OF_CLIENTS = (
    _Sort(4, Kind.KILL, "consumer", (0.0, 10.0)),
    _Sort(2, Kind.FREEZE, "consumer", (0.5, 4.0)),
    _Sort(3, Kind.FREEZE, "consumer", (7.0, 14.0)),
    _Sort(3, Kind.STOP, "consumer", (0.0, 6.0)),
    _Sort(1.5, Kind.JOIN, "consumer", (10.0, 30.0)),
    _Sort(3, Kind.KILL, "serve", (0.0, 10.0)),
    _Sort(1.5, Kind.FREEZE, "serve", (0.5, 4.0)),
    _Sort(2, Kind.FREEZE, "serve", (7.0, 14.0)),
    _Sort(1.5, Kind.STOP, "serve", (0.0, 6.0)),
    _Sort(1.5, Kind.CUT, "serve", (3.0, 14.0), _BOTH_WAYS),
    _Sort(1, Kind.CUT, "serve", (3.0, 12.0), _ONE_WAY),
    _Sort(1, Kind.SLOW, "serve", (5.0, 15.0), {"latency_ms": (40, 150, 400), "bytes_per_s": (0,)}),
    _Sort(1, Kind.RESET_CONNECTIONS, "serve"),
    _Sort(1, Kind.EXPIRE, "serve"),
    _Sort(0.5, Kind.CLOCK, "serve", (5.0, 20.0), _JUMPS),
    _Sort(1, Kind.KILL, "zookeeper", (0.0, 8.0)),
    _Sort(0.7, Kind.FREEZE, "zookeeper", (1.0, 10.0)),
    _Sort(1, Kind.FREEZE, "ensemble", (3.0, 15.0)),
    _Sort(2.5, Kind.KILL, "kafka", (0.0, 8.0)),
    _Sort(2, Kind.FREEZE, "kafka", (2.0, 12.0)),
    _Sort(1, Kind.STOP, "kafka", (0.0, 4.0)),
    _Sort(1.2, Kind.CUT, "kafka", (5.0, 12.0), _BOTH_WAYS),
    _Sort(4, Kind.LEADERS_MOVED, "log"),
    _Sort(1.5, Kind.FEW_REPLICAS, "log", (2.0, 8.0)),
    _Sort(0.6, Kind.PARTITIONS_ADDED, "topic"),
)


_OF_OWN_MEMBERS = (
    Kind.LATER_PARTITIONS,
    Kind.RETENTION,
    Kind.TRANSACTIONS,
    Kind.NO_LEADER,
    Kind.FORBIDDEN,
    Kind.ZOOKEEPER_SILENT,
)
EVENTS = {
    "library": (Kind.TOPIC_RECREATED, *_OF_OWN_MEMBERS, Kind.IDLE_CONNECTIONS, Kind.LARGE_COMMIT),
    "kafka": (
        Kind.TOPIC_RECREATED,
        Kind.IDLE_CONNECTIONS,
        Kind.LARGE_COMMIT,
        Kind.INSTANCE_STOPPED,
        Kind.INSTANCE_KILLED,
    ),
    "mixed": (Kind.TOPIC_RECREATED, Kind.PROTOCOL_SWITCHED, *_OF_OWN_MEMBERS),
}
"""The events of the world, by the kinds of consumers of the run."""

OF_KRAFT = (Kind.TREE_LOST,)
"""The events that need a ZooKeeper which only the coordination uses: only if they are asked for, with mixed clients."""

AMID_FAULTS = frozenset(
    {Kind.TOPIC_RECREATED, Kind.LATER_PARTITIONS, Kind.RETENTION, Kind.TRANSACTIONS, Kind.FORBIDDEN}
)
"""The events that also happen amid other faults. The others are themselves faults of servers, or have nothing that
could be judged then."""

_MEAN_PAUSE_OF_EVENTS_S = 60.0
SMOKE = (Kind.TOPIC_RECREATED,)
"""The events in a run of less than a minute, which measures no failovers for it."""


def turmoil(randomness: random.Random, seconds: float, sorts: Sequence[_Sort] = _SORTS) -> tuple[Planned, ...]:
    """Returns faults for this many seconds, in order. They may overlap."""
    found: list[Planned] = []
    at_s = randomness.uniform(0.0, 1.0)
    while at_s < seconds:
        sort = randomness.choices(sorts, [sort.weight for sort in sorts])[0]
        found.append(
            Planned(
                at_s,
                sort.kind,
                sort.role,
                randomness.random(),
                min(randomness.uniform(*sort.lasts_s), max(1.0, seconds - at_s)),
                {name: randomness.choice(choices) for name, choices in sort.detail.items()},
            )
        )
        at_s += randomness.expovariate(1 / _MEAN_PAUSE_S)
    return tuple(found)


def events(seed: int, number: int, seconds: float, clients: str) -> tuple[Planned, ...]:
    """Returns the events of the world amid the faults of a stretch, in order. Their choices have a source of their own,
    so that they take nothing from the other faults."""
    kinds = [kind for kind in EVENTS[clients] if kind in AMID_FAULTS]
    randomness = random.Random(f"events {seed} {number}")
    found: list[Planned] = []
    at_s = randomness.uniform(0.0, _MEAN_PAUSE_OF_EVENTS_S)
    while at_s < seconds:
        found.append(Planned(at_s, randomness.choice(kinds), WORLD, randomness.random()))
        at_s += randomness.expovariate(1 / _MEAN_PAUSE_OF_EVENTS_S)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of faults, and the measurements and events without other faults after it."""

    planned: tuple[Planned, ...]
    seconds: float
    then: tuple[str, ...]
    calm: tuple[Kind, ...] = ()


CLEAN_STOP, KILLED, FROZEN = "clean stop", "killed", "frozen"
ROLLING = ("serve", "zookeeper", "kafka")

_LONGEST_STRETCH_S = 240.0
_MEASURING_S = 60.0
_ROLLING_S = 15.0
_EVENT_S = 25.0


def schedule(
    seed: int, minutes: float, sorts: Sequence[_Sort] = _SORTS, clients: str = "library"
) -> tuple[Stretch, ...]:
    """Returns the schedule for this many minutes. Failovers of all three kinds are measured after each stretch. One
    kind of rolling restart is measured after each of the first three stretches, or all kinds after a lone stretch. A
    run of less than two minutes has no rolling restarts, and a run of less than a minute measures nothing.

    Each event of the world happens once without other faults in a run of several stretches, and some happen in a
    shorter run.
    """
    randomness = random.Random(seed)
    total_s = minutes * 60.0
    count = max(1, round(total_s / (_LONGEST_STRETCH_S + _MEASURING_S)))
    stretches = []
    for number in range(count):
        rolling = _all_rolling(minutes) if count == 1 else ROLLING[number : number + 1]
        calm = _calm(seed, minutes, number, count, clients)
        spent_s = _MEASURING_S + _ROLLING_S * len(rolling) + _EVENT_S * len(calm)
        seconds = max(20.0, total_s / count - spent_s)
        then = () if minutes < 1.0 else (CLEAN_STOP, KILLED, FROZEN, *rolling)
        planned = _planned(randomness, seed, number, seconds, sorts, clients)
        if minutes < 1.0:
            planned = tuple(one for one in planned if one.role != WORLD)
        stretches.append(Stretch(planned, seconds, then, calm))
    return tuple(stretches)


def schedule_of_clients(seed: int, minutes: float) -> tuple[Stretch, ...]:
    """Returns the schedule for stock clients. After the first stretch, all servers are restarted one after another. A
    run of less than two minutes has no such restarts. The events of the world are as in :func:`schedule`."""
    randomness = random.Random(seed)
    total_s = minutes * 60.0
    count = max(1, round(total_s / (_LONGEST_STRETCH_S + _MEASURING_S)))
    stretches = []
    for number in range(count):
        then = _all_rolling(minutes) if number == 0 else ()
        calm = _calm(seed, minutes, number, count, "kafka")
        seconds = max(15.0, total_s / count - _ROLLING_S * (1 + len(then)) - _EVENT_S * len(calm))
        planned = _planned(randomness, seed, number, seconds, SORTS_OF_CLIENTS, "kafka")
        stretches.append(Stretch(planned, seconds, then, calm))
    return tuple(stretches)


def schedule_of_events(kinds: Sequence[Kind], minutes: float) -> tuple[Stretch, ...]:
    """Returns a schedule that only has these events, one after another and each at least once, without other faults."""
    rounds = max(1, round(minutes * 60.0 / (_EVENT_S * len(kinds))))
    return (Stretch((), 0.0, (), tuple(kinds) * rounds),)


def _planned(
    randomness: random.Random, seed: int, number: int, seconds: float, sorts: Sequence[_Sort], clients: str
) -> tuple[Planned, ...]:
    planned = [*turmoil(randomness, seconds, sorts), *events(seed, number, seconds, clients)]
    return tuple(sorted(planned, key=lambda one: one.at_s))


def _calm(seed: int, minutes: float, number: int, count: int, clients: str) -> tuple[Kind, ...]:
    """Returns the events after a stretch: an equal share of all, or two of all after a lone stretch."""
    kinds = EVENTS[clients]
    if minutes < 1.0:
        return tuple(kind for kind in SMOKE if kind in kinds)
    if count == 1:
        return tuple(random.Random(f"calm {seed}").sample(kinds, 2))
    return kinds[number::count]


def _all_rolling(minutes: float) -> tuple[str, ...]:
    return ROLLING if minutes >= 2.0 else ()
