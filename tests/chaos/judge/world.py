"""Rules about the events of the world, which are the scenes of ``tests.chaos.world``.

Records must be received whatever else happens. The other rules judge only events without other faults at the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kafka_coord.model import TopicPartition
from tests.chaos.journal import (
    WORLD,
    ConsumerJournal,
    Handed,
    Kind,
    Lost,
    Observed,
    Owed,
    Phase,
    Stretch,
    read_consumers,
)
from tests.chaos.judge.evidence import Records, Span, merged, without
from tests.chaos.judge.faults import OF_THE_WORLD, Fault
from tests.chaos.judge.findings import ChaosFinding, Evidence, Rule, Ruling, Severity, ruling, violation
from tests.chaos.world.waits import BOUNDS_S

AFTER_S = 2.0
"""How long after its end a fault may still have effects on an event, in seconds. The run lets groups settle between the
two."""
TOO_LARGE = "INVALID_COMMIT_OFFSET_SIZE"
"""The answer of Kafka's coordinator to a commit that does not fit in a batch."""
DROPS_PARTITIONS = "confluent-kafka, classic, cooperative-sticky"
"""The kind of client that reports partitions of a topic as lost, as a member, if a broker does not know the topic
yet."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of the world. ``name`` is that of its group, and ``disturbed`` tells whether other faults were under
    way."""

    kind: str
    name: str
    begin: float
    end: float
    observed: Observed
    disturbed: bool = False

    @property
    def told(self) -> str:
        """What was observed, in words."""
        found = self.observed
        words = [f"abandoned: {found.abandoned}"] if found.abandoned else []
        if found.owed:
            words.append(f"{sum(one.end - one.first for one in found.owed)} records owed")
        words += [f"{what}: {'never' if s is None else f'{s:.1f} s'}" for what, s in found.waited]
        words += [f"{found.commits} commits beside it, {len(found.failed)} failed"] if found.commits else []
        words += [f"answered {found.answered}"] if found.answered else []
        words += [f"{found.terms} new terms"] if found.terms is not None else []
        return "; ".join(words)

    @property
    def judged_alone(self) -> bool:
        return not self.disturbed and not self.observed.abandoned


def happenings(records: Records) -> tuple[Happening, ...]:
    """Returns the events of the world, in order. One without an end was abandoned with the run."""
    ends = {event.target: event for event in records.events if _is_world(event.kind) and event.phase is Phase.END}
    found = []
    for event in records.events:
        if not _is_world(event.kind) or event.phase is not Phase.BEGIN:
            continue
        end = ends.get(event.target)
        observed = Observed.from_detail(end.detail) if end else Observed(abandoned="it had no end")
        until = end.t if end else records.until
        disturbed = any(_disturbs(fault, event.t, observed) for fault in _under_way(records, event.t, until))
        found.append(Happening(event.kind, event.name, event.t, until, observed, disturbed))
    return tuple(found)


def rulings(records: Records, happened: Sequence[Happening]) -> tuple[Ruling, ...]:
    """Returns a ruling for each rule about events. Returns none if the run had no event."""
    if not happened:
        return ()
    judge = _Judge(records, happened)
    return (judge.records_read(), judge.lag(), judge.terms(), judge.others(), judge.times(), judge.memberships())


def _is_world(kind: str) -> bool:
    return kind in OF_THE_WORLD


def _under_way(records: Records, begin: float, end: float) -> Iterator[Fault]:
    return iter(records.faults.under_way(begin, end, aftermath_s=AFTER_S))


def _disturbs(fault: Fault, begin: float, observed: Observed) -> bool:
    is_own = f"{fault.role}:{fault.name}" in observed.own and fault.begin >= begin
    return not is_own


class _Judge:
    def __init__(self, records: Records, happened: Sequence[Happening]) -> None:
        self._records, self._happened = records, happened
        self._journals: dict[str, list[ConsumerJournal]] = {}
        for journal in read_consumers(records.directory / WORLD):
            self._journals.setdefault(journal.group, []).append(journal)

    def records_read(self) -> Ruling:
        """Checks that each group received every record that it is owed. Abandoned events owe what they had produced."""
        findings: list[ChaosFinding] = []
        owed = read = 0
        for one in self._happened:
            if one.observed.abandoned:
                findings.append(self._abandoned(one))
            received = self._received(one.name)
            for part in one.observed.owed if not one.observed.abandoned else ():
                missing = list(without([Span(part.first, part.end)], received.get(_partition(part), [])))
                size = sum(span.end - span.first for span in missing)
                owed += part.end - part.first
                read += part.end - part.first - size
                if missing:
                    findings.append(
                        violation(
                            Rule.EVENT_RECORDS,
                            f"{one.name} {_partition(part)}",
                            f"{size} of {part.end - part.first} records that exist were not received, "
                            f"from number {missing[0].first} on",
                            self._evidence(one),
                        )
                    )
        return ruling(
            Rule.EVENT_RECORDS,
            findings,
            checked=f"{len(self._happened)} events, {owed:,} records owed, {read:,} received",
            exercised=owed > 0,
            figures={"owed": owed, "received": read},
        )

    def lag(self) -> Ruling:
        """Checks that the committed position passes markers and aborted records."""
        positions = [(one, at) for one in self._happened for at in one.observed.positions if one.judged_alone]
        findings = [
            violation(
                Rule.EVENT_LAG,
                f"{one.name} {at.topic}-{at.partition}",
                f"the group had read everything and had committed {at.committed}, but the end is {at.end}",
                self._evidence(one),
            )
            for one, at in positions
            if at.committed != at.end
        ]
        return ruling(
            Rule.EVENT_LAG, findings, checked=f"{len(positions)} partitions at their ends", exercised=bool(positions)
        )

    def terms(self) -> Ruling:
        """Checks that terms end neither with idle connections nor with a refused append."""
        counted = [(one, one.observed.terms) for one in self._alone() if one.observed.terms is not None]
        findings = [
            violation(Rule.EVENT_TERMS, one.name, f"{terms} terms of the groups log ended", self._evidence(one))
            for one, terms in counted
            if terms
        ]
        return ruling(
            Rule.EVENT_TERMS,
            findings,
            checked=f"{len(counted)} events with idle connections or refused appends",
            exercised=bool(counted),
        )

    def others(self) -> Ruling:
        """Checks that no commit beside the event failed, and that a commit that is too large gets Kafka's answer."""
        findings: list[ChaosFinding] = []
        events = [one for one in self._alone() if one.observed.commits or one.observed.answered]
        for one in events:
            if one.observed.failed:
                counts = ", ".join(f"{n} {error}" for error, n in Counter(one.observed.failed).most_common())
                message = f"of {one.observed.commits} commits beside it, {len(one.observed.failed)} failed: {counts}"
                findings.append(violation(Rule.EVENT_OTHERS, one.name, message, self._evidence(one)))
            if one.observed.answered not in {"", TOO_LARGE}:
                message = f"the commit that was too large was answered {one.observed.answered}, not {TOO_LARGE}"
                findings.append(violation(Rule.EVENT_OTHERS, one.name, message, self._evidence(one)))
        commits = sum(one.observed.commits for one in events)
        return ruling(
            Rule.EVENT_OTHERS,
            findings,
            checked=f"{commits:,} commits beside {len(events)} events",
            exercised=bool(events),
        )

    def times(self) -> Ruling:
        """Checks the waits that have a bound."""
        waits = [(one, wait) for one in self._alone() for wait in one.observed.waited]
        findings = [
            violation(
                Rule.EVENT_TIMES,
                one.name,
                f"{what}: {'never' if seconds is None else f'{seconds:.2f} s'}, and at most {BOUNDS_S[what]:g} s are "
                "allowed",
                self._evidence(one),
            )
            for one, (what, seconds) in waits
            if seconds is None or seconds > BOUNDS_S[what]
        ]
        return ruling(
            Rule.EVENT_TIMES,
            findings,
            checked=f"{len(waits)} waits",
            bound=", ".join(f"{what} {BOUNDS_S[what]:g} s" for what in sorted({wait.what for _, wait in waits})),
            exercised=bool(waits),
        )

    def memberships(self) -> Ruling:
        """Checks that the members of a scene kept their memberships, and received no record twice. No scene kills a
        member, or is silent for longer than a session, but for the one in which the memberships themselves are lost."""
        findings: list[ChaosFinding] = []
        members = 0
        for one in self._alone():
            if one.kind == Kind.TREE_LOST:
                continue
            journals = self._journals.get(one.name, [])
            members += len(journals)
            for journal in journals:
                if one.kind == Kind.TOPIC_RECREATED and journal.kind == DROPS_PARTITIONS:
                    continue
                for line in journal.lines:
                    if isinstance(line, Lost) and one.begin <= line.t <= one.end:
                        evidence = (*self._evidence(one), self._records.at(line.t, f"{journal.path}: lost"))
                        message = f"{journal.consumer} lost its membership and {len(line.partitions)} partitions"
                        findings.append(violation(Rule.EVENT_MEMBERSHIPS, one.name, message, evidence))
            for partition, count in self._repeated(one.name):
                message = f"{count} records were received twice"
                findings.append(
                    violation(Rule.EVENT_MEMBERSHIPS, f"{one.name} {partition}", message, self._evidence(one))
                )
        return ruling(
            Rule.EVENT_MEMBERSHIPS, findings, checked=f"{members} members in events alone", exercised=members > 0
        )

    def _alone(self) -> Iterator[Happening]:
        return (one for one in self._happened if one.judged_alone)

    def _runs(self, group: str) -> Iterator[Stretch]:
        for journal in self._journals.get(group, ()):
            for line in journal.lines:
                if isinstance(line, Handed):
                    yield from line.runs

    def _received(self, group: str) -> dict[TopicPartition, list[Span]]:
        """Returns the numbers of the records that the group received."""
        found: dict[TopicPartition, list[Span]] = {}
        for run in self._runs(group):
            found.setdefault(run.partition, []).append(Span(run.number, run.number + run.size))
        return {partition: merged(spans) for partition, spans in found.items()}

    def _repeated(self, group: str) -> Iterator[tuple[TopicPartition, int]]:
        handed: Counter[TopicPartition] = Counter()
        for run in self._runs(group):
            handed[run.partition] += run.size
        for partition, spans in self._received(group).items():
            if count := handed[partition] - sum(span.end - span.first for span in spans):
                yield partition, count

    def _abandoned(self, one: Happening) -> ChaosFinding:
        message = f"the event was abandoned: {one.observed.abandoned}"
        # Alone, only the product or the testbed can be the reason, and a rule without evidence would hide it.
        severity = Severity.WARNING if one.disturbed else Severity.VIOLATION
        return ChaosFinding(Rule.EVENT_RECORDS, severity, one.name, message, self._evidence(one))

    def _evidence(self, one: Happening) -> tuple[Evidence, ...]:
        at: Callable[[float, str], Evidence] = partial(self._records.at)
        return at(one.begin, f"{one.kind} began"), at(one.end, f"{one.kind} ended")


def _partition(owed: Owed) -> TopicPartition:
    return TopicPartition(owed.topic, owed.partition)
