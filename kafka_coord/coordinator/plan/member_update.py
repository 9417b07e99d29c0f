"""One member's update: its new ledger, and commands to stop and start partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from kafka_coord.coordinator.steps import WriteLedgerAndCommands
from kafka_coord.model import (
    NO_OFFSET,
    NO_PARTITIONS,
    Assignment,
    Command,
    Ledger,
    Member,
    Mode,
    Observation,
    PartitionSet,
    StartFetcher,
    StartPoint,
    StopFetcher,
    TopicInfo,
    TopicPartition,
)


@dataclass(slots=True)
class MemberUpdate:
    """The update for one live member. ``seen`` is the observed ledger (or ``None``), and ``ledger`` is what remains of
    it once the update has released partitions: those whose stop is acknowledged, and all those that a dead
    incarnation held."""

    member: Member
    seen: Ledger | None
    ledger: Ledger
    released: PartitionSet
    drop_commands: tuple[str, ...]
    stop_outstanding: bool
    start_outstanding: bool
    stop: PartitionSet = NO_PARTITIONS
    start: PartitionSet = NO_PARTITIONS
    place_too_large: bool = False

    @property
    def consumer(self) -> str:
        return self.member.consumer

    @property
    def changes_ledger(self) -> bool:
        return self.ledger is not self.seen and (self.seen is None or self.ledger != self.seen)

    def is_behind(self, target: Assignment) -> bool:
        """Returns whether this is an eager member that still holds partitions of an earlier target."""
        return self.member.mode is Mode.EAGER and self.ledger.generation < target.generation and bool(self.ledger.held)

    def eviction(self) -> WriteLedgerAndCommands:
        """Returns the write that evicts the member by deleting its registration. The partitions stay held until a later
        pass finds the consumer gone."""
        return WriteLedgerAndCommands(
            ledger=only_held(structs.replace(self.ledger, place=None)),
            znode_version=None if self.seen is None else self.seen.znode_version,
            drop_commands=self.drop_commands,
            evict=True,
        )

    def write(
        self, target: Assignment | None, observation: Observation, *, decides_streams: bool
    ) -> WriteLedgerAndCommands:
        """Returns the step that writes the updated ledger and the commands that bring about the change."""
        before = self.ledger
        commands: list[Command] = []
        owned = (before.owned - self.stop) | self.start
        generation, streams, topic_ids = before.generation, before.streams, before.topic_ids
        if target is not None:
            envelope = (target.generation, observation.epoch, self.member.incarnation)
            if self.stop:
                commands.append(StopFetcher(*envelope, self.stop, target.reason))
            if self.start:
                starts = self._start_points(target, decides_streams=decides_streams)
                other = target.assignor if self.member.assignor not in {None, target.assignor} else ""
                commands.append(StartFetcher(*envelope, starts, target.reason, other))
                streams = {**streams, **{partition: point.stream for partition, point in starts.items()}}
                topic_ids = {**topic_ids, **{t: observation.topics[t].identity for t in self.start.topics}}
            in_line = owned == target.members.get(self.consumer, NO_PARTITIONS) and not before.stopping
            # an eager member keeps its old generation until the plan tells it to stop everything that it owned before
            if not (self.is_behind(target) and owned) and (commands or in_line):
                generation = max(generation, target.generation)
        after = structs.replace(
            before,
            owned=owned,
            stopping=before.stopping | self.stop,
            generation=generation,
            streams={partition: stream for partition, stream in streams.items() if stream},
            topic_ids=topic_ids,
        )
        version = None if self.seen is None else self.seen.znode_version
        return WriteLedgerAndCommands(only_held(after), version, tuple(commands), self.drop_commands)

    def _start_points(self, target: Assignment, *, decides_streams: bool) -> dict[TopicPartition, StartPoint]:
        """Returns a start point for each partition to start, with a stream but without an offset. With
        ``decides_streams``, the assignor has chosen the stream; otherwise, it is the one with the fewest partitions of
        the same topic."""
        subscription = self.member.subscription
        chosen = target.streams.get(self.consumer, {})
        points = {}
        for topic, numbers in self.start.by_topic():
            count = subscription.streams if subscription.is_wildcard else subscription.topics.get(topic, 1)
            loads = [0] * count
            if count > 1 and not decides_streams:
                for number in self.ledger.held.of_topic(topic):
                    loads[self.ledger.stream_of(TopicPartition(topic, number)) % count] += 1
            for number in sorted(numbers):
                partition = TopicPartition(topic, number)
                if decides_streams:
                    stream = chosen.get(partition, 0) % count
                else:
                    stream = loads.index(min(loads))
                    loads[stream] += 1
                points[partition] = StartPoint(NO_OFFSET, stream)
        return points


def stale_topics(ledgers: Iterable[Ledger], topics: Mapping[str, TopicInfo]) -> frozenset[str]:
    """Returns the topics that were deleted and re-created while one of the given ledgers still holds their old
    partitions."""
    return frozenset(
        topic
        for ledger in ledgers
        for topic, identity in ledger.topic_ids.items()
        if topic in topics and not topics[topic].is_same(identity) and ledger.held.of_topic(topic)
    )


def only_held(ledger: Ledger) -> Ledger:
    """Returns the ledger without the streams and topic identities of partitions that it no longer holds."""
    if not ledger.streams and not ledger.topic_ids:
        return ledger
    held = ledger.held
    return structs.replace(
        ledger,
        streams={partition: stream for partition, stream in ledger.streams.items() if partition in held},
        topic_ids={topic: identity for topic, identity in ledger.topic_ids.items() if held.of_topic(topic)},
    )
