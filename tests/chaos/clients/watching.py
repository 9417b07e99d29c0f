"""Watches the groups of stock clients through the instances, as an operator's tool does."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Position

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import KafkaCoordError
from kafka_coord.groups.client_assigned import ClientGroup, list_client_groups
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.state import group_state, read_groups
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import PartitionSet, TopicPartition
from tests.chaos.journal import OffsetsWriter
from tests.chaos.logins import OPERATOR, login
from tests.chaos.watching import Watch

_ASK_S = 5.0


class ClientsWatch(Watch):
    """Also watches client-assigned groups, and records the reported offsets of each."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._offsets = OffsetsWriter(self._testbed.directory)
        self._instances = AskedInstances(self._testbed.store, login(self._testbed.user(OPERATOR)))
        self._readers: dict[str, Consumer] = {}

    def close(self) -> None:
        super().close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._offsets.close()

    def lag(self) -> int | None:
        """Returns the number of produced records that are not committed yet, over all groups. Returns None if a server
        does not answer.
        """
        managed = super().lag()
        if managed is None:
            return None
        reader = OffsetReader(self._testbed.bootstrap, {})
        total = managed
        try:
            for group in self._testbed.assigned_groups():
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
        super()._look_at_groups()
        begin = time.monotonic()
        if self._testbed.quiet or not self._testbed.assigned_groups():
            return
        try:
            found = {one.group: one for one in list_client_groups(self._instances).groups}
        except KafkaCoordError:
            found = {}
        for group in self._testbed.assigned_groups():
            is_settled = self._is_settled(found[group]) if group in found else self._is_managed_and_settled(group)
            self._looked(group, begin, is_settled=is_settled)
            self._committed(group)

    def _is_settled(self, found: ClientGroup) -> bool:
        """Tells whether the group is Stable with its current members, and each partition has an owner."""
        members = [actor for actor in self._testbed.of("consumer") if actor.membership.group == found.group]
        owned = [tp for member in found.members for tp in member.owned]
        return (
            found.state is GroupState.STABLE
            and len(found.members) == len(members)
            and sorted(owned) == sorted(self._wanted(found.group))
        )

    def _is_managed_and_settled(self, group: str) -> bool:
        """Like :meth:`_is_settled`, of a group that was taken over with KIP-848 members."""
        store = self._testbed.store
        snapshot = read_groups(store, [group], read_cluster(store)).get(group)
        if snapshot is None or group_state(snapshot.observation) is not GroupState.STABLE:
            return False
        members = [actor for actor in self._testbed.of("consumer") if actor.membership.group == group]
        return len(snapshot.observation.members) == len(members)

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
        """Returns a consumer that is no member of the group. The admin client of librdkafka 2.9 cannot replace it,
        because it aborts the process if it does not find a coordinator in time, also with Kafka's own coordinator."""
        if group not in self._readers:
            self._readers[group] = Consumer(
                self._testbed.stock_client(group) | {"reconnect.backoff.max.ms": 1_000, "socket.timeout.ms": 5_000}
            )
        return self._readers[group]

    def _committed(self, group: str) -> dict[TopicPartition, int] | None:
        """Records the coordinator's answer, and returns it. Returns None if there is no answer."""
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
