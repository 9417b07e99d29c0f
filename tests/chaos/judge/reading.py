"""Rules about records: none is missing, handed out by two owners, repeated without a crash, or out of order."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from kafka_coord.model import TopicPartition
from tests.chaos.journal import Group, Kind
from tests.chaos.judge.evidence import Book, Records, Span, merged, without
from tests.chaos.judge.faults import CRASHES, SHARED_ROLES, of_session
from tests.chaos.judge.findings import ChaosFinding, Evidence, Rule, Ruling, Severity, ruling, violation
from tests.chaos.judge.ownership import Ending, HandOut, Ownership

_CLOSE_S = 0.5
"""The tolerance in seconds. All processes share one clock, but they write an event a little before or after it happens.
"""


_HEARD_S = 5.0
"""The seconds after the session timeout within which a consumer must know that its membership has ended."""


def nothing_missing(records: Records) -> Ruling:
    """Checks that every acknowledged record was handed out to every group that reads it."""
    books = {(book.group, book.partition): book for book in records.books}
    findings, wanted, unique, handed = [], 0, 0, 0
    for group in records.run.groups:
        for partition in records.subscribed(group):
            book = books.get((group.name, partition))
            produced = _owed(group, records.produced[partition], book)
            given = [Span(out.first, out.end) for out in _hand_outs(book)]
            taken = merged(given)
            wanted += _size(produced)
            handed += _size(given)
            missing = list(without(produced, taken))
            unique += _size(produced) - _size(missing)
            if missing:
                text = ", ".join(f"{span.first}…{span.end - 1}" for span in missing[:5])
                findings.append(
                    violation(
                        Rule.NOTHING_MISSING,
                        f"group {group.name} {partition}",
                        f"{_size(missing)} acknowledged records were not handed out: offsets {text}"
                        + (" …" if len(missing) > 5 else ""),
                        _around(records, book, missing[0].first),
                    )
                )
            findings += _others(records, book, partition)
    return ruling(
        Rule.NOTHING_MISSING,
        findings,
        checked=f"{wanted:,} acknowledged records over all groups, {unique:,} handed out, {handed - unique:,} repeats",
        exercised=wanted > 0,
        figures={"acknowledged": wanted, "given": unique, "repeats": handed - unique},
    )


def _owed(group: Group, produced: list[Span], book: Book | None) -> list[Span]:
    """Returns the records that the group must receive. A group that begins at the end needs those after its start."""
    begins = [owner.first for owner in (book.ownerships if book is not None else ()) if owner.first is not None]
    return list(without(produced, [Span(0, begins[0])])) if group.latest and begins else produced


def _others(records: Records, book: Book | None, partition: TopicPartition) -> Iterator[ChaosFinding]:
    """Yields a finding for each hand-out whose records differ from those written at their offsets."""
    written = records.written[partition]
    firsts = [run.first for run in written]
    for owner in book.ownerships if book is not None else ():
        for out in owner.given:
            for run in written[max(0, bisect.bisect_right(firsts, out.first) - 1) :]:
                if run.first >= out.end:
                    break
                offset = max(run.first, out.first)
                given, due = out.number + offset - out.first, run.number + offset - run.first
                if offset < run.end and given != due:
                    yield violation(
                        Rule.NOTHING_MISSING,
                        f"group {owner.group} {partition}",
                        f"{owner} received record {given} at offset {offset}, where record {due} had been written",
                        (_told(records, owner.process, out),),
                    )
                    break


def one_owner(records: Records) -> Ruling:
    """Checks that a partition's records are not handed out by a call that began after the start of the next owner.

    A call that began before and returned after that start does not count, because the time at which it took the records
    is unknown.
    """
    findings: list[ChaosFinding] = []
    pairs = doubtful = 0
    for book in records.books:
        for at, owner in enumerate(book.ownerships):
            other = next((one for one in book.ownerships[at + 1 :] if one.process != owner.process), None)
            plain: list[HandOut] = []
            if other is not None:
                pairs += 1
                late = [out for out in owner.given if out.t > other.begin]
                plain = [out for out in late if out.since >= other.begin]
                doubtful += len(late) - len(plain)
                if plain:
                    findings.append(_overlap(records, book, owner, other, plain))
            if owner.stray and owner.ending is Ending.STOPPED and not plain:
                findings.append(_after_the_stop(records, book, owner))
    for life in records.lives:
        for misplaced in life.misplaced:
            findings.append(
                violation(
                    Rule.ONE_OWNER,
                    f"group {misplaced.group} {misplaced.partition}",
                    f"{misplaced.consumer} handed out records of a partition that it never owned",
                    (_told(records, misplaced.process, misplaced.hand_out),),
                )
            )
    exceptions = sum(finding.severity is Severity.EXCEPTION for finding in findings)
    return ruling(
        Rule.ONE_OWNER,
        findings,
        checked=f"{pairs:,} handovers between processes; {doubtful} calls were under way at the next start",
        exercised=pairs > 0,
        figures={"handovers": pairs, "calls_under_way": doubtful, "exceptions": exceptions},
    )


def _overlap(records: Records, book: Book, owner: Ownership, other: Ownership, late: list[HandOut]) -> ChaosFinding:
    why = _ended_by_others(records, owner, other, late[-1].since) or _hears_late(records, owner, late[-1].since)
    message = (
        f"{owner} handed out {sum(out.end - out.first for out in late)} records in {late[-1].t - other.begin:.3f} s "
        f"after the start of {other}"
    )
    return ChaosFinding(
        Rule.ONE_OWNER,
        Severity.EXCEPTION if why else Severity.VIOLATION,
        book.where,
        message + (f": {why}" if why else ""),
        (
            records.start_of(owner),
            records.start_of(other),
            _told(records, owner.process, late[0]),
            records.at(owner.end, f"{owner.process}: {owner.ending}"),
        ),
    )


def _after_the_stop(records: Records, book: Book, owner: Ownership) -> ChaosFinding:
    out = owner.stray[0]
    return violation(
        Rule.ONE_OWNER,
        book.where,
        f"{owner} handed out records {out.t - owner.end:.3f} s after it had given it up",
        (records.at(owner.end, f"{owner.process}: {owner.ending}"), _told(records, owner.process, out)),
    )


def _ended_by_others(records: Records, owner: Ownership, other: Ownership, until: float | None = None) -> str:
    """Returns the reason why the membership ended without the consumer's knowledge, which is an eviction or a session
    ended from outside. Returns nothing if the consumer must know it by ``until``. It checks every few seconds, and
    without an answer, its own deadline ends the membership.
    """
    known_s = _HEARD_S + records.run.setup.session_timeouts_ms.get("consumer", 0) / 1000
    for event in records.of(Kind.EVICT, Kind.EXPIRE):
        if event.name != owner.consumer or (until is not None and until > event.t + known_s):
            continue
        if owner.begin <= event.t + _CLOSE_S and event.t <= other.begin + _CLOSE_S:
            return "it had been evicted" if event.kind == Kind.EVICT else "its session had been ended from outside"
    return ""


def _hears_late(records: Records, owner: Ownership, until: float) -> str:
    """Returns an excuse for a stock client, which hands out records until it learns from its coordinator that its
    session has ended. There is no excuse without a fault, or if everything was acknowledged at the stop."""
    if not owner.stock or not owner.crashed:
        return ""
    faults = records.faults.under_way(until)
    ends = any(fault.kind in CRASHES | {Kind.STOP} and of_session(fault, owner.consumer) for fault in faults)
    return "its session had ended, which a stock client learns late" if ends else ""


def repeats(records: Records) -> Ruling:
    """Checks that an owner begins before the position of an earlier owner only if that owner lost the partition without
    a clean stop. No owner may begin before an acknowledged commit. An operator's reset restarts the rule."""
    findings: list[ChaosFinding] = []
    judged = repeated = 0
    for book in records.books:
        given = [Span(out.first, out.end) for out in _hand_outs(book)]
        repeated += _size(given) - _size(merged(given))
        resets = _resets(records, book)
        for at, owner in enumerate(book.ownerships):
            if owner.first is None:
                continue
            judged += 1
            since = max((t for t in resets if t <= owner.begin + _CLOSE_S), default=0.0)
            earlier = [one for one in book.ownerships[:at] if one.begin >= since and one.position is not None]
            ahead = [one for one in earlier if (one.position or 0) > owner.first]
            for one in ahead:
                if _sent_again(records, one, owner):
                    again = f"whose client may have sent its commit of {owner.first} again after a newer one"
                    findings.append(_twice(records, book, owner, one, again, Severity.WARNING))
                elif not one.crashed and not _ended_by_others(records, one, owner):
                    findings.append(
                        _twice(records, book, owner, one, f"which gave it up cleanly at {one.position} ({one.ending})")
                    )
            for one in earlier:
                committed = one.committed(by=owner.begin)
                if committed > owner.first and not _sent_again(records, one, owner):
                    findings.append(_twice(records, book, owner, one, f"which had committed {committed} before that"))
    return ruling(
        Rule.REPEATS,
        findings,
        checked=f"{judged:,} beginnings; {repeated:,} records were handed out again",
        exercised=judged > 0,
        figures={"beginnings": judged, "read_again": repeated},
    )


def _sent_again(records: Records, one: Ownership, owner: Ownership) -> bool:
    """Tells whether a stock client may have repeated an older commit after the acknowledgement of a newer one.
    librdkafka does so while its coordinator changes (docs/kafka-clients.md), and no coordinator can distinguish this
    from a new commit."""
    if not one.stock or owner.first not in one.asked or one.committed(by=owner.begin) <= (owner.first or 0):
        return False
    faults = records.faults.under_way(one.begin, owner.begin)
    return any(fault.role in SHARED_ROLES or fault.kind == Kind.LEADERS_MOVED for fault in faults)


def _twice(
    records: Records,
    book: Book,
    owner: Ownership,
    before: Ownership,
    what: str,
    severity: Severity = Severity.VIOLATION,
) -> ChaosFinding:
    return ChaosFinding(
        Rule.REPEATS,
        severity,
        book.where,
        f"{owner} began at {owner.first}, after {before}, {what}",
        (
            records.start_of(before),
            records.at(before.end, f"{before.process}: {before.ending}, at {before.position}"),
            records.start_of(owner),
        ),
    )


def order(records: Records) -> Ruling:
    """Checks that an owner receives consecutive offsets from its start on, and that no owner starts beyond the records
    handed out before. A Spark query continues after its checkpoint, even if the group does not have these offsets yet.
    """
    findings: list[ChaosFinding] = []
    handed = commits = 0
    for book in records.books:
        furthest: int | None = None
        for number, owner in enumerate(book.ownerships):
            expected = owner.offset
            for at, out in enumerate(owner.handed):
                handed += 1
                if expected is not None and out.first != expected and not _done_already(records, book, owner, out):
                    word = "went back" if out.first < expected else "skipped"
                    starts = map(records.start_of, book.ownerships[: number + 1])
                    last = owner.handed[max(0, at - 1) : at + 1]
                    findings.append(
                        violation(
                            Rule.ORDER,
                            book.where,
                            f"{owner} {word}: offset {out.first} where {expected} was due",
                            (*starts, *(_told(records, owner.process, one) for one in last)),
                        )
                    )
                expected = out.end
            if furthest is not None and owner.first is not None and owner.first > furthest:
                findings.append(
                    violation(
                        Rule.ORDER,
                        book.where,
                        f"{owner} began at {owner.first}, although records were handed out only up to {furthest}",
                        (records.start_of(owner),),
                    )
                )
            if owner.position is not None:
                furthest = max(furthest or 0, owner.position)
            commits += len(owner.commits)
            findings += _commits_out_of_order(records, book, owner)
    return ruling(Rule.ORDER, findings, checked=f"{handed:,} hand-outs, {commits:,} commits", exercised=handed > 0)


def _done_already(records: Records, book: Book, owner: Ownership, out: HandOut) -> bool:
    """Tells whether ``out`` is the start of a query that had already received all records from its assigned start up to
    ``out``. Another rule checks that the table has them.
    """
    if owner.consumer not in records.spark or out is not owner.handed[0] or owner.offset is None:
        return False
    own = (one for other in book.ownerships if other.consumer == owner.consumer for one in other.given)
    had = merged(Span(one.first, one.end) for one in own if one.t <= out.since)
    return owner.offset < out.first and not list(without([Span(owner.offset, out.first)], had))


def _commits_out_of_order(records: Records, book: Book, owner: Ownership) -> Iterator[ChaosFinding]:
    given = iter(owner.handed)
    out = next(given, None)
    position, furthest = owner.offset, -1
    for t, offset in owner.commits:
        while out is not None and out.t <= t:
            position = out.end
            out = next(given, None)
        wrong = ""
        if offset < furthest and not owner.stock:  # another rule judges the order for stock clients
            wrong = f"committed {offset} after it had committed {furthest}"
        elif position is not None and offset > position:
            wrong = f"committed {offset}, although records were handed out only up to {position}"
        if wrong:
            evidence = (records.at(t, f"{owner.process}: committed {offset}"),)
            yield violation(Rule.ORDER, book.where, f"{owner} {wrong}", evidence)
        furthest = max(furthest, offset)


def _resets(records: Records, book: Book) -> list[float]:
    found = []
    for event in records.of(Kind.RESET):
        of_topic = event.detail.get("offsets", {}).get(book.partition.topic, {})
        if event.detail.get("group") == book.group and str(book.partition.partition) in of_topic:
            found.append(event.t)
    return found


def _hand_outs(book: Book | None) -> Iterator[HandOut]:
    for owner in book.ownerships if book is not None else ():
        yield from owner.given


def _around(records: Records, book: Book | None, offset: int) -> tuple[Evidence, ...]:
    """Returns evidence of the owners directly before and after the record at ``offset``."""
    if book is None:
        return ()
    before = [one for one in book.ownerships if one.first is not None and one.first <= offset]
    after = [one for one in book.ownerships if one.first is not None and one.first > offset]
    found = []
    for one in (*before[-1:], *after[:1]):
        found.append(records.start_of(one))
        found.append(records.at(one.end, f"{one.process}: {one.ending}, at {one.position}"))
    return tuple(found)


def _told(records: Records, process: str, out: HandOut) -> Evidence:
    return records.at(
        out.t, f"{process}: handed out {out.first}…{out.end - 1} by a call {out.t - out.since:.3f} s earlier"
    )


def _size(spans: Iterable[Span]) -> int:
    return sum(span.end - span.first for span in spans)
