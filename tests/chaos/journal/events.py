"""The events of a run: faults, operators' actions and measurements."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kafka_coord.dev.json_lines import Appending, read_lines

EVENTS = "events.jsonl"


class Phase(StrEnum):
    BEGIN = "begin"
    END = "end"
    POINT = "point"


class Kind(StrEnum):
    """The kinds of events. Brackets contain the fields of ``detail``. Events of a process also have ``pid``."""

    # faults and actions
    KILL = "kill"
    """SIGKILL (a point)."""
    FREEZE = "freeze"
    """SIGSTOP (begin) to SIGCONT (end)."""
    STOP = "stop"
    """A clean stop, also in a rolling restart: SIGTERM (begin) to the end of the process (end) [exit_code]."""
    START = "start"
    """The process was started (begin) and is ready (end)."""
    CUT = "cut"
    """A link through the proxy passes no data, in one or both directions [direction: to_server|from_server|both]."""
    SLOW = "slow"
    """A link through the proxy is slow [latency_ms, bytes_per_s]."""
    EXPIRE = "expire"
    """The testbed ends the target's ZooKeeper session from outside (a point)."""
    CLOCK = "clock"
    """The wall clock of a process jumps [seconds]."""
    TOPIC_ADDED = "topic-added"
    """[topic, partitions]"""
    PARTITIONS_ADDED = "partitions-added"
    """[topic, partitions: their new number]"""
    RESET_CONNECTIONS = "reset-connections"
    """All connections of a link through the proxy are reset (a point)."""
    ROLLING = "rolling"
    """A rolling restart of all processes of a role, from before its first stop to after its last start."""
    JOIN = "join"
    """A consumer joins in addition to those of the setup. Its ``start`` follows."""
    REBALANCE = "rebalance"
    EVICT = "evict"
    """[group, consumer]"""
    RESIGN = "resign"
    PAUSE = "pause"
    """A pause of the group, or of all groups with the target ``group:*`` (begin to end)."""
    LEADERS_MOVED = "leaders-moved"
    """Other brokers lead some partitions of the groups log [partitions] (a point)."""
    FEW_REPLICAS = "few-replicas"
    """The groups log accepts no writes, because it requires more in-sync replicas than exist (begin to end)."""
    RESET = "reset"
    """An operator sets committed offsets [group, offsets: {topic: {partition: offset}}]."""
    # events of the world: the target is ``world:<name of the scene>``, and the end has an Observed in ``detail``
    TOPIC_RECREATED = "topic-recreated"
    """A topic is deleted and made anew while a group reads it."""
    LATER_PARTITIONS = "later-partitions"
    """A topic of a group that begins at the end gets partitions, and its pattern gets a topic."""
    RETENTION = "retention"
    """Records that a stopped group has not read are deleted, up to some that it has not read either."""
    TRANSACTIONS = "transactions"
    """A transactional producer commits and aborts."""
    NO_LEADER = "no-leader"
    """One topic of a group has no leader, because the only broker with its replica is stopped."""
    FORBIDDEN = "forbidden-topic"
    """An ACL forbids the reading, or the describing, of one topic of a group."""
    ZOOKEEPER_SILENT = "zookeeper-silent"
    """All ZooKeeper servers are silent for longer than consumers' leases, but not than their sessions."""
    IDLE_CONNECTIONS = "idle-connections"
    """Connections are idle for longer than brokers keep them open."""
    LARGE_COMMIT = "large-commit"
    """A client commits more than the groups log's topic accepts, beside another group in the same partition."""
    INSTANCE_STOPPED = "instance-stopped"
    """An instance is stopped cleanly and started again, while stock clients commit."""
    INSTANCE_KILLED = "instance-killed"
    """An instance is killed, and FindCoordinator is asked where its groups are."""
    PROTOCOL_SWITCHED = "protocol-switched"
    """A static classic member returns as a KIP-848 member with the same instance id."""
    TREE_LOST = "tree-lost"
    """The disks of all ZooKeeper servers are lost, and a backup is restored. Resets say which offsets it holds."""
    MIGRATING = "migrating"
    """A phase of a migration to KRaft, with the target ``phase:<name>`` (begin). At its end, it has been looked at
    [doctor: the sentences of ``doctor`` about it, missing: what they should say and do not, seen_s: how long after the
    requests the new partition and the new topic stood in ZooKeeper].
    """
    MOVED = "moved"
    """The target group is taken over or given back (begin) [to, killed: an instance that is killed meanwhile], until it
    is settled (end) [to, killed, result, message, refused: the reasons of earlier tries, took_s: until the answer]."""
    # measured
    DIED = "died"
    """A process ended unexpectedly [exit_code]. The testbed starts it again."""
    ELECTED = "elected"
    """An instance is the coordinator [epoch, session]."""
    REQUEST = "request"
    """A rebalance was requested (begin) and decided (end) [id, group]."""
    MACHINE = "machine"
    """The machine's load from the target's SIGTERM until all requests were answered [seconds, busy, stolen, waited:
    :meth:`tests.chaos.machine.MachineTimes.until_now`].
    """
    SETTLED = "settled"
    """The target group is Stable, and each partition has an owner."""
    BASELINE = "baseline"
    """All processes have warmed up. The judge compares resources from here on."""
    QUIET = "quiet"
    """The last fault is over. From here on, the run only waits until the system has settled."""
    ENDED = "ended"
    """The producer has ended and the consumers have read everything, or the wait for this has timed out."""


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
        """The role of the target's process. ``link:consumer:c1`` has the role ``consumer``."""
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
        """Writes an event of now, or of the recent time ``t`` (monotonic seconds)."""
        now = time.monotonic()
        at = now if t is None else t
        event = Event(at, time.time() - (now - at), kind, target, phase, detail)
        self.append(asdict(event))
        return event


def read_events(directory: Path) -> tuple[Event, ...]:
    """Reads all events, in order of time."""
    found = read_lines(
        directory / EVENTS, lambda value: Event(**{**value, "t": float(value["t"]), "phase": Phase(value["phase"])})
    )
    return tuple(sorted(found, key=lambda event: event.t))
