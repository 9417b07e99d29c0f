"""Deliberate defects in the service of Kafka clients as members of managed groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import Fenced, StoreError
from kafka_coord.frontends.kafka.managed.classic import ClassicMember
from kafka_coord.frontends.kafka.managed.heartbeats import ConsumerGroupMember
from kafka_coord.frontends.kafka.managed.member import KafkaMember
from kafka_coord.frontends.kafka.managed.members import KafkaMembers
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.machine import stimuli
from kafka_coord.frontends.members.machine.writes import Writes
from kafka_coord.model import StartFetcher, StopFetcher
from kafka_coord.zk.store import Check
from tests.simulation.faults import CLASSIC, CLASSIC_FAULTS, KAFKA_FAULTS, MOVE

Patch = tuple[Any, str, Any]


def _reads_everything(kind: type) -> Patch:
    """Without this, a commit counts only for partitions that its epoch was given, whatever else is accepted."""
    return kind, "has_read", lambda *_: True


def _commits_of_any_epoch() -> tuple[Patch, ...]:
    original = KafkaMembers.why_not

    def why_not(self: Any, key: Any, member_id: str, epoch: int) -> Error:
        found = original(self, key, member_id, epoch)
        return Error.NONE if found is Error.STALE_MEMBER_EPOCH else found

    return (KafkaMembers, "why_not", why_not), _reads_everything(KafkaMember)


def _commits_of_what_is_not_held() -> tuple[Patch, ...]:
    def commit_wanted(self: Any, wanted: Any) -> None:
        member = self._machine.connections.get(wanted.connection)
        if member is not None:
            self.add(member, wanted)

    return *_commits_of_any_epoch(), (Writes, "commit_wanted", commit_wanted)


def _acknowledged_when_told(kind: type) -> Patch:
    original = ConsumerGroupMember._acknowledge

    def acknowledge(self: Any) -> None:
        if self.command is not None and self.told and isinstance(self.command[1], kind):
            self.acknowledged()
        else:
            original(self)

    return ConsumerGroupMember, "_acknowledge", acknowledge


def _started_by_any_commit() -> Patch:
    original = KafkaMembers.commit

    def commit(self: Any, wanted: Any, now: float) -> None:
        member = self.members.get(wanted.key)
        if member is not None and member.command is not None and isinstance(member.command[1], StartFetcher):
            member.acknowledged()
        original(self, wanted, now)

    return KafkaMembers, "commit", commit


def _writes_under_the_next_term() -> Patch:
    def multi(self: Any, ops: Any) -> Any:
        fence = self._fence
        try:
            return self._store.multi((fence, *ops))[1:]
        except Fenced:
            raise
        except StoreError:
            now = Check(fence.path, self._store.get(fence.path).stat.version)
            return self._store.multi((now, *ops))[1:]

    return FencedStore, "multi", multi


def _stopped_by_the_present_ids() -> Patch:
    def is_assigned(self: Any, owned: Any) -> bool:
        stops = self.command[1].partitions if self.command is not None else ()
        return bool(owned.isdisjoint((self.members.identity(tp.topic), tp.partition) for tp in stops))

    return ConsumerGroupMember, "_is_assigned", is_assigned


def _told_the_present_ids() -> Patch:
    original = ConsumerGroupMember._learn
    return ConsumerGroupMember, "_learn", lambda self, partitions, _ids: original(self, partitions, {})


def _heartbeats_do_not_count_as_life() -> Patch:
    original = KafkaMembers.take

    def take(self: Any) -> Any:
        arrived, answers = original(self)
        return [one for one in arrived if not isinstance(one, stimuli.HeardFrom)], answers

    return KafkaMembers, "take", take


def _stopped_by_any_join() -> Patch:
    return ClassicMember, "_acknowledge_stop", lambda self, _join: self.acknowledged()


def _commits_of_any_generation() -> tuple[Patch, ...]:
    return (ClassicMember, "knows", lambda _self, _generation: True), _reads_everything(ClassicMember)


def _held_by_classic_members() -> Patch:
    return KafkaMembers, "replace", lambda self, join, *_: self.refuse(join, Error.UNRELEASED_INSTANCE_ID)


KAFKA_MUTATIONS: dict[str, Callable[[], Patch | tuple[Patch, ...]]] = {
    "a Kafka client's commit accepted with any epoch": _commits_of_any_epoch,
    "a Kafka client's commit accepted with any epoch, for any partition": _commits_of_what_is_not_held,
    "a Kafka client's stop acknowledged when it is sent": lambda: _acknowledged_when_told(StopFetcher),
    "a Kafka client's start acknowledged when it is sent": lambda: _acknowledged_when_told(StartFetcher),
    "a Kafka client's start acknowledged by any commit": _started_by_any_commit,
    "a term's writes continue under the next term": _writes_under_the_next_term,
    "a Kafka client's stop judged by the current ids of recreated topics": _stopped_by_the_present_ids,
    "the current ids of recreated topics sent to a Kafka client": _told_the_present_ids,
    "heartbeats of Kafka clients do not count as signs of life": _heartbeats_do_not_count_as_life,
    "a classic client's JoinGroup acknowledges whatever it owns": _stopped_by_any_join,
    "a classic client's commit accepted with any generation": _commits_of_any_generation,
    "a classic member's instance id is not released to a KIP-848 client": _held_by_classic_members,
}

_LOSE_MEMBERSHIP = frozenset({MOVE, "evict", "expire", "rebalance"})

KAFKA_TELLING = dict.fromkeys(KAFKA_MUTATIONS, KAFKA_FAULTS) | {
    "a Kafka client's commit accepted with any epoch": _LOSE_MEMBERSHIP,
    "a Kafka client's commit accepted with any epoch, for any partition": _LOSE_MEMBERSHIP,
    "a term's writes continue under the next term": frozenset({MOVE, "grow", "freeze"}),
    "a Kafka client's stop judged by the current ids of recreated topics": frozenset({MOVE, "topic"}),
    "the current ids of recreated topics sent to a Kafka client": frozenset({MOVE, "topic"}),
    "a classic client's JoinGroup acknowledges whatever it owns": CLASSIC_FAULTS,
    "a classic client's commit accepted with any generation": _LOSE_MEMBERSHIP | {CLASSIC},
    "a classic member's instance id is not released to a KIP-848 client": frozenset({MOVE, "kill", CLASSIC}),
}
"""The faults to run these defects with."""
