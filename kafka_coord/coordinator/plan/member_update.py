"""One member's update: which partitions it has released, its new ledger, its commands to stop and start partitions, and
how large all these become.

A consumer acknowledges a stop by deleting the command, so ``stopping`` partitions without a stop command are
acknowledged. Every write must stay below ZooKeeper's request limit of 1 MB, and every value below 900 kB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from kafka_coord.coordinator.plan.membership import GroupMembership, is_dead, outstanding
from kafka_coord.coordinator.steps import WriteLedgerAndCommands
from kafka_coord.model import (
    NO_OFFSET,
    NO_PARTITIONS,
    Assignment,
    Command,
    CommandType,
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
from kafka_coord.model.json_fields import MAX_VALUE_BYTES, dump


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


def member_update_of(observation: Observation, consumer: str, member: Member) -> MemberUpdate:
    """Returns the update for a live consumer whose ledger is readable or missing. At this stage, it only releases
    partitions."""
    channel = outstanding(observation, consumer)
    place, too_large = _place(member)
    seen = observation.ledgers.get(consumer)
    if seen is None or is_dead(seen, member):
        # this incarnation must not carry out commands for an earlier incarnation
        fresh = Ledger(
            consumer,
            member.incarnation,
            generation=seen.generation if seen is not None else 0,
            place=place,
            session_timeout_ms=member.session_timeout_ms,
            process=member.process,
        )
        released = seen.held if seen is not None else NO_PARTITIONS
        drop = tuple(command.name for command in channel.commands)
        if seen is not None:
            fresh = structs.replace(fresh, znode_version=seen.znode_version)
        return MemberUpdate(member, seen, fresh, released, drop, False, False, place_too_large=too_large)
    stop = any(command.type is CommandType.STOP_FETCHER for command in channel.commands)
    start = any(command.type is CommandType.START_FETCHER for command in channel.commands)
    released = NO_PARTITIONS if stop else seen.stopping
    ledger = seen if seen.place == place else structs.replace(seen, place=place)
    if released:
        ledger = structs.replace(ledger, stopping=NO_PARTITIONS)
    return MemberUpdate(member, seen, ledger, released, (), stop, start, place_too_large=too_large)


def member_updates(observation: Observation, membership: GroupMembership) -> dict[str, MemberUpdate]:
    """Returns the update for each live consumer (see :func:`member_update_of`), sorted by name. Leaves out consumers
    whose ledger cannot be read."""
    return {
        consumer: member_update_of(observation, consumer, membership.live[consumer])
        for consumer in sorted(membership.live.keys() - set(membership.ledger_unreadable))
    }


def _place(member: Member) -> tuple[Member | None, bool]:
    if not member.rejoin_grace_ms:
        return None, False
    few = member.subscription.is_wildcard or len(member.subscription.topics) < 500
    if few or len(dump(member.to_json())) <= MAX_PLACE_BYTES:
        return member, False
    return None, True
