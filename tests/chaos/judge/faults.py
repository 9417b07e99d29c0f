"""The faults of a run as intervals, to attribute gaps, repeated records and losses to faults."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.journal import Event, Kind, Phase

CRASHES = frozenset(
    {Kind.KILL, Kind.FREEZE, Kind.CUT, Kind.EXPIRE, Kind.EVICT, Kind.SLOW, Kind.CLOCK, Kind.RESET_CONNECTIONS}
)
"""The faults that may end a membership without a clean stop."""

_DONE = CRASHES | {
    Kind.STOP,
    Kind.START,
    Kind.JOIN,
    Kind.TOPIC_ADDED,
    Kind.PARTITIONS_ADDED,
    Kind.REBALANCE,
    Kind.RESIGN,
    Kind.PAUSE,
    Kind.LEADERS_MOVED,
    Kind.FEW_REPLICAS,
    Kind.RESET,
}

OF_THE_WORLD = frozenset(
    {
        Kind.TOPIC_RECREATED,
        Kind.LATER_PARTITIONS,
        Kind.RETENTION,
        Kind.TRANSACTIONS,
        Kind.NO_LEADER,
        Kind.FORBIDDEN,
        Kind.ZOOKEEPER_SILENT,
        Kind.IDLE_CONNECTIONS,
        Kind.LARGE_COMMIT,
        Kind.INSTANCE_STOPPED,
        Kind.INSTANCE_KILLED,
        Kind.PROTOCOL_SWITCHED,
        Kind.TREE_LOST,
    }
)
"""The events of the world. They are no faults: those that they consist of have events of their own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of ``role:name``, from ``begin`` to ``end`` (monotonic seconds). A kill or stop lasts until the process
    runs again. With ``links``, the fault is in the network between the target and other processes.
    """

    kind: str
    role: str
    name: str
    begin: float
    end: float
    pid: int = 0
    links: bool = False
    detail: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """Its name in cost tables, such as ``consumer kill``."""
        return f"{self.role} {'link ' if self.links else ''}{self.kind}".strip()

    @property
    def disturbs(self) -> bool:
        """Whether this is a crash or a clean stop, not an operator's request or a grown topic."""
        return self.kind in CRASHES or self.kind == Kind.STOP


def faults_of(events: Iterable[Event], until: float) -> tuple[Fault, ...]:
    """Returns all faults, in order of their beginning. A fault without an end lasts until ``until``."""
    known = sorted(events, key=lambda event: event.t)
    ready = _Times(
        (event.target, event.t) for event in known if event.kind == Kind.START and event.phase != Phase.BEGIN
    )
    open_: dict[tuple[str, str], Event] = {}
    found: list[Fault] = []
    for event in known:
        if event.kind not in _DONE:
            continue
        key = (event.kind, event.target)
        if event.phase is Phase.BEGIN:
            before = open_.get(key)
            if before is not None:
                found.append(_fault(before, event.t))
            open_[key] = event
        elif event.phase is Phase.END:
            begun = open_.pop(key, event)
            found.append(_fault(begun, event.t))
        else:
            found.append(_fault(event, event.t))
    found += (_fault(event, until) for event in open_.values())
    gone = {Kind.KILL, Kind.STOP}
    lasting = [
        _until(fault, ready.after(f"{fault.role}:{fault.name}", fault.end, fault.end)) if fault.kind in gone else fault
        for fault in found
    ]
    return tuple(sorted(lasting, key=lambda fault: fault.begin))


def _fault(event: Event, end: float) -> Fault:
    pid = int(event.detail.get("pid") or 0)
    links = event.target.startswith("link:")
    return Fault(event.kind, event.role, event.name, event.t, end, pid, links, event.detail)


def _until(fault: Fault, end: float) -> Fault:
    return Fault(fault.kind, fault.role, fault.name, fault.begin, end, fault.pid, fault.links, fault.detail)


class _Times:
    """Maps each target to the times of its faults."""

    def __init__(self, pairs: Iterable[tuple[str, float]]) -> None:
        self._times: dict[str, list[float]] = {}
        for target, t in pairs:
            self._times.setdefault(target, []).append(t)

    def after(self, target: str, t: float, otherwise: float) -> float:
        times = self._times.get(target, [])
        at = bisect.bisect_left(times, t)
        return times[at] if at < len(times) else otherwise


class Faults:
    """The faults of a run, by time. A fault counts as under way for another ``aftermath_s`` after its end, in which the
    sessions that it broke end and their partitions get new owners.
    """

    def __init__(self, faults: Sequence[Fault], aftermath_s: float) -> None:
        self.all = tuple(sorted(faults, key=lambda fault: fault.begin))
        self.aftermath_s = aftermath_s

    def __iter__(self) -> Any:
        return iter(self.all)

    def under_way(
        self, begin: float, end: float | None = None, *, aftermath_s: float | None = None
    ) -> tuple[Fault, ...]:
        """Returns the faults that overlap the time from ``begin`` to ``end`` (default: only ``begin``)."""
        until = begin if end is None else end
        after = self.aftermath_s if aftermath_s is None else aftermath_s
        return tuple(fault for fault in self.all if fault.begin <= until and fault.end + after >= begin)

    def of(self, *kinds: str, role: str | None = None, name: str | None = None) -> tuple[Fault, ...]:
        """Returns the faults of these kinds, optionally of one role and one target."""
        return tuple(
            fault
            for fault in self.all
            if fault.kind in kinds and (role is None or fault.role == role) and (name is None or fault.name == name)
        )

    def frozen(self, consumer: str, begin: float, end: float) -> bool:
        """Tells whether this consumer was frozen at any time between these."""
        return any(
            fault.begin <= end and fault.end >= begin for fault in self.of(Kind.FREEZE, role="consumer", name=consumer)
        )


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a partition had no owner. ``alone`` tells whether no other fault was under way."""

    label: str
    alone: bool
    faults: tuple[Fault, ...] = ()


SHARED_ROLES = ("zookeeper", "serve", "kafka")


def of_session(fault: Fault, consumer: str, roles: Sequence[str] = SHARED_ROLES) -> bool:
    """Tells whether the fault can end this consumer's session. It is a fault of the consumer itself or of a server with
    one of the ``roles``. The default roles are those for a stock client, whose session is kept by the instance beside
    the broker that leads its group's log partition."""
    return (fault.role == "consumer" and fault.name == consumer) or fault.role in roles


def cause_of(
    faults: Sequence[Fault], *, consumer: str, in_group: Callable[[str], bool], group: str, lost: bool
) -> Cause:
    """Returns the most likely cause among ``faults``. The order is: the owner's own fault; if its session was ``lost``,
    a fault of a server; a fault of its group; a fault of a server; any fault."""

    def own(fault: Fault) -> bool:
        return (fault.role == "consumer" and fault.name == consumer) or _named(fault) == (group, consumer)

    def of_group(fault: Fault) -> bool:
        return (
            (fault.role == "group" and fault.name in {group, "*"})
            or fault.role == "topic"
            or (fault.kind in {Kind.TOPIC_ADDED, Kind.PARTITIONS_ADDED})
        )

    def others(fault: Fault) -> bool:
        return fault.role == "consumer" and fault.name != consumer and in_group(fault.name)

    def role(name: str) -> Callable[[Fault], bool]:
        return lambda fault: fault.role == name

    shared = [role(name) for name in SHARED_ROLES]
    steps: list[tuple[str, Callable[[Fault], bool]]] = [("", lambda fault: own(fault) and fault.kind != Kind.START)]
    if lost:
        steps += [("", test) for test in shared]
        steps += [("", own)]
    steps += [("moved by ", of_group), ("moved by ", others), *(("", test) for test in shared), ("", lambda _: True)]
    disturbing = {(fault.kind, fault.role, fault.name) for fault in faults if fault.disturbs}
    for prefix, test in steps:
        matching = [fault for fault in faults if test(fault)]
        if matching:
            chosen = max(matching, key=lambda fault: (fault.disturbs, fault.begin))
            alone = not (disturbing - {(chosen.kind, chosen.role, chosen.name)})
            return Cause(prefix + chosen.label, alone, tuple(faults))
    return Cause("lost, no fault under way" if lost else "moved, no fault under way", alone=True)


def _named(fault: Fault) -> tuple[object, object]:
    detail = fault.detail or {}
    return (detail.get("group"), detail.get("consumer")) if fault.kind == Kind.EVICT else (None, None)
