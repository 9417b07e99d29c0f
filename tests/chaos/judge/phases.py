"""The phases of a migration: what was seen in each, and how long members waited beyond what the brokers alone cost."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_coord.model import TopicPartition
from tests.chaos.journal import Event, Handed, Kind, Phase, read_consumers
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import Rule, Ruling, ruling, violation
from tests.chaos.parts import CONSUMER_PROTOCOL, PLAIN


class Arrival(NamedTuple):
    """Records ``first`` to ``end - 1`` arrived at ``t``."""

    first: int
    end: int
    t: float
    kind: str = ""
    """The kind of the consumer."""


Arrivals = Mapping[TopicPartition, list[Arrival]]
"""The first arrivals of each partition, by offset."""


@dataclass(slots=True)
class Seen:
    """A phase, from ``begin`` to ``end`` (monotonic seconds)."""

    name: str
    begin: float
    end: float
    doctor: tuple[str, ...]
    missing: tuple[str, ...]
    shown_s: Mapping[str, float]
    """How long after the request the partition and the topic that are new stood in ZooKeeper, by which of them."""
    read_s: dict[str, dict[str, float]] = field(default_factory=dict)
    """How long after the request each group began to read them, by which of them."""
    restarts: int = 0
    killed: int = 0
    records: int = 0
    plain_s: float = 0.0
    """The plain reader's longest wait for the next record of a partition."""
    later_s: dict[str, float] = field(default_factory=dict)
    """How much later than at the plain reader a record arrived at most, by the kind of its consumer."""


def phases(records: Records) -> tuple[Seen, ...]:
    """Returns the phases in order, or none for a run without a migration."""
    begins = {event.name: event for event in records.of(Kind.MIGRATING, phase=Phase.BEGIN)}
    found = [_seen(records, begins[end.name], end) for end in records.of(Kind.MIGRATING, phase=Phase.END)]
    if not found:
        return ()
    plain = _plain(records)
    kinds = {one.name: _short(one.kind) for one in records.run.consumers}
    for one in found:
        one.plain_s = max((_longest_gap(arrivals, one) for arrivals in plain.values()), default=0.0)
    for book in records.books:
        given = [
            Arrival(out.first, out.end, out.t, kinds[owner.consumer])
            for owner in book.ownerships
            for out in owner.given
        ]
        _compare(_first(sorted(given, key=lambda one: one.t)), plain.get(book.partition, []), found)
    for arrivals in plain.values():
        for one in found:
            one.records += sum(each.end - each.first for each in arrivals if one.begin <= each.t < one.end)
    return tuple(found)


def migration(found: Iterable[Seen]) -> Ruling:
    """Checks that the doctor named each phase, and that every group read what was new in it."""
    findings = []
    count = 0
    for one in found:
        count += 1
        where = f"phase {one.name}"
        for words in one.missing:
            findings.append(violation(Rule.MIGRATION, where, f"doctor did not say {words!r}: {'; '.join(one.doctor)}"))
        for what, groups in one.read_s.items():
            late = [group for group, took_s in groups.items() if took_s == float("inf")]
            if late:
                findings.append(violation(Rule.MIGRATION, where, f"the new {what} was not read by {', '.join(late)}"))
    return ruling(Rule.MIGRATION, findings, checked=f"{count} phases", exercised=count > 0)


def table(found: Iterable[Seen]) -> Iterator[str]:
    """Yields the lines of a table in Markdown."""
    kinds = list(dict.fromkeys(kind for one in found for kind in one.later_s))
    head = "| phase | s | restarts, kills | new partition, topic: shown | read | records | plain reader waits |"
    yield f"{head} {' | '.join(kinds)} |"
    yield f"|---|---|---|---|---|---|---|{'---|' * len(kinds)}"
    for one in found:
        shown = ", ".join(f"{took_s:.1f} s" for took_s in one.shown_s.values())
        read = ", ".join(f"{max(groups.values(), default=0.0):.1f} s" for groups in one.read_s.values())
        later = " | ".join(f"{one.later_s[kind]:+.1f} s" if kind in one.later_s else "" for kind in kinds)
        yield (
            f"| {one.name} | {one.end - one.begin:.0f} | {one.restarts}, {one.killed} | {shown} | {read} "
            f"| {one.records:,} | {one.plain_s:.1f} s | {later} |"
        )


def _seen(records: Records, begin: Event, end: Event) -> Seen:
    detail = end.detail
    found = Seen(begin.name, begin.t, end.t, tuple(detail["doctor"]), tuple(detail["missing"]), detail["seen_s"])
    within = [event for event in records.events if begin.t <= event.t <= end.t]
    found.restarts = sum(event.kind == Kind.START and event.phase is Phase.BEGIN for event in within)
    found.killed = sum(event.kind == Kind.KILL for event in within)
    for what, kind in (("partition", Kind.PARTITIONS_ADDED), ("topic", Kind.TOPIC_ADDED)):
        for event in within:
            if event.kind == kind:
                new = TopicPartition(event.detail["topic"], event.detail["partitions"] - 1)
                found.read_s[what] = dict(_begun(records, new, event.t))
    return found


def _begun(records: Records, partition: TopicPartition, since: float) -> Iterator[tuple[str, float]]:
    """Yields how long each group that reads the partition took to get its first owner."""
    books = {book.group: book for book in records.books if book.partition == partition}
    for group in records.run.groups:
        if partition in records.subscribed(group):
            owners = books[group.name].ownerships if group.name in books else ()
            yield group.name, min((owner.begin for owner in owners), default=float("inf")) - since


def _short(kind: str) -> str:
    names = {"spark": "Spark", "socket": "socket", CONSUMER_PROTOCOL: "KIP-848", "classic": "classic"}
    return next((name for word, name in names.items() if word in kind.split(", ")), "own")


def _plain(records: Records) -> Arrivals:
    found: dict[TopicPartition, list[Arrival]] = {}
    for journal in read_consumers(records.directory / PLAIN):
        for line in journal.lines:
            if isinstance(line, Handed):
                for run in line.runs:
                    found.setdefault(run.partition, []).append(Arrival(run.first, run.end, line.t))
    return {partition: _first(arrivals) for partition, arrivals in found.items()}


def _first(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Returns the arrivals of records that have not arrived before."""
    kept: list[Arrival] = []
    for one in arrivals:
        first = max(one.first, kept[-1].end if kept else 0)
        if first < one.end:
            kept.append(one._replace(first=first))
    return kept


def _longest_gap(arrivals: list[Arrival], within: Seen) -> float:
    times = [one.t for one in arrivals]
    return max(
        (after - before for before, after in itertools.pairwise(times) if within.begin <= after < within.end),
        default=0.0,
    )


def _compare(arrivals: list[Arrival], plain: list[Arrival], found: list[Seen]) -> None:
    """Notes how much later than at the plain reader the records arrived."""
    ends = [one.end for one in plain]
    for one in arrivals:
        at = bisect.bisect_right(ends, one.first)
        phase = next((each for each in found if each.begin <= one.t < each.end), None)
        if phase is None or at == len(plain):
            continue
        later_s = one.t - plain[at].t  # that of its first record, which has waited longest
        phase.later_s[one.kind] = max(phase.later_s.get(one.kind, later_s), later_s)
