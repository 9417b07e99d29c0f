"""The files of a run's directory: what the stage and the processes write, and what the judge reads. No decisions.

::

    DIR/run.json                         Run: what was set up, written at the start
    DIR/events.jsonl                     Event: all that was done to the system, and all that was measured
    DIR/produced.jsonl                   Produced: what brokers acknowledged
    DIR/consumers/<name>.<pid>.jsonl     ConsumerLine: one process' own life, from ``opened`` to ``closed``
    DIR/resources.jsonl                  Usage: memory, threads, descriptors per process; znodes of the ensemble

Every file but run.json is appended to, unbuffered, a line in one write: what a process wrote survives its ``kill -9``,
and at most its last line is torn. A torn line is left out by readers. All ``t`` are seconds of CLOCK_MONOTONIC
(``time.monotonic()``), which all processes of the machine share; ``wall`` is seconds since 1970, for people and logs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from kafka_coord.errors import MalformedValue
from kafka_coord.model import TopicPartition

RUN, EVENTS, PRODUCED, CONSUMERS, RESOURCES = (
    "run.json",
    "events.jsonl",
    "produced.jsonl",
    "consumers",
    "resources.jsonl",
)

T = TypeVar("T")


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the run. Exactly one of ``topics`` and ``pattern`` (a white list, as a subscription's) is given.

    ``members`` are the kinds of its consumers, in words. ``latest`` groups begin at the end: only what comes after
    their first start is theirs to read.
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    members: tuple[str, ...] = ()
    latest: bool = False


@dataclass(frozen=True, slots=True)
class Participant:
    """A consumer of the run: its id in the group, what kind it is, what it asks for."""

    name: str
    group: str
    kind: str = "library"
    session_timeout_ms: int = 10_000
    rejoin_grace_ms: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """What the run ran on, and the times its bounds come from (ms). ``session_timeouts_ms`` is by role: ``serve``,
    ``consumer``, ``kafka``. ``versions`` is by part: python, kazoo, zookeeper, kafka, librdkafka, java, kafka_coord."""

    cores: int
    memory_bytes: int
    versions: Mapping[str, str]
    session_timeouts_ms: Mapping[str, int]
    rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Run:
    """``zookeeper_logs`` are the directories with ``version-2`` in them, of each server, relative to the run's;
    ``chroot`` is what the coordinator and Kafka keep their znodes below. ``started`` is monotonic, ``started_wall``
    since 1970 (s)."""

    seed: int
    minutes: float
    commit: str
    started: float
    started_wall: float
    setup: Setup
    groups: tuple[Group, ...]
    consumers: tuple[Participant, ...]
    zookeeper_logs: tuple[str, ...] = ()
    chroot: str = ""


def write_run(directory: Path, run: Run) -> None:
    """Writes ``run.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RUN).write_text(json.dumps({"version": 1} | asdict(run), indent=1) + "\n")


def read_run(directory: Path) -> Run:
    """Reads ``run.json``; raises :class:`MalformedValue` where there is none that can be read."""
    path = directory / RUN
    try:
        value = json.loads(path.read_bytes())
        if value.pop("version") != 1:
            raise MalformedValue(str(path), "is of a version this release does not know")
        groups = [
            Group(**group | {"topics": tuple(group["topics"]), "members": tuple(group["members"])})
            for group in value["groups"]
        ]
        return Run(
            **value
            | {
                "setup": Setup(**value["setup"]),
                "groups": tuple(groups),
                "consumers": tuple(Participant(**consumer) for consumer in value["consumers"]),
                "zookeeper_logs": tuple(value["zookeeper_logs"]),
            }
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MalformedValue(str(path), f"does not describe a run ({error!r})") from error


# --- events ----------------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    BEGIN = "begin"
    END = "end"
    POINT = "point"


class Kind(StrEnum):
    """What an event is about. In brackets what ``detail`` holds, beside ``pid`` wherever a process is meant."""

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
    """A link through the proxy passes nothing, one way or both [direction: to_server|from_server|both]."""
    SLOW = "slow"
    """A link through the proxy is slow [latency_ms, bytes_per_s]."""
    EXPIRE = "expire"
    """The target's ZooKeeper session is ended by others: a point."""
    CLOCK = "clock"
    """The wall clock of a process jumps [seconds]."""
    TOPIC_ADDED = "topic-added"
    """[topic, partitions]"""
    PARTITIONS_ADDED = "partitions-added"
    """[topic, partitions: how many there are now]"""
    ROLLING = "rolling"
    """A rolling restart of all of a role: brackets its stops and starts."""
    JOIN = "join"
    """A consumer comes on top of those of the setup; followed by its ``start``."""
    REBALANCE = "rebalance"
    EVICT = "evict"
    """[group, consumer]"""
    RESIGN = "resign"
    PAUSE = "pause"
    """Of the group, or of all (target ``group:*``): begin to end."""
    RESET = "reset"
    """Committed offsets set by an operator [group, offsets: {topic: {partition: offset}}]."""
    # measured
    ELECTED = "elected"
    """An instance is the coordinator [epoch, session]."""
    REQUEST = "request"
    """A rebalance was asked for (begin) and decided (end) [id, group]."""
    SETTLED = "settled"
    """The target group is Stable with each partition owned."""
    BASELINE = "baseline"
    """All are warm: resources from here on are compared."""
    QUIET = "quiet"
    """The last fault is over; nothing more is done to the system but the wait for it to settle."""
    ENDED = "ended"
    """Producers have ended and consumers have read everything, or the time to wait for that is over."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was done or measured. ``target`` is ``role:name``: ``consumer:c1``, ``serve:1``, ``zookeeper:2``,
    ``kafka:3``, ``group:delays``, ``link:consumer:c1``, ``all``. ``detail`` is what :class:`Kind` says, JSON."""

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


class _Appending:
    """A file appended to, a line in one write. Thread-safe."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _append(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            while line:  # a raw file may take less than all of it
                line = line[self._file.write(line) or 0 :]


class EventWriter(_Appending):
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
        self._append(asdict(event))
        return event


def read_events(directory: Path) -> tuple[Event, ...]:
    """In order of time."""
    found = _read(directory / EVENTS, lambda value: Event(**{**value, "phase": Phase(value["phase"])}))
    return tuple(sorted(found, key=lambda event: event.t))


# --- records ---------------------------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """``size`` records of one partition, with offsets ``first``, ``first + 1``, … and numbers ``number``,
    ``number + 1``, …"""

    partition: TopicPartition
    first: int
    size: int
    number: int

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.first + self.size


def stretches(records: Iterable[tuple[str, int, int, int]]) -> list[Stretch]:
    """Records as (topic, partition, offset, number), in order within each partition, as few stretches."""
    open_: dict[tuple[str, int], list[int]] = {}
    found: list[Stretch] = []
    for topic, partition, offset, number in records:
        key = (topic, partition)
        run = open_.get(key)
        if run is not None and run[0] + run[1] == offset and run[2] + run[1] == number:
            run[1] += 1
            continue
        if run is not None:
            found.append(Stretch(TopicPartition(*key), *run))
        open_[key] = [offset, 1, number]
    found += (Stretch(TopicPartition(*key), *run) for key, run in open_.items())
    return found


class ProducedWriter(_Appending):
    """Appends what brokers acknowledged to ``produced.jsonl``. Numbers within each partition keep it small."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / PRODUCED)

    def acknowledged(self, records: Iterable[tuple[str, int, int, int]]) -> None:
        """(topic, partition, offset, number), in order within each partition: a second's worth at a time, say."""
        runs = stretches(records)
        if runs:
            self._append({"t": time.monotonic(), "r": _plain(runs)})


class Produced(NamedTuple):
    """What was acknowledged until ``t``, since the line before."""

    t: float
    runs: tuple[Stretch, ...]


def read_produced(directory: Path) -> tuple[Produced, ...]:
    return tuple(_read(directory / PRODUCED, lambda value: Produced(value["t"], _stretches(value["r"]))))


# --- a consumer's life -----------------------------------------------------------------------------------------------


class Opened(NamedTuple):
    t: float
    consumer: str
    group: str
    pid: int
    session_timeout_ms: int


class Started(NamedTuple):
    """Partitions were given: where each goes on, None where that is not known yet (its log's start or end)."""

    t: float
    offsets: Mapping[TopicPartition, int | None]


class Stopped(NamedTuple):
    """Partitions are given up, none of their records in hand: before the offsets are committed and acknowledged."""

    t: float
    partitions: frozenset[TopicPartition]


class Lost(NamedTuple):
    """The membership is lost, and with it these."""

    t: float
    partitions: frozenset[TopicPartition]


class Rejoined(NamedTuple):
    """It is registered again."""

    t: float


class Handed(NamedTuple):
    """Records were handed out, by a call made at ``since`` that came back at ``t``."""

    t: float
    since: float
    runs: tuple[Stretch, ...]


class Committed(NamedTuple):
    """A commit was acknowledged: the offset of the next record to read of each."""

    t: float
    offsets: Mapping[TopicPartition, int]


class Closed(NamedTuple):
    """It left cleanly; the last line."""

    t: float


ConsumerLine = Opened | Started | Stopped | Lost | Rejoined | Handed | Committed | Closed


class ConsumerWriter(_Appending):
    """One consumer process' own file. Thread-safe; times are taken inside unless given.

    Call :meth:`handed` before asking for more records, with the time read right before and right after the call.
    """

    def __init__(self, directory: Path, *, consumer: str, group: str, pid: int, session_timeout_ms: int) -> None:
        super().__init__(directory / CONSUMERS / f"{consumer}.{pid}.jsonl")
        self._write("opened", consumer=consumer, group=group, pid=pid, session_timeout_ms=session_timeout_ms)

    def started(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """From ``on_start``; the offset is ``consumer.position(partition)`` there."""
        self._write("started", o=[[*partition, offset] for partition, offset in offsets.items()])

    def stopped(self, partitions: Iterable[TopicPartition]) -> None:
        """From ``on_stop``."""
        self._write("stopped", p=[list(partition) for partition in partitions])

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """From ``on_lost``."""
        self._write("lost", p=[list(partition) for partition in partitions])

    def rejoined(self) -> None:
        self._write("rejoined")

    def handed(self, since: float, t: float, records: Iterable[tuple[str, int, int, int]]) -> None:
        """(topic, partition, offset, number) as they came."""
        runs = stretches(records)
        if runs:
            self._append({"t": t, "k": "handed", "s": since, "r": _plain(runs)})

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A commit that came back without an error."""
        self._write("committed", o=[[*partition, offset] for partition, offset in offsets.items()])

    def closed(self) -> None:
        """After ``close()`` came back."""
        self._write("closed")

    def _write(self, kind: str, **value: Any) -> None:
        self._append({"t": time.monotonic(), "k": kind} | value)


@dataclass(frozen=True, slots=True)
class ConsumerJournal:
    """One process' file. ``torn``: its last line has no end."""

    path: str
    consumer: str
    group: str
    pid: int
    session_timeout_ms: int
    lines: tuple[ConsumerLine, ...]
    torn: bool = False

    @property
    def closed(self) -> bool:
        """Whether it left cleanly."""
        return bool(self.lines) and isinstance(self.lines[-1], Closed)


def read_consumers(directory: Path) -> tuple[ConsumerJournal, ...]:
    """All consumer files, in order of their first line; one killed before its first line is none."""
    found = [read_consumer(path) for path in sorted((directory / CONSUMERS).glob("*.jsonl"))]
    return tuple(sorted((journal for journal in found if journal is not None), key=lambda journal: journal.lines[0].t))


def read_consumer(path: Path) -> ConsumerJournal | None:
    """One file; None when it has no first line. Raises :class:`MalformedValue` with the line that is wrong."""
    lines = tuple(_read(path, _consumer_line))
    if not lines:
        return None
    first = lines[0]
    if not isinstance(first, Opened):
        raise MalformedValue(f"{path}:1", "a consumer's file begins with 'opened'")
    torn = not path.read_bytes().endswith(b"\n")
    return ConsumerJournal(
        path.name, first.consumer, first.group, first.pid, first.session_timeout_ms, lines, torn=torn
    )


def _consumer_line(value: Mapping[str, Any]) -> ConsumerLine:
    t = value["t"]
    match value["k"]:
        case "handed":
            return Handed(t, value["s"], _stretches(value["r"]))
        case "committed":
            return Committed(t, {TopicPartition(topic, p): offset for topic, p, offset in value["o"]})
        case "started":
            return Started(t, {TopicPartition(topic, p): offset for topic, p, offset in value["o"]})
        case "stopped":
            return Stopped(t, frozenset(TopicPartition(*partition) for partition in value["p"]))
        case "lost":
            return Lost(t, frozenset(TopicPartition(*partition) for partition in value["p"]))
        case "rejoined":
            return Rejoined(t)
        case "opened":
            return Opened(t, value["consumer"], value["group"], value["pid"], value["session_timeout_ms"])
        case "closed":
            return Closed(t)
        case other:
            raise ValueError(f"{other!r} is no kind of line")


# --- resources -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process (``target`` as an event's) used; with ``target`` ``zookeeper``, ``znodes`` alone counts."""

    t: float
    target: str
    pid: int = 0
    rss_bytes: int = 0
    threads: int = 0
    descriptors: int = 0
    sockets: int = 0
    znodes: int = 0


class ResourceWriter(_Appending):
    """Appends to ``resources.jsonl``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / RESOURCES)

    def write(self, usage: Usage) -> None:
        self._append(asdict(usage))


def read_resources(directory: Path) -> tuple[Usage, ...]:
    return tuple(_read(directory / RESOURCES, lambda value: Usage(**value)))


# --- lines -----------------------------------------------------------------------------------------------------------


def _plain(runs: Iterable[Stretch]) -> list[list[Any]]:
    return [[*run.partition, run.first, run.size, run.number] for run in runs]


def _stretches(written: Iterable[Any]) -> tuple[Stretch, ...]:
    return tuple(Stretch(TopicPartition(topic, p), *numbers) for topic, p, *numbers in written)


def _read(path: Path, decode: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """The whole lines of a file, none where there is no file; raises :class:`MalformedValue` with what is wrong."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    found: list[T] = []
    for line in content.split(b"\n")[:-1]:
        try:
            found.append(decode(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise MalformedValue(f"{path}:{len(found) + 1}", f"not a line of a journal ({error!r})") from error
    return found
