"""Size limits. Every write must stay below ZooKeeper's request limit of 1 MB, and every value below 900 kB."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_coord.model import Assignment, Ledger, PartitionSet, TopicPartition
from kafka_coord.model.json_fields import MAX_VALUE_BYTES, dump

MAX_TARGET_BYTES = MAX_VALUE_BYTES
MAX_COMMAND_BYTES = 700_000
MAX_PLACE_BYTES = 200_000
MAX_WRITE_BYTES = 900_000
"""The limit for a ledger and its commands, which are written in one multi. The rest of the 1 MB is for paths and
checks."""
MAX_LEDGER_BYTES = 600_000
"""The limit for a ledger after starts, so that a later command to stop the same partitions still fits in the write."""

ENVELOPE_BYTES = 3_000
"""The size of a command without its partitions: at most 300 characters of reason, five numbers, and field names."""

_START_POINT = len('"":{"offset":-9223372036854775808,"stream":999},') + 16
"""The bytes needed for one start point, including what the partition adds to the ranges and streams of the ledger,
which is written in the same multi."""
_START_TOPIC = 3 * len('"":{},') + 64 + len(" -9223372036854775808")
"""The bytes needed for one topic, including its identity in the ledger, but not its partitions or its name (which
appears three times)."""
_STREAM_BYTES = len('"":{"999":"2147483647"},')
_SURE = 200_000


def target_bytes(assignment: Assignment) -> int:
    """Returns the size of the target in bytes: exact near the limit, otherwise an upper bound."""
    bound = sum(len(consumer) + 10 + _ranges_bound(found) for consumer, found in assignment.members.items())
    for consumer, streams in assignment.streams.items():
        bound += len(consumer) + 10 + sum(len(topic) + _STREAM_BYTES for topic, _ in streams)
    if bound + ENVELOPE_BYTES <= MAX_TARGET_BYTES:
        return bound + ENVELOPE_BYTES
    return len(dump(assignment.to_json())) + ENVELOPE_BYTES


def ledger_bytes(ledger: Ledger) -> int:
    """Returns the size of the ledger in bytes: exact near the limit, otherwise an upper bound that counts held
    partitions twice, to leave room for streams and topic identities."""
    if ledger.place is None and len(ledger.held) < 5_000:
        bound = 2 * _singles_bound(ledger.held) + 80 * len(ledger.held.topics) + 300
        if bound <= _SURE:
            return bound
    return len(dump(ledger.to_json()))


def _singles_bound(partitions: PartitionSet) -> int:
    """Returns an upper bound on the encoded size in bytes, assuming that no two partition numbers are adjacent."""
    return sum(
        len(topic) + 6 + len(numbers) * (len(str(max(numbers))) + 1) for topic, numbers in partitions.unordered()
    )


def _ranges_bound(partitions: PartitionSet) -> int:
    """Returns an upper bound on the encoded size in bytes, assuming that every missing number separates two runs, each
    written as two numbers. Most targets have few gaps, so this bound is far lower than :func:`_singles_bound`."""
    bound = 0
    for topic, numbers in partitions.unordered():
        last = max(numbers)
        missing = last - min(numbers) + 1 - len(numbers)
        bound += len(topic) + 6 + min(len(numbers), 2 * (missing + 1)) * (len(str(last)) + 1)
    return bound


def fitting(
    partitions: PartitionSet, each_bytes: int, budget: int, names: int = 1, each_topic: int = 6
) -> PartitionSet:
    """Returns the longest prefix of ``partitions`` that fits in ``budget`` bytes. A partition takes ``each_bytes``
    besides its number. A topic takes ``each_topic`` bytes besides its name, which appears ``names`` times."""
    if sum(len(n) * (each_bytes + 11) + names * len(t) + each_topic for t, n in partitions.by_topic()) <= budget:
        return partitions
    return PartitionSet.of(_within(partitions, each_bytes, budget, names, each_topic))


def _within(
    partitions: Iterable[TopicPartition], each_bytes: int, budget: int, names: int, each_topic: int
) -> Iterable[TopicPartition]:
    topic = None
    for partition in partitions:
        if partition.topic != topic:
            topic = partition.topic
            budget -= names * len(topic) + each_topic
        budget -= each_bytes + len(str(partition.partition))
        if budget < 0:
            return
        yield partition


def stop_fits(partitions: PartitionSet, budget: int) -> PartitionSet:
    """Returns the longest prefix of ``partitions`` that fits in one stop-fetcher command and, as stopping partitions,
    in the ledger."""
    within_command = fitting(partitions, 1, MAX_COMMAND_BYTES - ENVELOPE_BYTES)
    return fitting(within_command, 1, budget - ENVELOPE_BYTES, names=2, each_topic=12)


def start_fits(partitions: PartitionSet, ledger: int, budget: int) -> PartitionSet:
    """Returns the longest prefix of ``partitions`` that fits in one start-fetcher command (even with the longest
    offsets) and, with their topics' identities, in a ledger that already takes ``ledger`` bytes."""
    within_command = fitting(partitions, _START_POINT, MAX_COMMAND_BYTES - ENVELOPE_BYTES)
    within_ledger = fitting(within_command, 16, MAX_LEDGER_BYTES - ledger, names=2, each_topic=_START_TOPIC)
    return fitting(within_ledger, _START_POINT, budget - ENVELOPE_BYTES, names=3, each_topic=_START_TOPIC)
