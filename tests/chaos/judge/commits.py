"""The rule about commits of stock clients: an acknowledged commit is never lost or replaced by an older one.

The order of commits is that of the groups log, which a reader recorded during the run. Kafka's protocol lets a member
commit any offset at any time, and a client whose coordinator changes may repeat an older commit after a newer one. So
an older offset in the log is the coordinator's error only if no client can have requested it after the newer commit.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind, TopicPartition
from tests.chaos.journal import ConsumerJournal, Kind, Phase, Started, read_consumers, read_log, read_offsets
from tests.chaos.judge.attempts import NEVER, Attempt, attempts_of
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import ChaosFinding, Evidence, Rule, Ruling, Severity, ruling, violation

Where = tuple[str, TopicPartition]
"""A group and a partition."""
_STAMPS_S = 0.01
"""How much later than its timestamp a record was stored at the earliest, because timestamps are whole milliseconds, and
processes do not read the clock at once."""


class Entry(NamedTuple):
    """A commit in the log, which the reader received at ``seen``. Of two logs, ``at_ms`` is its timestamp, and ``seen``
    is when it was stored. None removes the offset."""

    offset: int | None
    seen: float
    at_ms: int = 0


class Reading(NamedTuple):
    """A request for an offset at ``since``, and its answer ``offset`` at ``t``. None means that there is no offset."""

    since: float
    t: float
    offset: int | None
    who: str


@dataclass(slots=True)
class _Story:
    """All facts about the offset of one partition in one group. ``entries`` are in the log's order."""

    entries: list[Entry] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)


def commits(records: Records) -> Ruling:
    """Compares each acknowledged commit, each reading and each commit in the log with the order of the log."""
    stories, unread = _stories(records)
    known = {where: story for where, story in stories.items() if partition_of(where[0]) not in unread}
    findings: list[ChaosFinding] = []
    figures = Counter[str](acknowledged=0, readings=0, sent_again=0, unread=sum(unread.values()))
    for where, story in sorted(known.items()):
        judge = _Judge(records, where, story)
        findings += [*judge.acknowledged(), *judge.read(), *judge.appended()]
        figures["acknowledged"] += sum(one.acknowledged < NEVER for one in story.attempts)
        figures["readings"] += len(story.readings)
        figures["sent_again"] += judge.sent_again
    findings += [
        ChaosFinding(
            Rule.COMMITS,
            Severity.WARNING,
            f"partition {partition} of the groups log",
            f"compaction removed {count} records before they were read: its groups are not judged",
        )
        for partition, count in sorted(unread.items())
    ]
    return ruling(
        Rule.COMMITS,
        findings,
        checked=f"{figures['acknowledged']:,} acknowledged commits of a partition, {figures['readings']:,} readings of "
        f"one; {figures['sent_again']} older commits were sent again by their client after a newer one",
        exercised=figures["acknowledged"] > 0 and figures["readings"] > 0,
        figures=dict(figures),
    )


def commits_of_owners(records: Records) -> Ruling:
    """Checks managed groups, whose offsets are in ZooKeeper. A commit that a stock client requested after the start of
    the next owner must not be acknowledged. Another rule checks that the next owner begins at no older commit."""
    next_owners = {
        (owner.process, book.partition, owner.begin): (book.where, other)
        for book in records.books
        for at, owner in enumerate(book.ownerships)
        for other in book.ownerships[at + 1 : at + 2]
        if owner.stock and other.process != owner.process
    }
    findings: list[ChaosFinding] = []
    acknowledged = handovers = 0
    for journal in read_consumers(records.directory):
        for partition, attempt in attempts_of(journal) if journal.stock else ():
            if attempt.acknowledged == NEVER:
                continue
            acknowledged += 1
            where, other = next_owners.get((journal.path, partition, attempt.held), ("", None))
            handovers += other is not None
            if other is not None and attempt.sent > other.begin:
                message = (
                    f"the commit of {attempt.low} was acknowledged to {attempt.process}, which had asked for it "
                    f"{attempt.sent - other.begin:.3f} s after {other} had been started"
                )
                findings.append(
                    violation(
                        Rule.COMMITS,
                        where,
                        message,
                        (
                            records.start_of(other),
                            records.at(attempt.sent, f"{attempt.process}: commits {attempt.low}"),
                            records.at(attempt.acknowledged, f"{attempt.process}: acknowledged {attempt.low}"),
                        ),
                    )
                )
    return ruling(
        Rule.COMMITS,
        findings,
        checked=f"{acknowledged:,} acknowledged commits of a partition by stock clients, {handovers:,} of them by an "
        "owner that another process followed",
        exercised=handovers > 0,
        figures={"acknowledged": acknowledged, "handed_over": handovers},
    )


def _stories(records: Records) -> tuple[dict[Where, _Story], dict[int, int]]:
    """Returns the stories, and the number of records that the log's reader missed, by partition of the log. Without a
    recorded log, there are no stories."""
    groups = {group.name for group in records.run.groups}  # the cluster of a test also has other groups
    stories: dict[Where, _Story] = {}
    ends: dict[int, int] = {}
    stamps: Counter[int] = Counter()
    unread: Counter[int] = Counter()
    for one in read_log(records.directory):
        partition, offset = one.place
        unread[partition] += offset - ends.get(partition, 0)
        ends[partition] = offset + 1
        if one.commit is not None and one.commit.group in groups:
            where = (one.commit.group, one.commit.partition)
            stamps[partition] = max(stamps[partition], one.commit.at_ms)  # a log's order is that of storing
            stories.setdefault(where, _Story()).entries.append(Entry(one.commit.offset, one.t, stamps[partition]))
    if not ends:
        return {}, {}
    for story in stories.values():
        _merge(story.entries, next((one.wall - one.t for one in records.events), 0.0))
    for journal in read_consumers(records.directory):
        for tp, attempt in attempts_of(journal):
            stories.setdefault((journal.group, tp), _Story()).attempts.append(attempt)
        for tp, reading in _beginnings(journal):
            stories.setdefault((journal.group, tp), _Story()).readings.append(reading)
    for look in read_offsets(records.directory):  # an absent partition has no offset
        for (group, tp), story in stories.items():
            if group == look.group:
                story.readings.append(Reading(look.since, look.t, look.offsets.get(tp), "an observer"))
    for times in _managed_times(records):
        for story in stories.values():
            _stored_elsewhere(story, *times)
    return stories, {partition: count for partition, count in unread.items() if count}


def _managed_times(records: Records) -> Iterator[tuple[float, float]]:
    """Yields the times between which the group of a run of moves may have been managed."""
    begins, end = records.of(Kind.MOVED, phase=Phase.BEGIN), max((one.t for one in records.events), default=0.0)
    for at, one in enumerate(begins):
        if one.detail["to"] == GroupKind.MANAGED:
            ends = [later.t for later in records.of(Kind.MOVED, phase=Phase.END) if later.t > one.t]
            yield one.t, ends[1] if len(ends) > 1 and at + 1 < len(begins) else end


def _stored_elsewhere(story: _Story, begin: float, end: float) -> None:
    """Adds the commits that are not in the log because the group was managed: those that were acknowledged, and those
    that were read although nobody was told. What is read afterwards must not be older. A client may commit again what
    is in the log from before.

    Such a commit was stored after its request and before what proves it. Where that leaves a choice, nobody knows
    whether an entry of the log is older, so the order is the one in which offsets rise."""
    entries = story.entries
    known: dict[int | None, float] = {one.offset: one.seen for one in entries}
    read: dict[int | None, list[float]] = {}
    for reading in story.readings:
        if begin <= reading.t <= end:
            read.setdefault(reading.offset, []).append(reading.t)
    for one in sorted(story.attempts):
        if any(known.get(offset, one.sent - 1) >= one.sent for offset in range(one.low, one.high + 1)):
            continue
        later = (t for t in read.get(one.low, ()) if t >= one.sent)
        proof = min((t for t in (one.acknowledged, *later) if begin <= t <= end), default=None)
        if proof is None:
            continue
        at = bisect.bisect_left(entries, one.sent, key=lambda entry: entry.seen)
        while at < len(entries) and entries[at].seen <= proof and (entries[at].offset or 0) <= one.low:
            at += 1
        entries.insert(at, Entry(one.low, max([one.sent, *(entry.seen for entry in entries[at - 1 : at])])))


def _merge(entries: list[Entry], wall_s: float) -> None:
    """Orders the entries of two logs by when they were stored. They were received in another order, and maybe only
    after later commits that are in no log. The clock of timestamps is ``wall_s`` ahead of the run's."""
    entries.sort(key=lambda one: one.at_ms)
    latest = 0.0
    for at, one in enumerate(entries):
        stored = one.at_ms / 1000 - wall_s + _STAMPS_S if one.at_ms else one.seen
        latest = max(latest, min(stored, one.seen))
        entries[at] = one._replace(seen=latest)


def _beginnings(journal: ConsumerJournal) -> Iterator[tuple[TopicPartition, Reading]]:
    for line in journal.lines:
        if isinstance(line, Started) and line.since is not None:
            for partition, offset in line.offsets.items():
                yield partition, Reading(line.since, line.t, offset, journal.path)


class _Judge:
    """Judges one partition of one group."""

    def __init__(self, records: Records, where: Where, story: _Story) -> None:
        self._records, self._where, self._story = records, where, story
        self._at: dict[int | None, list[int]] = {}
        for at, entry in enumerate(story.entries):
            self._at.setdefault(entry.offset, []).append(at)
        self._by_low = sorted(story.attempts, key=lambda one: one.low)
        self._lows = [one.low for one in self._by_low]
        self._widest = max((one.high - one.low for one in story.attempts), default=0)
        self.sent_again = 0

    def acknowledged(self) -> Iterator[ChaosFinding]:
        """Checks that every acknowledged commit is in the log."""
        for attempt in self._story.attempts:
            if attempt.acknowledged < NEVER and self._place(attempt) is None:
                yield self._finding(
                    f"the commit of {attempt.low} was acknowledged to {attempt.process}, and is not in the groups log",
                    *self._told(attempt),
                )

    def read(self) -> Iterator[ChaosFinding]:
        """Checks that each reading returned a commit of the log that is not older than the last acknowledged commit
        before it."""
        done = sorted((one.acknowledged, one) for one in self._story.attempts if one.acknowledged < NEVER)
        number, floor, last = 0, -1, None
        for reading in sorted(self._story.readings):
            while number < len(done) and done[number][0] < reading.since:
                place = self._place(done[number][1])
                if place is not None and place > floor:
                    floor, last = place, done[number][1]
                number += 1
            if max(self._at.get(reading.offset, ()), default=-1) >= floor and (
                reading.offset is None or reading.offset in self._at
            ):
                continue
            after = (
                f"although {last.low} had been acknowledged {reading.since - last.acknowledged:.3f} s earlier"
                if last is not None
                else "which was never in the groups log"
            )
            yield self._finding(
                f"{reading.who} read offset {reading.offset}, {after}",
                *(self._told(last) if last is not None else ()),
                self._records.at(reading.since, f"{reading.who}: requests the offset"),
                self._records.at(reading.t, f"{reading.who}: gets {reading.offset}"),
            )

    def appended(self) -> Iterator[ChaosFinding]:
        """Checks that every commit in the log was requested by a member that held the partition, and was not
        acknowledged before a newer commit."""
        before: tuple[int, list[Attempt]] | None = None
        held = float("-inf")
        for offset, seen, _ in self._story.entries:
            if offset is None:
                before = None
                continue
            asked = self._askers(offset, seen)
            evidence = [*(self._told(asked[-1]) if asked else ()), self._records.at(seen, f"the log: {offset}")]
            if not asked:
                yield self._finding(f"the groups log has a commit of {offset} that no client requested", *evidence)
                continue
            if max(one.held for one in asked) < held:
                yield self._finding(
                    f"the commit of {offset} by {asked[-1].process} was stored after one by a later owner", *evidence
                )
            elif before is not None and offset < before[0]:
                if max(one.acknowledged for one in asked) < min(one.sent for one in before[1]):
                    what = f"the commit of {offset} was stored again after {before[0]}, and no client had sent it again"
                    yield self._finding(what, *evidence)
                else:
                    self.sent_again += 1
            held = max(held, min(one.held for one in asked))
            before = offset, asked

    def _place(self, attempt: Attempt) -> int | None:
        """Returns the first entry that can be this commit."""
        places = self._at.get(attempt.low, [])
        first = bisect.bisect_left(places, attempt.sent, key=lambda at: self._story.entries[at].seen)
        return places[first] if first < len(places) else None

    def _askers(self, offset: int, seen: float) -> list[Attempt]:
        """Returns the attempts that can be this commit, by time. If an owner reported a commit of exactly this offset,
        its other attempts do not count."""
        first = bisect.bisect_left(self._lows, offset - self._widest)
        near = self._by_low[first : bisect.bisect_right(self._lows, offset)]
        found = [one for one in near if offset <= one.high and one.sent <= seen]
        exact = {(one.process, one.held) for one in found if one.low == one.high}
        return sorted(one for one in found if one.low == one.high or (one.process, one.held) not in exact)

    def _told(self, attempt: Attempt) -> tuple[Evidence, ...]:
        sent = self._records.at(attempt.sent, f"{attempt.process}: commits {attempt.low}")
        if attempt.acknowledged == NEVER:
            return (sent,)
        return sent, self._records.at(attempt.acknowledged, f"{attempt.process}: acknowledged {attempt.low}")

    def _finding(self, message: str, *evidence: Evidence) -> ChaosFinding:
        group, partition = self._where
        return violation(Rule.COMMITS, f"group {group} {partition}", message, evidence)
