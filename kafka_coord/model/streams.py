"""Maps partitions to the consumer's streams (Kafka 0.8's consumer threads) that fetch them. Stream 0 is implied and
never written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from kafka_coord.errors import MalformedValue
from kafka_coord.model.names import is_legal
from kafka_coord.model.partitions import PartitionSet, TopicPartition, parse_ranges, ranges

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
