"""The coordinator's side of the protocol: a test writes commands, and checks their effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka_coord.channel.operations import command_op, decode_offset
from kafka_coord.errors import NoNode
from kafka_coord.model import (
    NO_OFFSET,
    Command,
    Member,
    PartitionSet,
    StartFetcher,
    StartPoint,
    StopFetcher,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store
from tests.waiting import eventually


class HandCoordinator:
    """Writes commands for the consumers of one group, as the test says."""

    def __init__(self, store: Store, group: str) -> None:
        self.store = store
        self.group = group
        self.generation = 0

    def member(self, consumer: str) -> Member | None:
        path = layout.registration(self.group, consumer)
        try:
            node = self.store.get(path)
        except NoNode:
            return None
        return Member.from_json(fields.load(node.data, path), path, consumer=consumer, incarnation=node.stat.czxid)

    def await_member(self, consumer: str, *, other_than: int = 0) -> Member:
        """Waits until the consumer is registered, with another incarnation than ``other_than``."""

        def registered() -> Member | None:
            member = self.member(consumer)
            return member if member is not None and member.incarnation != other_than else None

        member = eventually(registered, within_s=30)
        assert member is not None
        return member

    def start(
        self,
        consumer: str,
        starts: Mapping[TopicPartition, int | StartPoint] | Iterable[TopicPartition],
        *,
        incarnation: int | None = None,
    ) -> str:
        """Writes a start-fetcher, with the stored offset unless one is given. Returns the path of its znode."""
        if not isinstance(starts, Mapping):
            starts = {partition: self.offset(partition) for partition in starts}
        points = {tp: p if isinstance(p, StartPoint) else StartPoint(p) for tp, p in starts.items()}
        for topic in {partition.topic for partition in points}:
            self.store.ensure_path(layout.topic_offsets(self.group, topic))
        self.generation += 1
        where = incarnation or self.await_member(consumer).incarnation
        return self.write(consumer, StartFetcher(self.generation, 1, where, points, "by hand"))

    def stop(self, consumer: str, partitions: Iterable[TopicPartition], *, incarnation: int | None = None) -> str:
        """Writes a stop-fetcher. Returns the path of its znode."""
        self.generation += 1
        where = incarnation or self.await_member(consumer).incarnation
        return self.write(consumer, StopFetcher(self.generation, 1, where, PartitionSet.of(partitions), "by hand"))

    def write(self, consumer: str, command: Command) -> str:
        (path,) = self.store.multi([command_op(self.group, consumer, command)])
        assert isinstance(path, str)
        return path

    def acknowledged(self, path: str) -> bool:
        return self.store.exists(path) is None

    def await_acknowledged(self, path: str, within_s: float = 15.0) -> None:
        eventually(lambda: self.acknowledged(path), within_s=within_s, every_s=0.002)

    def run_start(self, consumer: str, starts: Mapping[TopicPartition, int] | Iterable[TopicPartition]) -> None:
        self.await_acknowledged(self.start(consumer, starts))

    def run_stop(self, consumer: str, partitions: Iterable[TopicPartition]) -> None:
        self.await_acknowledged(self.stop(consumer, partitions))

    def evict(self, consumer: str) -> None:
        self.store.delete(layout.registration(self.group, consumer))

    def outstanding(self, consumer: str) -> tuple[str, ...]:
        return self.store.children(layout.channel(self.group, consumer))

    def offset(self, partition: TopicPartition) -> int:
        """The committed offset, or ``NO_OFFSET`` if there is none."""
        path = layout.offset(self.group, partition.topic, partition.partition)
        try:
            return decode_offset(self.store.get(path).data, path)
        except NoNode:
            return NO_OFFSET
