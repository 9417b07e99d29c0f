"""Tests of an unreadable offset znode: it is reported, and its partition waits while all other decisions continue."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import (
    NO_PARTITIONS,
    Ledger,
    PartitionSet,
    StartFetcher,
    TopicPartition,
    command_from_json,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.zk import layout
from tests.coordinator.led import Led

GROUP, TOPIC = "small-group", "small"


class World(Led):
    """A group with committed offsets and no members."""

    def __init__(self, partitions: int = 3) -> None:
        super().__init__(TOPIC, partitions)
        self.store.ensure_path(layout.ids(GROUP))
        for partition in range(partitions):
            self.store.ensure_path(layout.offset(GROUP, TOPIC, partition))
            self.store.set(layout.offset(GROUP, TOPIC, partition), b"100")
        self.started: dict[TopicPartition, list[str]] = {}

    def damage(self, partition: int, value: bytes = b"x") -> None:
        self.store.set(layout.offset(GROUP, TOPIC, partition), value)

    def leave(self, consumer: str) -> None:
        self.store.delete(layout.registration(GROUP, consumer))
        self.queue.request(GROUP)

    def obey(self) -> bool:
        """Lets all consumers acknowledge their commands. Returns whether there were any."""
        told = False
        for consumer in self.store.children(layout.channels(GROUP)):
            for name in self.store.children(layout.channel(GROUP, consumer)):
                path = layout.command(GROUP, consumer, name)
                command = command_from_json(fields.load(self.store.get(path).data, path), path)
                if isinstance(command, StartFetcher):
                    for tp in command.partitions:
                        self.started.setdefault(tp, []).append(consumer)
                self.store.delete(path)
                told = True
        return told

    def settle(self, seconds: float = 30.0) -> None:
        """Lets time pass. After each step, no two ledgers may contain the same partition."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            while self.handler.step():
                self.held()
            if not self.obey():
                self.clock.now += 0.5

    def ledgers(self) -> Mapping[str, Ledger]:
        found = {}
        for consumer in self.store.children(layout.owners(GROUP)):
            path = layout.ledger(GROUP, consumer)
            node = self.store.get(path)
            found[consumer] = Ledger.from_json(
                fields.load(node.data, path), path, consumer=consumer, znode_version=node.stat.version
            )
        return found

    def held(self) -> PartitionSet:
        held = NO_PARTITIONS
        for consumer, ledger in self.ledgers().items() if self.store.exists(layout.owners(GROUP)) else ():
            assert held.isdisjoint(ledger.held), f"{held & ledger.held} is held by {consumer} and by another"
            held |= ledger.held
        return held

    def decisions(self) -> int:
        path = layout.history(GROUP)
        decisions = Trail.from_json(fields.load(self.store.get(path).data, path), path).decisions
        return sum(decision.started for decision in decisions)


def test_no_two_ledgers_contain_the_same_partition_after_an_unreadable_offset() -> None:
    world = World()
    world.damage(0)
    for consumer in ("m1", "m2", "m3"):
        world.join(GROUP, consumer)
        world.settle()
    readable = PartitionSet({TOPIC: [1, 2]})
    assert world.held() == readable
    assert TopicPartition(TOPIC, 0) not in world.started


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_ledgers_stay_disjoint_when_members_join_and_leave(damaged: int) -> None:
    world = World()
    world.join(GROUP, "m1")
    world.join(GROUP, "m2")
    world.settle()
    world.damage(damaged)
    world.join(GROUP, "m3")
    world.settle()
    world.leave("m1")
    world.settle()
    world.join(GROUP, "m0")
    world.settle()
    world.damage(damaged, b"100")
    world.settle(seconds=10)
    assert world.held() == PartitionSet({TOPIC: [0, 1, 2]})


def test_the_summary_names_an_unreadable_offsets_znode_and_remedy_and_not_a_start() -> None:
    world = World()
    world.damage(0)
    world.join(GROUP, "m1")
    world.settle()
    outcome, started = world.handler.outcomes[GROUP], world.decisions()
    assert outcome.state is GroupState.REBALANCING
    assert layout.offset(GROUP, TOPIC, 0).removeprefix(layout.group(GROUP) + "/") in outcome.summary
    assert f"reset-offsets {GROUP} --topic {TOPIC}:0" in outcome.summary
    assert "told" not in outcome.summary
    assert world.handler.unreadable == 1
    world.settle(seconds=60)
    assert world.decisions() == started == 2, "partitions without a start command must not count as started"
    assert world.handler.outcomes[GROUP] == outcome


def test_a_partition_is_started_soon_after_its_offset_was_repaired() -> None:
    world = World()
    world.damage(0)
    world.join(GROUP, "m1")
    world.settle()
    world.damage(0, b"100")
    world.settle(seconds=5)
    assert world.started[TopicPartition(TOPIC, 0)] == ["m1"]
    assert world.handler.outcomes[GROUP].state is GroupState.STABLE
    assert world.handler.unreadable == 0


def test_a_topic_of_unknown_identity_blocks_only_its_own_partitions() -> None:
    world = World()
    world.store.set(layout.topic_offsets(GROUP, TOPIC), b"not an identity")
    for consumer in ("m1", "m2"):
        world.join(GROUP, consumer)
        world.settle()
    assert world.held() == NO_PARTITIONS
    assert world.handler.outcomes[GROUP].state is GroupState.REBALANCING
    world.store.set(layout.topic_offsets(GROUP, TOPIC), b"id-1")
    world.settle(seconds=5)
    assert world.held() == PartitionSet({TOPIC: [0, 1, 2]})
