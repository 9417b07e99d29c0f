"""Watches the groups of stock clients as an operator's tool would: through the instances."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupState, KafkaException
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from kafka_coord.errors import KafkaCoordError
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.monitor.lag import OffsetReader
from tests.chaos.journal import Kind, OffsetsWriter
from tests.chaos.watching import Watch

_ASK_S = 5.0


class ClientsWatch(Watch):
    """Writes down what is told of each group's offsets, too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._offsets = OffsetsWriter(self._testbed.directory)
        self._admin = AdminClient(_client(self._testbed.instances))
        self._readers: dict[str, Consumer] = {}

    def close(self) -> None:
        super().close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._offsets.close()

    def lag(self) -> int | None:
        """Records that were produced and not yet committed, over all groups; None when somebody did not answer."""
        reader = OffsetReader(self._testbed.bootstrap, {})
        total = 0
        try:
            for group in self._testbed.groups():
                wanted = self._wanted(group)
                committed, ends = self._committed(group), reader.latest(PartitionSet.of(wanted))
                if committed is None or ends.note:
                    return None
                total += sum(end - committed.get(tp, 0) for tp, end in ends.offsets.items())
        except KafkaCoordError:
            return None
        finally:
            reader.close()
        return total

    def _look_at_groups(self) -> None:
        begin = time.monotonic()
        groups = self._testbed.groups()
        asked = self._admin.describe_consumer_groups(list(groups), request_timeout=_ASK_S)
        for group in groups:
            found = _answer(asked[group])
            # An admin client of librdkafka 2.9 keeps asking a coordinator that says it is not the group's.
            self._admin = self._admin if found is not None else AdminClient(_client(self._testbed.instances))
            if found is not None and self._is_settled(group, found):
                if group not in self._settled:
                    self._events.write(Kind.SETTLED, f"group:{group}")
                self._settled[group] = begin
            else:
                self._settled.pop(group, None)
            self._committed(group)

    def _is_settled(self, group: str, found: Any) -> bool:
        """Whether it is Stable with the members that there are, each partition owned by one of them."""
        members = [actor for actor in self._testbed.of("consumer") if actor.membership.group == group]
        held = [
            tuple(TopicPartition(one.topic, one.partition) for one in each.assignment.topic_partitions)
            for each in found.members
        ]
        owned = [partition for each in held for partition in each]
        return (
            found.state is ConsumerGroupState.STABLE
            and len(found.members) == len(members)
            and sorted(owned) == sorted(self._wanted(group))
        )

    def _wanted(self, group: str) -> list[TopicPartition]:
        topics = {
            topic
            for actor in self._testbed.of("consumer")
            if actor.membership.group == group
            for topic in actor.membership.topics
        }
        return [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in range(self._testbed.topics.partition_count(topic))
        ]

    def _reader(self, group: str) -> Consumer:
        """It is no member. (librdkafka 2.9's admin client aborts its process where it asks for the offsets of a group
        and finds no coordinator in time, with Kafka's own coordinators too.)"""
        if group not in self._readers:
            self._readers[group] = Consumer(_client(self._testbed.instances) | {"group.id": group})
        return self._readers[group]

    def _committed(self, group: str) -> dict[TopicPartition, int] | None:
        """What the coordinator says now, written down; None where there is no answer."""
        since = time.monotonic()
        try:
            found = self._reader(group).committed(
                [Position(*partition) for partition in self._wanted(group)], timeout=_ASK_S
            )
        except KafkaException:
            return None
        if any(one.error is not None for one in found):
            return None
        offsets = {TopicPartition(one.topic, one.partition): one.offset for one in found if one.offset >= 0}
        self._offsets.told(since, group, offsets)
        return offsets


def _client(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.max.ms": 1_000,
        "socket.timeout.ms": 5_000,
        "log_level": 0,
    }


def _answer(asked: Future[Any]) -> Any:
    try:
        return asked.result(2 * _ASK_S)
    except (KafkaException, NotInTime):
        return None
