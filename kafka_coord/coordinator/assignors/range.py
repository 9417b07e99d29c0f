"""``range``: exactly what Kafka 0.8.2's ``kafka.consumer.RangeAssignor`` gives, streams included."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.model import PartitionSet, TopicPartition


class RangeAssignor:
    """Per topic: partitions in numeric order, consumer threads ``<consumer>-<thread>`` in the order of these strings.

    Each thread gets P / T partitions in a row, the first P % T threads one more. The order of strings is the rule of
    0.8: "c-10" comes before "c-2", and the threads of "c-0" between those of "c". It ignores who has what now.
    """

    decides_streams = True

    def assign(self, inputs: AssignmentInputs) -> Target:
        members: dict[str, dict[str, set[int]]] = {consumer: {} for consumer in inputs.members}
        streams: dict[str, dict[TopicPartition, int]] = {}
        for topic, threads in _threads(inputs).items():
            partitions = sorted(inputs.topics[topic].partitions)
            each, extra = divmod(len(partitions), len(threads))
            for position, (_, consumer, thread) in enumerate(sorted(threads)):
                first = each * position + min(position, extra)
                numbers = partitions[first : first + each + (position < extra)]
                members[consumer].setdefault(topic, set()).update(numbers)
                if thread and numbers:
                    streams.setdefault(consumer, {}).update({TopicPartition(topic, n): thread for n in numbers})
        return Target({consumer: PartitionSet(found) for consumer, found in members.items()}, streams)


def _threads(inputs: AssignmentInputs) -> dict[str, list[tuple[str, str, int]]]:
    """topic → (thread id, consumer, thread)."""
    threads: dict[str, list[tuple[str, str, int]]] = {}
    for consumer, topics in inputs.subscriptions.items():
        for topic in topics:
            threads.setdefault(topic, []).extend(_of(consumer, inputs.streams_of(consumer, topic)))
    return threads


def _of(consumer: str, count: int) -> Iterator[tuple[str, str, int]]:
    return ((f"{consumer}-{thread}", consumer, thread) for thread in range(count))
