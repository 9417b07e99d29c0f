"""Computes how long partitions had no owner, by fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.journal import Kind
from tests.chaos.judge.evidence import Book, Records
from tests.chaos.judge.faults import cause_of
from tests.chaos.judge.ownership import Ending, Ownership

_NOTICED_S = 2.0
"""The time in which a waking consumer notices that its membership is lost."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The times without an owner (s) that have one cause. In ``alone`` cases, no other fault was under way."""

    cause: str
    n: int
    p50_s: float
    p99_s: float
    max_s: float
    alone: int
    alone_p50_s: float
    alone_max_s: float


def costs(records: Records) -> tuple[Cost, ...]:
    """Returns the costs, the highest first."""
    found: dict[str, list[tuple[float, bool]]] = {}
    consumers = {journal.consumer: journal.group for journal in records.journals}
    for book in records.books:
        for before, after in _gaps(book):
            session_s = records.run.setup.session_timeouts_ms.get("consumer", 0) / 1000
            cause = cause_of(
                records.faults.under_way(before.end - session_s, before.end, aftermath_s=2.0),
                consumer=before.consumer,
                in_group=lambda name, group=book.group: consumers.get(name) == group,  # type: ignore[misc]
                group=book.group,
                lost=before.ending in {Ending.LOST, Ending.DIED},
            )
            since = _worked_until(records, before, after)
            found.setdefault(cause.label, []).append((max(0.0, after.begin - since), cause.alone))
    table = [_cost(cause, values) for cause, values in found.items()]
    return tuple(sorted(table, key=lambda cost: -cost.max_s))


def _gaps(book: Book) -> list[tuple[Ownership, Ownership]]:
    """Returns the pairs of successive owners with a known end of the first."""
    found = []
    for before, after in zip(book.ownerships, book.ownerships[1:], strict=False):
        if before.ending is not Ending.OPEN and before.end != float("inf"):
            found.append((before, after))
    return found


def _worked_until(records: Records, before: Ownership, after: Ownership) -> float:
    """Returns the end of the owner's work. It is the freeze of a frozen owner, which notices its loss only later."""
    if before.ending is Ending.LOST:
        for fault in records.faults.of(Kind.FREEZE, role="consumer", name=before.consumer):
            if before.begin <= fault.begin <= after.begin and fault.begin <= before.end <= fault.end + _NOTICED_S:
                return fault.begin
    return before.end


def _cost(cause: str, values: Sequence[tuple[float, bool]]) -> Cost:
    every = sorted(value for value, _ in values)
    alone = sorted(value for value, single in values if single)
    return Cost(
        cause,
        len(every),
        quantile(every, 0.5),
        quantile(every, 0.99),
        every[-1],
        len(alone),
        quantile(alone, 0.5),
        alone[-1] if alone else 0.0,
    )


def quantile(values: Sequence[float], q: float) -> float:
    """Returns the nearest rank of sorted ``values``, or 0 if there are none."""
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0
