"""Parses an operator's choice of partitions: ``flights``, ``flights:0,3-5``, or all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_coord.errors import MalformedValue, NotFound, SettingsError
from kafka_coord.model import PartitionSet, TopicInfo
from kafka_coord.model.names import legal
from kafka_coord.model.partitions import parse_ranges


@dataclass(frozen=True, slots=True)
class Scope:
    """The chosen partitions. ``topics`` maps each chosen topic to the chosen partitions, or to ``None`` for all of
    them. If ``topics`` is empty, every topic is chosen."""

    topics: Mapping[str, frozenset[int] | None]

    def choose(self, there: PartitionSet, group: str) -> PartitionSet:
        """Returns the chosen partitions of ``there``. Raises :class:`NotFound` if ``there`` lacks a chosen topic or
        partition."""
        if not self.topics:
            if not there:
                raise NotFound(f"group {group!r} has no offsets and does not subscribe to any existing topic")
            return there
        chosen = {}
        for topic, numbers in self.topics.items():
            known = there.of_topic(topic)
            if not known:
                raise NotFound(f"no topic {topic!r}; topics to choose from: {', '.join(there.topics) or 'none'}")
            missing = (numbers or frozenset()) - known
            if missing:
                raise NotFound(
                    f"topic {topic!r} has no partition {min(missing)}; it has {PartitionSet({topic: known})}"
                )
            chosen[topic] = numbers if numbers is not None else known
        return PartitionSet(chosen)


def parse_scope(topics: Sequence[str], *, all_topics: bool) -> Scope:
    """Parses ``--topic`` and ``--all-topics``. Raises :class:`SettingsError` if both or neither are given, or if a
    topic is malformed."""
    if all_topics is bool(topics):
        raise SettingsError(
            "choose topics with --topic NAME (repeatable; NAME:0,3-5 for some partitions) or --all-topics"
        )
    by_topic: dict[str, frozenset[int] | None] = {}
    for written in topics:
        name, colon, numbers = written.partition(":")
        legal("topic", name)
        try:
            chosen = parse_ranges(numbers, "--topic") if colon else None
        except MalformedValue as error:
            raise SettingsError(f"--topic {written[:80]!r}: {error.reason}") from None
        if colon and not chosen:
            raise SettingsError(
                f"--topic {written!r} lists no partitions; write {name}:0,3-5, or {name} for all of them"
            )
        before = by_topic.get(name, frozenset())
        by_topic[name] = None if chosen is None or before is None else before | chosen
    return Scope(by_topic)


def all_partitions(topics: Mapping[str, TopicInfo]) -> PartitionSet:
    """Returns every partition of every topic."""
    return PartitionSet({name: info.partitions for name, info in topics.items()})
