"""Partitions, sets of partitions, and their compact form in JSON: ``{"flights": "0-3,7"}``. And which of a consumer's
streams (Kafka 0.8's consumer threads) fetches a partition. Stream 0 is implied and never written."""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal

MAX_PARTITION = (1 << 31) - 1
MAX_PARTITIONS_PER_VALUE = 1_000_000
"""The maximum number of partitions in one value. Without this limit, a hostile range such as "0-2147483647" would
exhaust memory."""

_RANGES = re.compile(r"\d{1,10}(?:-\d{1,10})?(?:,\d{1,10}(?:-\d{1,10})?)*")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionSet:
    """An immutable set of topic-partitions, stored by topic so that set algebra runs at the speed of ``frozenset``."""

    __slots__ = ("_count", "_topics")

    def __init__(self, topics: Mapping[str, Iterable[int]] | None = None) -> None:
        kept = {topic: frozenset(numbers) for topic, numbers in (topics or {}).items()}
        self._topics = {topic: numbers for topic, numbers in kept.items() if numbers}
        self._count = sum(map(len, self._topics.values()))

    @classmethod
    def _of_sets(cls, topics: dict[str, frozenset[int]]) -> PartitionSet:
        """Creates a set from non-empty sets without copying them, for the results of set operations."""
        made = cls.__new__(cls)
        made._topics = topics
        made._count = sum(map(len, topics.values()))
        return made

    @classmethod
    def of(cls, partitions: Iterable[tuple[str, int]]) -> PartitionSet:
        """Creates a set from individual partitions."""
        topics: dict[str, set[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, set()).add(partition)
        return cls(topics)

    @classmethod
    def union(cls, sets: Iterable[PartitionSet]) -> PartitionSet:
        """Returns the union of many sets in linear time. Repeated ``|`` would copy the growing union each time."""
        topics: dict[str, set[int]] = {}
        for partitions in sets:
            for topic, numbers in partitions._topics.items():
                topics.setdefault(topic, set()).update(numbers)
        return cls(topics)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics with at least one partition in the set, sorted."""
        return tuple(sorted(self._topics))

    def of_topic(self, topic: str) -> frozenset[int]:
        """Returns the partitions of one topic, or an empty set."""
        return self._topics.get(topic, frozenset())

    def by_topic(self) -> Iterator[tuple[str, frozenset[int]]]:
        """Yields (topic, partitions), sorted by topic."""
        return ((topic, self._topics[topic]) for topic in sorted(self._topics))

    def unordered(self) -> ItemsView[str, frozenset[int]]:
        """Like :meth:`by_topic`, but unsorted and cheaper."""
        return self._topics.items()

    def __iter__(self) -> Iterator[TopicPartition]:
        """Yields the partitions, ordered by topic and number."""
        return (TopicPartition(topic, p) for topic in sorted(self._topics) for p in sorted(self._topics[topic]))

    def __contains__(self, item: tuple[str, int]) -> bool:
        return item[1] in self._topics.get(item[0], ())

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, PartitionSet) and self._count == other._count and self._topics == other._topics
        )

    def __hash__(self) -> int:
        return hash(frozenset(self._topics.items()))

    def __or__(self, other: PartitionSet) -> PartitionSet:
        if not other._topics or self is other:
            return self
        if not self._topics:
            return other
        topics = dict(self._topics)
        for topic, numbers in other._topics.items():
            mine = topics.get(topic)
            topics[topic] = numbers if mine is None else mine | numbers
        return PartitionSet._of_sets(topics)

    def __sub__(self, other: PartitionSet) -> PartitionSet:
        if not other._topics or not self._topics:
            return self
        if self is other:
            return NO_PARTITIONS
        topics = {}
        for topic, numbers in self._topics.items():
            theirs = other._topics.get(topic)
            left = numbers if theirs is None else numbers - theirs
            if left:
                topics[topic] = left
        return PartitionSet._of_sets(topics)

    def __and__(self, other: PartitionSet) -> PartitionSet:
        if self is other:
            return self
        few, many = self._topics, other._topics
        if len(few) > len(many):
            few, many = many, few
        topics = {}
        for topic, numbers in few.items():
            theirs = many.get(topic)
            if theirs is not None and (common := numbers & theirs):
                topics[topic] = common
        return PartitionSet._of_sets(topics)

    def isdisjoint(self, other: PartitionSet) -> bool:
        return all(numbers.isdisjoint(other.of_topic(topic)) for topic, numbers in self._topics.items())

    def filter(self, keep: Callable[[str], bool]) -> PartitionSet:
        """Returns the subset with the topics for which ``keep`` is true."""
        return PartitionSet._of_sets({topic: numbers for topic, numbers in self._topics.items() if keep(topic)})

    def __repr__(self) -> str:
        return f"PartitionSet({self.to_json()})"

    def __str__(self) -> str:
        """Returns text such as ``flights[0-3,7] routes[1]``, or ``nothing``."""
        return " ".join(f"{topic}[{ranges(numbers)}]" for topic, numbers in self.by_topic()) or "nothing"

    def to_json(self) -> dict[str, str]:
        """Returns an object such as ``{"flights": "0-3,7"}``."""
        return {topic: ranges(numbers) for topic, numbers in self.by_topic()}

    @classmethod
    def from_json(cls, value: Any, where: str) -> PartitionSet:
        """Reads the value strictly. Raises :class:`MalformedValue`."""
        if not isinstance(value, dict):
            raise MalformedValue(where, f"partitions are {fields.shown(value)}, not an object keyed by topic")
        topics = {}
        total = 0
        for topic, written in value.items():
            if not is_legal(topic):
                raise MalformedValue(where, f"{str(topic)[:60]!r} is not a legal topic name")
            topics[topic] = parse_ranges(written, where)
            total += len(topics[topic])
            if total > MAX_PARTITIONS_PER_VALUE:
                raise MalformedValue(where, f"names more than {MAX_PARTITIONS_PER_VALUE} partitions")
        return cls(topics)


NO_PARTITIONS = PartitionSet()


def ranges(numbers: Iterable[int]) -> str:
    """Returns numbers as ranges: ``{0,1,2,3,7}`` → ``"0-3,7"``."""
    ordered = sorted(numbers)
    if ordered and isinstance(numbers, frozenset) and len(ordered) - 1 == ordered[-1] - ordered[0] > 0:
        return f"{ordered[0]}-{ordered[-1]}"
    parts: list[str] = []
    first = last = None
    for n in ordered:
        if last is not None and n == last + 1:
            last = n
            continue
        if first is not None:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = n
    if first is not None:
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def parse_ranges(written: object, where: str) -> frozenset[int]:
    """Reads ranges: ``"0-3,7"`` → ``{0,1,2,3,7}``. Raises :class:`MalformedValue`."""
    if not isinstance(written, str) or (written and not _RANGES.fullmatch(written)):
        raise MalformedValue(where, f"{fields.shown(written)} is not a list of partitions such as '0-3,7'")
    numbers: set[int] = set()
    for part in filter(None, written.split(",")):
        low, dash, high = part.partition("-")
        first = int(low)
        if not dash and first <= MAX_PARTITION and len(numbers) < MAX_PARTITIONS_PER_VALUE:
            numbers.add(first)
            continue
        last = int(high or low)
        if last < first or last > MAX_PARTITION:
            raise MalformedValue(where, f"'{part}' is not a range of partitions")
        if last - first >= MAX_PARTITIONS_PER_VALUE or len(numbers) + last - first >= MAX_PARTITIONS_PER_VALUE:
            raise MalformedValue(where, f"more than {MAX_PARTITIONS_PER_VALUE} partitions up to '{part}'")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


Streams = Mapping[TopicPartition, int]
"""Maps partitions to streams. Contains only partitions on a stream other than 0."""

MAX_STREAMS = 1_000
StreamNumber = Annotated[int, Meta(ge=0, lt=MAX_STREAMS)]


def streams_to_json(streams: Streams) -> dict[str, dict[str, str]]:
    """Returns an object such as ``{"flights": {"1": "4-7"}}``, which maps each topic and stream to the stream's
    partitions."""
    numbers: dict[str, dict[int, set[int]]] = {}
    for (topic, partition), stream in streams.items():
        if stream:
            numbers.setdefault(topic, {}).setdefault(stream, set()).add(partition)
    return {
        topic: {str(stream): ranges(found) for stream, found in sorted(by_stream.items())}
        for topic, by_stream in sorted(numbers.items())
    }


def streams_from_json(value: Any, among: PartitionSet, where: str) -> dict[TopicPartition, int]:
    """Reads the value strictly. Raises :class:`MalformedValue`, even if the only fault is a partition outside
    ``among``, so that a small value cannot expand into a large set."""
    if not isinstance(value, dict):
        raise MalformedValue(where, "field 'streams' is not an object keyed by topic")
    streams: dict[TopicPartition, int] = {}
    named = 0
    for topic, by_stream in value.items():
        if not is_legal(topic):
            raise MalformedValue(where, f"{str(topic)[:60]!r} in 'streams' is not a legal topic name")
        if not isinstance(by_stream, dict):
            raise MalformedValue(where, f"streams of topic {topic[:60]!r} are not an object")
        for stream, written in by_stream.items():
            if not (stream.isascii() and stream.isdigit() and len(stream) < 5 and int(stream) < MAX_STREAMS):
                raise MalformedValue(where, f"{stream[:20]!r} is not a stream number below {MAX_STREAMS}")
            numbers = parse_ranges(written, where)
            named += len(numbers)
            if named > len(among) or not numbers <= among.of_topic(topic):
                raise MalformedValue(
                    where,
                    f"'streams' names a partition of {topic[:60]!r} twice, or one that the consumer does not have",
                )
            if int(stream):
                streams |= {TopicPartition(topic, partition): int(stream) for partition in numbers}
    return streams
