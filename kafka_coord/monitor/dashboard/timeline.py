"""Reconstructs the past owners of partitions from the group's history and from observations. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Decision, TopicPartition
from kafka_coord.model.partitions import parse_ranges

MAX_SPANS = 100
"""The maximum number of spans per partition."""
_MOVED = re.compile(r"([a-zA-Z0-9._-]+)\[([0-9,-]+)\]")

Owners = Mapping[TopicPartition, str]


@dataclass(slots=True)
class Span:
    """One period of ownership, in ms since 1970. ``from_ms`` is ``None`` if it began before the history. ``to_ms`` is
    ``None`` for a current owner."""

    consumer: str
    from_ms: int | None
    to_ms: int | None = None


@dataclass(slots=True)
class Timeline:
    """The ownership history of a group: each partition's spans, in chronological order. Complete from ``since_ms``
    on."""

    since_ms: int
    spans: dict[TopicPartition, list[Span]] = field(default_factory=dict)

    @classmethod
    def of(cls, decisions: Sequence[Decision], owners: Owners, now_ms: int) -> Timeline:
        """Builds the timeline from the current ``owners``, going back through the decisions (sorted oldest first). An
        ownership begins when a decision settles, and ends when the stops of a later decision are acknowledged. If the
        consumer left, the ownership ends with the next decision."""
        timeline = cls(now_ms)
        open_at = {tp: Span(consumer, None) for tp, consumer in owners.items()}
        next_ms = now_ms
        next_generation = 0
        for tp, span in open_at.items():
            timeline.spans[tp] = [span]
        for decision in reversed(decisions):
            gained, lost = _moved(decision, "gained"), _moved(decision, "lost")
            if gained is None or lost is None or decision.generation < next_generation - 1:
                break  # the history lacks some moves
            next_generation = decision.generation
            timeline.since_ms = decision.decided_at_ms
            for tp, consumer in gained.items():
                if tp not in open_at:  # the consumer left or was evicted before the next decision
                    open_at[tp] = ended = Span(consumer, None, next_ms)
                    timeline.spans.setdefault(tp, []).insert(0, ended)
                if open_at[tp].consumer == consumer:
                    open_at.pop(tp).from_ms = min(next_ms, _after(decision, decision.settled_ms, now_ms))
            for tp, consumer in lost.items():
                if tp not in open_at:
                    ended = Span(consumer, None, _after(decision, decision.stopped_ms, now_ms))
                    timeline.spans.setdefault(tp, []).insert(0, ended)
                    open_at[tp] = ended
            next_ms = decision.decided_at_ms
        return timeline

    def observe(self, owners: Owners, now_ms: int) -> None:
        """Records the current owners."""
        for tp in self.spans.keys() | owners.keys():
            spans = self.spans.setdefault(tp, [])
            last = spans[-1] if spans and spans[-1].to_ms is None else None
            owner = owners.get(tp)
            if last is not None and last.consumer != owner:
                last.to_ms = now_ms
                last = None
            if last is None and owner is not None:
                spans.append(Span(owner, now_ms))
                del spans[:-MAX_SPANS]


def _after(decision: Decision, duration_ms: int | None, now_ms: int) -> int:
    """Returns when a step of the decision ended. If the duration is unknown, returns the time of the decision."""
    return min(now_ms, decision.decided_at_ms + (duration_ms or 0))


def _moved(decision: Decision, which: str) -> dict[TopicPartition, str] | None:
    """Maps each partition to the consumer that gained or lost it. Returns ``None`` if the decision's record may be
    incomplete."""
    found: dict[TopicPartition, str] = {}
    for consumer, moves in decision.moves.items():
        text = moves.get(which, "")
        try:
            partitions = list(_partitions(text))
        except MalformedValue:
            return None
        found |= dict.fromkeys(partitions, consumer)
    gained = decision.moves.values()
    return (
        found
        if len(gained) < _MOST_CONSUMERS and all(len(t) < _MOST_TEXT for m in gained for t in m.values())
        else None
    )


_MOST_CONSUMERS, _MOST_TEXT = 20, 200
"""The coordinator records a decision's moves for at most this many consumers, with at most this many characters
each."""


def _partitions(text: str) -> Iterator[TopicPartition]:
    for topic, numbers in _MOVED.findall(text):
        for number in sorted(parse_ranges(numbers, "history")):
            yield TopicPartition(topic, number)
