"""Verifies that the group consumed every record, from the consumers' journals and other facts. Does no I/O.

The claim, for a topic whose partitions hold the offsets 0 … end - 1:

- every record was consumed at least once;
- no record was consumed twice, except records that a *killed* consumer had consumed but not committed: those from the
  committed offset on, in the partitions that it owned when it was killed. A clean handover repeats no records. A stock
  client that lost its session also counts as killed: the records after its last acknowledged commit may be repeated;
- in those partitions, the next owner continued exactly at the committed offset, so it skipped none of the killed
  consumer's uncommitted records;
- no two consumers owned a partition at the same moment, and no partition that kept its owner was interrupted;
- no acknowledged commit was lost: each later owner of the partition began at that offset or later, and the group ends
  at that offset or later (only stock clients record acknowledgements);
- the consumed records, each counted once, equal the input: the same number of flights and the same delays by airline;
- the group has committed every record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kafka_coord.dev.demo.expected import AirlineTotal, side_by_side
from kafka_coord.dev.demo.journal import Change, Journal, Killing, Offsets, Run
from kafka_coord.dev.demo.timeline import Ending, Span, overlaps_of, spans_of
from kafka_coord.model import TopicPartition
from kafka_coord.model.partitions import ranges

MAX_DIFFERENCES = 20
"""The maximum number of differences in the result of a check."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of the verification. ``ends`` are the partitions' end offsets, ``committed`` are the group's committed
    offsets as an operator sees them, ``written`` is the number of records produced, and ``expected`` are the input's
    totals by airline.
    """

    ends: Offsets
    committed: Offsets
    written: int
    journals: Sequence[Journal]
    killings: Sequence[Killing]
    expected: Mapping[str, AirlineTotal]


@dataclass(frozen=True, slots=True)
class Check:
    """One checked claim. ``found`` is the observation in a few words. ``differences`` lists what contradicts the
    claim."""

    name: str
    found: str
    differences: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.differences


@dataclass(frozen=True, slots=True)
class Verification:
    """The result. ``repeated`` is the number of records that were consumed again after a kill, which is allowed.
    ``consumed`` has the group's totals by airline, with each record counted once.
    """

    checks: tuple[Check, ...]
    consumed: Mapping[str, AirlineTotal]
    repeated: int

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def failures(self) -> tuple[str, ...]:
        """Returns one line for each failed check."""
        return tuple(
            f"{check.name}: {check.differences[0]}"
            + (f" (and {len(check.differences) - 1} more)" if len(check.differences) > 1 else "")
            for check in self.checks
            if not check.passed
        )


def verify(evidence: Evidence) -> Verification:
    """Checks the evidence against the claims in the module's docstring."""
    tally = _Tally(evidence)
    for journal in evidence.journals:
        for run in journal.runs:
            tally.add(journal.consumer, run)
    last_ms = max((run.at_ms for journal in evidence.journals for run in journal.runs), default=0)
    spans = spans_of(evidence.journals, evidence.killings, last_ms)
    checks = (
        all_written(evidence.ends, evidence.written),
        _all_consumed(evidence, tally),
        _none_twice(evidence, tally),
        _resumed(evidence, tally),
        _one_owner(spans),
        _not_interrupted(spans),
        _airlines(evidence, tally),
        _delays(evidence, tally),
        all_committed(evidence.ends, evidence.committed, evidence.written),
        *_commits_kept(evidence, spans),
    )
    return Verification(checks, dict(sorted(tally.totals.items())), tally.allowed)


@dataclass(slots=True)
class _Tally:
    """How often each offset was consumed: in total (``times``), by a killed consumer after its last commit (``tails``),
    and by a consumer that lost its membership, after its last acknowledged commit (``lost``). ``losses`` maps each such
    consumer and partition to that commit.
    """

    evidence: Evidence
    times: dict[TopicPartition, bytearray] = field(init=False)
    tails: dict[TopicPartition, bytearray] = field(init=False)
    losses: dict[tuple[str, TopicPartition], int] = field(init=False)
    lost: dict[TopicPartition, bytearray] = field(default_factory=dict)
    totals: dict[str, AirlineTotal] = field(default_factory=dict)
    beyond: list[str] = field(default_factory=list)
    allowed: int = 0

    def __post_init__(self) -> None:
        self.times = {tp: bytearray(end) for tp, end in self.evidence.ends.items()}
        self.tails = {
            tp: bytearray(self.evidence.ends.get(tp, 0))
            for killing in self.evidence.killings
            for tp in killing.committed
        }
        self.losses = _losses(self.evidence.journals)

    def add(self, consumer: str, run: Run) -> None:
        times = self.times.get(run.partition)
        if times is None or run.end > len(times):
            end = "which the topic does not have" if times is None else f"whose end is {len(times)}"
            self.beyond.append(f"{consumer} consumed {run.partition} up to offset {run.end - 1}, {end}")
            return
        uncommitted_from = min(
            (k.committed[run.partition] for k in self._killings_of(consumer) if run.partition in k.committed),
            default=run.end,
        )
        uncertain_from = self.losses.get((consumer, run.partition), run.end)
        for offset, airline, delay in zip(range(run.first, run.end), run.airlines, run.delays, strict=True):
            if not times[offset]:
                self.totals.setdefault(airline, AirlineTotal()).add(delay)
            times[offset] = min(times[offset] + 1, 255)
            if offset >= uncommitted_from:
                tail = self.tails[run.partition]
                tail[offset] = min(tail[offset] + 1, 255)
            elif offset >= uncertain_from:
                lost = self.lost.setdefault(run.partition, bytearray(len(times)))
                lost[offset] = min(lost[offset] + 1, 255)

    def _killings_of(self, consumer: str) -> Iterable[Killing]:
        return (killing for killing in self.evidence.killings if killing.consumer == consumer)


def all_written(ends: Offsets, written: int, name: str = "the topic holds every written record") -> Check:
    held = sum(ends.values())
    differences = () if held == written else (f"{written:,} were written, but it holds {held:,}",)
    return Check(name, f"{held:,} records in {len(ends)} partitions", differences)


def _all_consumed(evidence: Evidence, tally: _Tally) -> Check:
    differences = list(tally.beyond)
    missing = 0
    for tp, times in sorted(tally.times.items()):
        if 0 in times:
            lost = [offset for offset, count in enumerate(times) if not count]
            missing += len(lost)
            differences.append(f"{tp}: nobody consumed offsets {_some(lost)}")
    consumed = sum(evidence.ends.values()) - missing
    return Check("every record was consumed at least once", f"{consumed:,} records consumed", _bounded(differences))


def _none_twice(evidence: Evidence, tally: _Tally) -> Check:
    """Checks that every offset was consumed at most once, apart from the killed consumers' uncommitted records."""
    differences = []
    for tp, times in sorted(tally.times.items()):
        tail, lost = tally.tails.get(tp), tally.lost.get(tp)
        if max(times, default=0) < 2:
            continue
        repeated = [offset for offset, count in enumerate(times) if count > 1]
        excused = [(tail[offset] if tail else 0) + (lost[offset] if lost else 0) for offset in repeated]
        wrong = [offset for offset, count in zip(repeated, excused, strict=True) if times[offset] - count > 1]
        tally.allowed += len(repeated) - len(wrong)
        if wrong:
            rule = _rule(tp, evidence.killings)
            differences.append(f"{tp}: offsets {_some(wrong)} were consumed more than once; {rule}")
    gone = [killing.consumer for killing in evidence.killings] + [consumer for consumer, _ in tally.losses]
    killed = ", ".join(dict.fromkeys(gone))
    found = f"{tally.allowed:,} repeated, all consumed by {killed} after its last commit" if killed else "none repeated"
    return Check(
        "no record was consumed twice, except what a killed consumer had not committed",
        found if tally.allowed else "none repeated",
        _bounded(differences),
    )


def _rule(tp: TopicPartition, killings: Sequence[Killing]) -> str:
    allowed = [
        f"{killing.consumer}'s records from offset {killing.committed[tp]} on may be repeated"
        for killing in killings
        if tp in killing.committed
    ]
    return " and ".join(allowed) if allowed else "no killed consumer owned it, so no record may be repeated"


def _resumed(evidence: Evidence, tally: _Tally) -> Check:
    """Checks that other consumers consumed the killed consumers' uncommitted records again."""
    differences = []
    redone = 0
    for tp, tail in sorted(tally.tails.items()):
        times = tally.times.get(tp, bytearray())
        skipped = [offset for offset, count in enumerate(tail) if count and times[offset] <= count]
        redone += sum(1 for count in tail if count) - len(skipped)
        if skipped:
            differences.append(
                f"{tp}: offsets {_some(skipped)} were not committed when their consumer was killed, and "
                "nobody consumed them again"
            )
    name = "after a kill, the next owner resumed at the committed offset"
    if not evidence.killings:
        return Check(name, "nobody was killed")
    owned = sum(len(killing.committed) for killing in evidence.killings)
    return Check(name, f"in {owned} partitions; {redone:,} records consumed again", _bounded(differences))


def _one_owner(spans: Sequence[Span]) -> Check:
    partitions = {span.partition for span in spans}
    found = f"{len(spans)} ownerships of {len(partitions)} partitions, one after the other"
    return Check("no two consumers owned a partition at once", found, _bounded(overlaps_of(spans)))


def _not_interrupted(spans: Sequence[Span]) -> Check:
    """Checks that no partition was stopped and then started by the same owner, unless the owner lost its membership in
    between."""
    losses = {(span.consumer, span.to_ms) for span in spans if span.ending is Ending.LOST}
    differences = [
        f"{after.partition}: {after.consumer} was stopped and, {after.from_ms - before.to_ms} ms later, started again"
        for before, after in pairwise(spans)
        if (before.partition, before.consumer, before.ending) == (after.partition, after.consumer, Ending.STOPPED)
        and not any(who == after.consumer and before.to_ms <= at_ms <= after.from_ms for who, at_ms in losses)
    ]
    held = sum(span.ending is not Ending.KILLED for span in spans)
    return Check(
        "no partition that kept its owner was interrupted", f"{held} uninterrupted ownerships", _bounded(differences)
    )


def _airlines(evidence: Evidence, tally: _Tally) -> Check:
    differences = [
        f"{airline}: {seen.flights:,} flights consumed, {there.flights:,} in the input"
        for airline, seen, there in side_by_side(tally.totals, evidence.expected)
        if seen.flights != there.flights
    ]
    total = sum(total.flights for total in tally.totals.values())
    found = f"{total:,} flights of {len(tally.totals)} airlines"
    return Check("flights per airline equal the input's", found, _bounded(differences))


def _delays(evidence: Evidence, tally: _Tally) -> Check:
    differences = [
        f"{airline}: {seen.delay_minutes:,} minutes over {seen.arrived:,} arrivals consumed, "
        f"{there.delay_minutes:,} over {there.arrived:,} in the input"
        for airline, seen, there in side_by_side(tally.totals, evidence.expected)
        if (seen.arrived, seen.delay_minutes) != (there.arrived, there.delay_minutes)
    ]
    minutes = sum(total.delay_minutes for total in tally.totals.values())
    return Check("delays per airline match the input", f"{minutes:,} minutes in all", _bounded(differences))


def all_committed(
    ends: Offsets,
    committed: Offsets,
    written: int,
    name: str = "the committed offsets add up to the number of records",
) -> Check:
    differences = [
        f"{tp}: committed {committed.get(tp, 'nothing')}, end offset {ends.get(tp, 'unknown')}"
        for tp in sorted(ends.keys() | committed.keys())
        if committed.get(tp) != ends.get(tp) and (ends.get(tp) or committed.get(tp))
    ]
    total = sum(committed.values())
    if total != written:
        differences.insert(0, f"the committed offsets add up to {total:,}, but {written:,} records were written")
    return Check(name, f"{total:,}", _bounded(differences))


def _losses(journals: Sequence[Journal]) -> dict[tuple[str, TopicPartition], int]:
    """Returns, for each partition that a stock client lost with its membership, the client's last acknowledged
    commit."""
    found: dict[tuple[str, TopicPartition], int] = {}
    for journal in (journal for journal in journals if journal.commits):
        for handed in (one for one in journal.handed if one.change is Change.LOST):
            for tp in handed.partitions:
                before = (one.offsets.get(tp, 0) for one in journal.commits if one.at_ms <= handed.at_ms)
                found[journal.consumer, tp] = min(found.get((journal.consumer, tp), 1 << 62), max(before, default=0))
    return found


def _commits_kept(evidence: Evidence, spans: Sequence[Span]) -> tuple[Check, ...]:
    """Checks that no acknowledged commit was lost. Returns no checks if no consumer recorded any."""
    commits = [
        (one.at_ms, tp, offset)
        for journal in evidence.journals
        for one in journal.commits
        for tp, offset in one.offsets.items()
    ]
    if not commits:
        return ()
    firsts = {
        journal.consumer: sorted((run.partition, run.at_ms, run.first) for run in journal.runs)
        for journal in evidence.journals
    }
    differences = []
    for span in spans:
        promised = max(
            (offset for at_ms, tp, offset in commits if tp == span.partition and at_ms < span.from_ms), default=0
        )
        began = next(
            (
                first
                for tp, at_ms, first in firsts[span.consumer]
                if tp == span.partition and span.from_ms <= at_ms <= span.to_ms
            ),
            promised,
        )
        if began < promised:
            differences.append(
                f"{span.partition}: {span.consumer} began at offset {began}, but a commit of {promised} had already "
                "been acknowledged"
            )
    for tp in sorted({tp for _, tp, _ in commits}):
        promised, ended = max(offset for _, at, offset in commits if at == tp), evidence.committed.get(tp, 0)
        if ended < promised:
            differences.append(f"{tp}: the group ends at offset {ended}, but a commit of {promised} was acknowledged")
    times = sum(len(journal.commits) for journal in evidence.journals)
    return (
        Check("no acknowledged commit was lost", f"{times:,} commits acknowledged, all kept", _bounded(differences)),
    )


def _some(offsets: Sequence[int]) -> str:
    """Formats offsets as ``5-90,107 (86)``, and truncates long lists."""
    written = ranges(offsets)
    shown = written if len(written) <= 60 else f"{written[:57]}…"
    return f"{shown} ({len(offsets):,})"


def _bounded(differences: Sequence[str]) -> tuple[str, ...]:
    if len(differences) <= MAX_DIFFERENCES:
        return tuple(differences)
    return (*differences[:MAX_DIFFERENCES], f"{len(differences) - MAX_DIFFERENCES} more differences")
