"""How large values become: every write must stay below ZooKeeper's 1 MB request, and below 900 kB a value."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_coord.model import Assignment, Ledger, PartitionSet, TopicPartition
from kafka_coord.model.json_fields import MAX_VALUE_BYTES, dump

MAX_TARGET_BYTES = MAX_VALUE_BYTES
MAX_COMMAND_BYTES = 700_000
MAX_PLACE_BYTES = 200_000
MAX_WRITE_BYTES = 900_000
"""A ledger and its commands together: they are one multi. What is left of 1 MB is for paths and checks."""

ENVELOPE_BYTES = 3_000
"""Everything in a command but its partitions: at most 300 characters of reason, five numbers, field names."""

_START_POINT = len('"":{"offset":-9223372036854775808,"stream":999},') + 16
"""With what the same partition adds to the ledger in the same multi: in a range, and in a stream."""
_SURE = 200_000


def target_bytes(assignment: Assignment) -> int:
    """Exact where it could matter, an upper bound where it is small."""
    bound = sum(len(consumer) + 10 + _ranges_bound(found) for consumer, found in assignment.members.items())
    bound += sum(len(found) for found in assignment.streams.values()) * 12
    if bound + ENVELOPE_BYTES <= _SURE:
        return bound + ENVELOPE_BYTES
    return len(dump(assignment.to_json())) + ENVELOPE_BYTES


def ledger_bytes(ledger: Ledger) -> int:
    """Exact where it could matter, an upper bound where it is small. Twice the bound of what is held leaves room for
    streams and topic identities."""
    if ledger.place is None and len(ledger.held) < 5_000:
        bound = 2 * (_ranges_bound(ledger.held)) + 80 * len(ledger.held.topics) + 300
        if bound <= _SURE:
            return bound
    return len(dump(ledger.to_json()))


def _ranges_bound(partitions: PartitionSet) -> int:
    """Bytes of the partitions in a value when no two numbers are neighbours."""
    return sum(len(topic) + 6 + len(numbers) * (len(str(max(numbers))) + 1) for topic, numbers in partitions.by_topic())


def fitting(partitions: PartitionSet, each_bytes: int, budget: int) -> PartitionSet:
    """As many of ``partitions``, in order, as fit into ``budget`` bytes with their topics."""
    if sum((len(n) * (each_bytes + 11) + len(topic) + 6) for topic, n in partitions.by_topic()) <= budget:
        return partitions
    return PartitionSet.of(_within(partitions, each_bytes, budget))


def _within(partitions: Iterable[TopicPartition], each_bytes: int, budget: int) -> Iterable[TopicPartition]:
    topic = None
    for partition in partitions:
        if partition.topic != topic:
            topic = partition.topic
            budget -= len(topic) + 6
        budget -= each_bytes + len(str(partition.partition))
        if budget < 0:
            return
        yield partition


def stop_fits(partitions: PartitionSet, budget: int) -> PartitionSet:
    """The first of ``partitions`` that one stop-fetcher command can name."""
    return fitting(partitions, 1, min(budget, MAX_COMMAND_BYTES) - ENVELOPE_BYTES)


def start_fits(partitions: PartitionSet, budget: int) -> PartitionSet:
    """The first of ``partitions`` that one start-fetcher command can name, whatever their offsets are."""
    return fitting(partitions, _START_POINT, min(budget, MAX_COMMAND_BYTES) - ENVELOPE_BYTES)
