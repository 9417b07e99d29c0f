"""Writes the journals of a short chaos run by hand. No rule is broken until a test changes a line.

One group of two consumers reads the two partitions of ``t``. ``c1`` owns both. ``c2`` joins and takes t-1. ``c1`` is
killed, and t-0 goes to ``c2``, which reads it again from the last commit. The session of ``c2`` is ended from outside,
and ``c2`` returns. Then, without other faults, the elected coordinator is stopped, killed and frozen. Times are seconds
since the beginning of the night.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import TopicPartition
from tests.chaos.journal import (
    Appended,
    ConsumerWriter,
    EventWriter,
    Group,
    Kind,
    LogPlace,
    LogWriter,
    OffsetsWriter,
    Participant,
    Phase,
    ProducedWriter,
    ResourceWriter,
    Run,
    Setup,
    Usage,
    consumers,
    events,
    log,
    offsets,
    records,
    write_run,
)
from tests.chaos.judge import Report, judge
from tests.chaos.judge.findings import ChaosFinding, Rule, Ruling, Severity, Status

BEGAN = 5_000.0
"""The monotonic clock at the beginning. It is not 0, so a judge that assumes 0 fails."""
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

Offsets = Mapping[TopicPartition, int | None]


class Clock:
    """Replaces ``time`` in the modules that write journals."""

    def __init__(self) -> None:
        self.now = BEGAN

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now


class Night:
    """The entries to write, by time. A test can leave an entry out by its name."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self._clock = Clock()
        for module in (consumers, events, log, offsets, records):
            monkeypatch.setattr(module, "time", self._clock)
        self._entries: list[tuple[float, str, Callable[[], object]]] = []
        self._events = EventWriter(directory)
        self._produced = ProducedWriter(directory)
        self._usage = ResourceWriter(directory)
        self._offsets = OffsetsWriter(directory)
        self._log = LogWriter(directory)
        self._log_ends = Counter[int]()
        self._journals: dict[str, ConsumerWriter] = {}
        self.run = Run(
            seed=7,
            minutes=2.0,
            commit="abc",
            started=BEGAN,
            started_wall=0.0,
            setup=Setup(2, 2**30, {"python": "3.11"}, {"serve": 6_000, "consumer": 6_000, "kafka": 6_000}, 60_000),
            groups=(Group("g", topics=("t",), members=("library", "library")),),
            consumers=(Participant("c1", "g"), Participant("c2", "g")),
        )

    def add(self, t: float, name: str, act: Callable[[], object]) -> None:
        self._entries.append((t, name, act))

    def forget(self, *names: str) -> None:
        """Leaves these entries out. Raises :class:`KeyError` if there is no such entry."""
        for name in names:
            kept = [entry for entry in self._entries if entry[1] != name]
            if len(kept) == len(self._entries):
                raise KeyError(name)
            self._entries = kept

    def forget_after(self, process: str, t: float) -> None:
        """Leaves out all entries of that consumer process after ``t``."""
        self._entries = [entry for entry in self._entries if entry[0] <= t or not entry[1].startswith(f"{process} ")]

    def nothing(self) -> None:
        """Leaves out all entries."""
        self._entries.clear()
        (self.directory / "audit.json").unlink()

    def tear(self, process: str) -> None:
        """Adds the incomplete line that a killed process leaves."""
        with next(self.directory.glob(f"consumers/{process}.jsonl")).open("a") as journal:
            journal.write('{"t":5019.9,"k":"hand')

    def judged(self, *, group: Group | None = None) -> Report:
        """Writes all files, and judges them."""
        write_run(self.directory, replace(self.run, groups=(group,)) if group else self.run)
        for t, _, act in sorted(self._entries, key=lambda entry: entry[0]):
            self._clock.now = BEGAN + t
            act()
        for writer in (self._events, self._produced, self._usage, self._offsets, self._log, *self._journals.values()):
            writer.close()
        return judge(self.directory)

    def _journal(self, process: str) -> ConsumerWriter:
        return self._journals[process]  # opened by an entry before

    # --- entries ------------------------------------------------------------------------------------------------------

    def event(self, t: float, kind: Kind, target: str = "", phase: Phase = Phase.POINT, **detail: Any) -> None:
        words = (kind, target, "" if phase is Phase.POINT else phase)
        self.add(t, " ".join(word for word in words if word), lambda: self._events.write(kind, target, phase, **detail))

    def produced(self, t: float, partition: TopicPartition, first: int, end: int) -> None:
        rows = [(*partition, offset, offset) for offset in range(first, end)]
        self.add(t, f"produced {partition} {first}", lambda: self._produced.acknowledged(rows))

    def opened(self, t: float, process: str, group: str = "g", kind: str = "library") -> None:
        """Opens the journal of ``process``, which is ``name.pid``."""
        name, _, pid = process.partition(".")

        def act() -> None:
            self._journals[process] = ConsumerWriter(
                self.directory, consumer=name, group=group, pid=int(pid), session_timeout_ms=6_000, kind=kind
            )

        self.add(t, f"{process} opened", act)

    def started(self, t: float, process: str, offsets: Offsets, *, asked: float | None = None) -> None:
        """Starts partitions. ``asked`` is when a stock client requested the group's offsets."""
        since = None if asked is None else BEGAN + asked
        self.add(t, f"{process} started {_names(offsets)}", lambda: self._journal(process).started(offsets, since))

    def stopped(self, t: float, process: str, *partitions: TopicPartition) -> None:
        self.add(t, f"{process} stopped {_names(partitions)}", lambda: self._journal(process).stopped(partitions))

    def lost(self, t: float, process: str, *partitions: TopicPartition) -> None:
        self.add(t, f"{process} lost {_names(partitions)}", lambda: self._journal(process).lost(partitions))

    def rejoined(self, t: float, process: str) -> None:
        self.add(t, f"{process} rejoined", lambda: self._journal(process).rejoined())

    def handed(
        self,
        t: float,
        process: str,
        partition: TopicPartition,
        first: int,
        end: int,
        *,
        took: float = 0.1,
        shift: int = 0,
    ) -> None:
        """Hands out records by a call that ``took`` these seconds. ``shift`` is the difference between the records'
        numbers and offsets.
        """
        rows = [(*partition, offset, offset + shift) for offset in range(first, end)]
        since = BEGAN + t - took
        self.add(
            t,
            f"{process} handed {partition} {first}",
            lambda: self._journal(process).handed(since, BEGAN + t, rows),
        )

    def committing(self, t: float, process: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.add(t, f"{process} committing {offsets}", lambda: self._journal(process).committing(offsets))

    def looked(self, t: float, offsets: Mapping[TopicPartition, int], *, took: float = 0.1) -> None:
        """An observer reads these offsets."""
        self.add(t, f"looked {t}", lambda: self._offsets.told(BEGAN + t - took, "g", offsets))

    def appended(
        self,
        t: float,
        partition: TopicPartition,
        offset: int | None,
        *,
        gap: int = 0,
        stored: float | None = None,
        of_brokers: bool = False,
    ) -> None:
        """The reader of the groups log receives this commit. ``gap`` records before it are missing. A run with the
        brokers' log has timestamps."""

        def act() -> None:
            log = partition_of("g") + 1_000 * of_brokers
            at_ms = 0 if stored is None else int((self._clock.time() - t + stored) * 1000)
            place = LogPlace(log, self._log_ends[log] + gap)
            self._log_ends[log] = place.offset + 1
            self._log.read([(place, Appended("g", partition, offset, at_ms))])

        self.add(t, f"appended {partition}={offset}", act)

    def committed(self, t: float, process: str, offsets: Mapping[TopicPartition, int]) -> None:
        name = " ".join(f"{partition}={offset}" for partition, offset in offsets.items())
        self.add(t, f"{process} committed {name}", lambda: self._journal(process).committed(offsets))

    def closed(self, t: float, process: str) -> None:
        self.add(t, f"{process} closed", lambda: self._journal(process).closed())

    def used(self, t: float, usage: Usage) -> None:
        self.add(t, f"usage {usage.target}", lambda: self._usage.write(replace(usage, t=BEGAN + t)))

    def audit(self, found: Mapping[str, object]) -> None:
        (self.directory / "audit.json").write_text(json.dumps(found))


def _names(partitions: Offsets | Sequence[TopicPartition]) -> str:
    return " ".join(str(partition) for partition in partitions)


def _evening_of_clients(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Begins a night with one partition, of which a stock client reads half."""
    night = Night(directory, monkeypatch)
    night.run = replace(night.run, clients="kafka")
    night.opened(1, "c1.11")
    night.produced(2, T0, 0, 100)
    night.started(2, "c1.11", {T0: None}, asked=1.9)
    night.handed(4, "c1.11", T0, 0, 50)
    return night


def night_of_clients(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Returns a night with one partition and two successive stock clients. The first is killed during a commit."""
    night = _evening_of_clients(directory, monkeypatch)
    night.committing(4.1, "c1.11", {T0: 50})
    night.appended(4.15, T0, 50)
    night.committed(4.2, "c1.11", {T0: 50})
    night.looked(5, {T0: 50})
    night.handed(8, "c1.11", T0, 50, 80)
    night.committing(8.1, "c1.11", {T0: 80})
    night.event(8.2, Kind.KILL, "consumer:c1", pid=11)
    night.opened(9, "c2.12")
    night.started(15, "c2.12", {T0: 50}, asked=14.9)
    night.handed(16, "c2.12", T0, 50, 100)
    night.committing(16.1, "c2.12", {T0: 100})
    night.appended(16.15, T0, 100)
    night.committed(16.2, "c2.12", {T0: 100})
    night.event(5, Kind.BASELINE)
    night.event(20, Kind.QUIET)
    night.event(21, Kind.SETTLED, "group:g")
    night.looked(22, {T0: 100})
    night.event(40, Kind.ENDED)
    night.stopped(41, "c2.12", T0)
    night.closed(41.5, "c2.12")
    return night


def night_of_automatic_commits(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Returns a night with one partition and one stock client that commits automatically. The test adds its commits."""
    night = _evening_of_clients(directory, monkeypatch)
    night.event(5, Kind.BASELINE)
    night.handed(9, "c1.11", T0, 50, 100)
    night.event(20, Kind.QUIET)
    night.event(21, Kind.SETTLED, "group:g")
    night.event(40, Kind.ENDED)
    night.stopped(41, "c1.11", T0)
    night.closed(41.5, "c1.11")
    return night


def clean_night(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Returns a night in which every rule holds."""
    night = Night(directory, monkeypatch)
    _records(night)
    _coordinators(night)
    night.event(5, Kind.BASELINE)
    for number in range(14):
        night.used(5 + 10 * number, Usage(0, "consumer:c2", 12, 60 * 2**20, 20, 30, 5))
        night.used(5 + 10 * number, Usage(0, "zookeeper", znodes=500))
    night.event(110, Kind.QUIET)
    night.event(111, Kind.SETTLED, "group:g")
    night.event(140, Kind.ENDED)
    night.audit({"violations": [], "warnings": [], "checked": {"transactions": 12}})
    return night


def mixed_night(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Returns the clean night with a stock client as the first process of ``c1``."""
    night = clean_night(directory, monkeypatch)
    night.run = replace(night.run, clients="mixed")
    night.forget("c1.11 opened")
    night.opened(1, "c1.11", kind="confluent-kafka, consumer, uniform")
    return night


def _records(night: Night) -> None:
    night.opened(1, "c1.11")
    night.started(2, "c1.11", {T0: 0, T1: 0})
    night.produced(3, T0, 0, 100)
    night.produced(3, T1, 0, 100)
    night.handed(4, "c1.11", T0, 0, 50)
    night.handed(4.01, "c1.11", T1, 0, 50)
    # c2 joins
    night.event(8, Kind.JOIN, "consumer:c2")
    night.opened(9, "c2.12")
    night.stopped(10, "c1.11", T1)
    night.committed(10.01, "c1.11", {T1: 50})
    night.started(10.05, "c2.12", {T1: 50})
    night.handed(12, "c2.12", T1, 50, 100)
    night.committed(12.1, "c2.12", {T1: 100})
    night.committed(12.2, "c1.11", {T0: 50})
    night.handed(13, "c1.11", T0, 50, 80)
    # c1 is killed, so its records since the last commit are read again
    night.event(20, Kind.KILL, "consumer:c1", pid=11)
    night.started(26, "c2.12", {T0: 50})
    night.handed(27, "c2.12", T0, 50, 100)
    night.committed(27.5, "c2.12", {T0: 100})
    night.event(28, Kind.START, "consumer:c1", Phase.BEGIN)
    night.opened(28.5, "c1.13")
    night.event(29, Kind.START, "consumer:c1", Phase.END, pid=13)
    # the session of c2 is ended from outside
    night.event(30, Kind.EXPIRE, "consumer:c2")
    night.lost(30.2, "c2.12", T0, T1)
    night.rejoined(30.9, "c2.12")
    night.started(31, "c2.12", {T0: 100, T1: 100})
    night.produced(112, T0, 100, 120)
    night.handed(113, "c2.12", T0, 100, 120)
    night.committed(113.5, "c2.12", {T0: 120})
    night.stopped(141, "c2.12", T0, T1)
    night.closed(141.5, "c2.12")
    night.closed(141.6, "c1.13")


def _coordinators(night: Night) -> None:
    night.event(1, Kind.ELECTED, "serve:1", epoch=1)
    night.event(50, Kind.STOP, "serve:1", Phase.BEGIN, pid=1)
    night.event(50.01, Kind.REQUEST, "group:g", Phase.BEGIN, id="r1", group="g")
    night.event(50.1, Kind.STOP, "serve:1", Phase.END, pid=1, exit_code=0)
    night.event(50.15, Kind.ELECTED, "serve:2", epoch=2)
    night.event(50.2, Kind.REQUEST, "group:g", Phase.END, id="r1", group="g")
    night.event(52, Kind.START, "serve:1", Phase.END, pid=4)
    night.event(60, Kind.KILL, "serve:2", pid=2)
    night.event(65, Kind.ELECTED, "serve:3", epoch=3)
    night.event(72, Kind.START, "serve:2", Phase.END, pid=5)
    night.event(80, Kind.FREEZE, "serve:3", Phase.BEGIN, pid=3)
    night.event(86, Kind.ELECTED, "serve:1", epoch=4)
    night.event(92, Kind.FREEZE, "serve:3", Phase.END, pid=3)


def of(report: Report, rule: Rule) -> Ruling:
    """Returns the ruling on one rule."""
    return next(ruling for ruling in report.rulings if ruling.rule is rule)


def broken(report: Report) -> set[Rule]:
    return {ruling.rule for ruling in report.rulings if ruling.status is Status.BROKEN}


def violations(report: Report, rule: Rule) -> list[ChaosFinding]:
    return [finding for finding in of(report, rule).findings if finding.severity is Severity.VIOLATION]
