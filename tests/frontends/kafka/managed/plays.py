"""Plays of KIP-848 and of classic members, without a clock, sockets or ZooKeeper."""

from __future__ import annotations

from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.classic import COOPERATIVE, Beat, ClassicJoin, ClassicLeave, ClassicSync
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, ConsumerHeartbeat
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.members.machine import instructions
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.wire.consumer_protocol import assignment
from tests.frontends.kafka.managed.play import FLIGHTS, ID, SESSION_S, Play, flights

REBALANCE_S = 60.0


def owned(*partitions: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((ID, partition) for partition in partitions)


class Beats(Play):
    """A play of KIP-848 members."""

    def beat(self, epoch: int, member_id: str = "m1", consumer: str = "", **more: Any) -> Any:
        """Sends a heartbeat, and returns the answer, or ``None`` if it is held."""
        token = self.fresh_token()
        key = ("delays", consumer or member_id)
        if epoch == JOIN:
            more = {"topics": FLIGHTS, "owned": owned()} | more
        beat = ConsumerHeartbeat(token, key, member_id, bool(consumer), epoch, **more)
        return self.ask(beat)

    def holding(self, *partitions: int, generation: int = 3, software: str = "") -> int:
        """Makes ``m1`` join and own these partitions. Returns its epoch."""
        self.beat(JOIN, software=software)
        self.target(m1=partitions)
        self.send(generation, start=partitions)
        self.beat(generation, owned=owned(*partitions), topics=FLIGHTS)
        assert [store.acknowledges is not None for store in self.write()] == [True]
        return generation


class Classic(Play):
    """A play of classic members. Requests are those of ``m1`` unless another member is named."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: dict[str, PartitionSet] = {}
        self.written: list[instructions.WriteMember] = []

    def write(self) -> list[instructions.WriteMember]:
        """Also returns the writes that a SyncGroup has caused since the last call."""
        found, self.written = self.written + super().write(), []
        return found

    def join(
        self,
        *owned: int,
        assignor: str = COOPERATIVE,
        member_id: str = "m1",
        instance: str = "",
        is_new: bool = False,
        topics: ManagedTopics = FLIGHTS,
    ) -> Any:
        join = ClassicJoin(
            self.fresh_token(),
            ("delays", instance or member_id),
            member_id,
            is_static=bool(instance),
            is_new=is_new,
            assignor=assignor,
            topics=topics,
            owned=flights(*owned),
            session_timeout_s=SESSION_S,
            rebalance_timeout_s=REBALANCE_S,
            registration=b"",
        )
        self.ask(join)
        self.read_target()
        return self.told()

    def sync(self, generation: int, member_id: str = "m1", instance: str = "") -> Any:
        key = "delays", instance or member_id
        return self.ask(ClassicSync(self.fresh_token(), key, member_id, bool(instance), generation, None))

    def share(self, generation: int, member_id: str = "m1", instance: str = "") -> frozenset[TopicPartition]:
        """The assignment in the answer to a SyncGroup, once the acknowledgement that it implies is written."""
        synced = self.sync(generation, member_id, instance)
        if synced is None:
            self.written = self.write()
            synced = self.told()
        assert synced.error is Error.NONE
        topics = assignment(synced.assignment).assigned_partitions
        return frozenset(TopicPartition(one.topic, number) for one in topics for number in one.partitions)

    def beat(
        self, generation: int, member_id: str = "m1", instance: str = "", software: str = "apache-kafka-java"
    ) -> Error | None:
        key = "delays", instance or member_id
        answer = self.ask(Beat(self.fresh_token(), key, member_id, bool(instance), generation, software))
        return None if answer is None else Error(answer.error)

    def leave(self, member_id: str = "m1", instance: str = "") -> Error | None:
        answer = self.ask(
            ClassicLeave(self.fresh_token(), ("delays", instance or member_id), member_id, bool(instance))
        )
        return None if answer is None else Error(answer.error)

    def holding(self, *partitions: int, generation: int = 3, assignor: str = COOPERATIVE) -> int:
        """Makes ``m1`` join and get these partitions. Returns its generation."""
        self.join(assignor=assignor)
        self.send(generation, start=partitions)
        assert self.share(generation) == flights(*partitions)
        assert [store.acknowledges is not None for store in self.write()] == [True]
        return generation
