"""The events of a run: faults, operators' actions and measurements."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.chaos.journal.lines import Appending, read_lines

EVENTS = "events.jsonl"


class Phase(StrEnum):
    BEGIN = "begin"
    END = "end"
    POINT = "point"


class Kind(StrEnum):
    """The kinds of events. Brackets name the fields of ``detail``; events about a process also have ``pid``."""

    # done by the scheduler
    KILL = "kill"
    """SIGKILL: a point."""
    FREEZE = "freeze"
    """SIGSTOP (begin) to SIGCONT (end)."""
    STOP = "stop"
    """SIGTERM (begin) to the process' exit (end) [exit_code]: a clean stop, also one of a rolling restart."""
    START = "start"
    """The process was started (begin) and is ready (end)."""
    CUT = "cut"
    """A link through the proxy passes no data, in one or both directions [direction: to_server|from_server|both]."""
    SLOW = "slow"
    """A link through the proxy is slow [latency_ms, bytes_per_s]."""
    EXPIRE = "expire"
    """Somebody else ends the target's ZooKeeper session: a point."""
    CLOCK = "clock"
    """The wall clock of a process jumps [seconds]."""
    TOPIC_ADDED = "topic-added"
    """[topic, partitions]"""
    PARTITIONS_ADDED = "partitions-added"
    """[topic, partitions: how many there are now]"""
    RESET_CONNECTIONS = "reset-connections"
    """All connections of a link through the proxy are broken (RST): a point."""
    ROLLING = "rolling"
    """A rolling restart of all processes of a role, from before its first stop to after its last start."""
    JOIN = "join"
    """A consumer joins in addition to those of the setup; its ``start`` follows."""
    REBALANCE = "rebalance"
    EVICT = "evict"
    """[group, consumer]"""
    RESIGN = "resign"
    PAUSE = "pause"
    """A pause of the group, or of all groups (target ``group:*``): begin to end."""
    LEADERS_MOVED = "leaders-moved"
    """Other brokers lead some partitions of the groups log: a point [partitions]."""
    FEW_REPLICAS = "few-replicas"
    """The groups log takes no writes: it asks for more in-sync replicas than there are (begin to end)."""
    RESET = "reset"
    """Committed offsets set by an operator [group, offsets: {topic: {partition: offset}}]."""
    # measured
    DIED = "died"
    """A process ended by itself [exit_code]; the testbed starts it again."""
    ELECTED = "elected"
    """An instance is the coordinator [epoch, session]."""
    REQUEST = "request"
    """A rebalance was asked for (begin) and decided (end) [id, group]."""
    MACHINE = "machine"
    """The machine's load from the target's SIGTERM until all requests were answered [seconds, busy, stolen, waited:
    :meth:`tests.chaos.machine.MachineTimes.until_now`].
    """
    SETTLED = "settled"
    """The target group is Stable with each partition owned."""
    BASELINE = "baseline"
    """All processes are warm: the judge compares resources from here on."""
    QUIET = "quiet"
    """The last fault is over; from here on the run only waits until the system has settled."""
    ENDED = "ended"
    """Producers have ended and consumers have read everything, or the time to wait for that is over."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``target`` is ``role:name``: ``consumer:c1``, ``serve:1``, ``zookeeper:2``, ``kafka:3``,
    ``group:delays``, ``link:consumer:c1``, ``all``. :class:`Kind` describes ``detail``, which is JSON.
    """

    t: float
    wall: float
    kind: str
    target: str = ""
    phase: Phase = Phase.POINT
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def role(self) -> str:
        """Of the target's last process: ``link:consumer:c1`` is a consumer's."""
        return self.target.removeprefix("link:").partition(":")[0]

    @property
    def name(self) -> str:
        return self.target.removeprefix("link:").partition(":")[2]


class EventWriter(Appending):
    """Appends to ``events.jsonl``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / EVENTS)

    def write(
        self, kind: Kind, target: str = "", phase: Phase = Phase.POINT, *, t: float | None = None, **detail: Any
    ) -> Event:
        """Now, or at ``t`` (monotonic seconds, of the recent past)."""
        now = time.monotonic()
        at = now if t is None else t
        event = Event(at, time.time() - (now - at), kind, target, phase, detail)
        self.append(asdict(event))
        return event


def read_events(directory: Path) -> tuple[Event, ...]:
    """Reads all events, in order of time."""
    found = read_lines(directory / EVENTS, lambda value: Event(**{**value, "phase": Phase(value["phase"])}))
    return tuple(sorted(found, key=lambda event: event.t))
