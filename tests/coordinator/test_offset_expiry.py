"""Offsets that nobody needs expire, those of deleted topics go after a day, and empty groups without offsets go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from kafka_coord.channel.offset_details import write_details
from kafka_coord.channel.operations import register_ops
from kafka_coord.consumer.settings import member_settings
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.bench.group import plain_member
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.model import (
    Cause,
    CommittedOffset,
    Decision,
    GroupSettings,
    Pause,
    TopicInfo,
    TopicOfOffsets,
    TopicPartition,
    history_to_json,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.coordinator.led import Led

GROUP, READ, LEFT = "delays", "flights", "fares"
IDS = {READ: "TMyOC9fMQO2RvZzC_cfMOw", LEFT: "UMyOC9fMQO2RvZzC_cfMOw"}
ANOTHER = "VMyOC9fMQO2RvZzC_cfMOw"
HOUR_S, DAY_S, WEEK_S = 3_600.0, 86_400.0, 604_800.0
AT = TopicPartition(LEFT, 0)


class World(Led):
    """Two topics, and a group with an offset in each. A member would subscribe to one of them only."""

    def __init__(self) -> None:
        super().__init__(READ, 1)
        self.store.ensure_path(layout.BROKER_TOPICS)
        for name in (READ, LEFT):
            self.make(name, IDS[name])
            self.commit(TopicPartition(name, 0))
        self.store.ensure_path(layout.ids(GROUP))

    def make(self, name: str, topic_id: str) -> None:
        self.store.create(layout.broker_topic(name), topic_value(1, topic_id=topic_id))
        self.catalog.put(TopicInfo(name, frozenset({0}), topic_id))

    def delete(self, name: str) -> None:
        self.store.delete(layout.broker_topic(name))
        self.catalog.drop(name)

    def commit(self, tp: TopicPartition, group: str = GROUP) -> None:
        path = layout.offset(group, *tp)
        if self.store.exists(layout.topic_offsets(group, tp.topic)) is None:
            self.store.ensure_path(layout.topic_offsets(group, tp.topic))
            self.store.set(layout.topic_offsets(group, tp.topic), TopicOfOffsets(IDS[tp.topic], 1).data)
        self.store.ensure_path(path)
        self.store.set(path, b"100")

    def leave(self, consumer: str) -> None:
        self.store.delete(layout.registration(GROUP, consumer))
        self.queue.request(GROUP)

    def pass_time(self, seconds: float, steps: int = 200) -> None:
        """Lets time pass while all consumers acknowledge their commands at once."""
        self.queue.request(GROUP)
        for _ in range(steps):
            while self.handler.step():
                if self.store.exists(layout.channels(GROUP)) is None:
                    continue
                for consumer in self.store.children(layout.channels(GROUP)):
                    for name in self.store.children(layout.channel(GROUP, consumer)):
                        self.store.delete(layout.command(GROUP, consumer, name))
            self.clock.now += seconds / steps

    def has(self, tp: TopicPartition) -> bool:
        return self.store.exists(layout.offset(GROUP, *tp)) is not None

    def exists(self) -> bool:
        return self.store.exists(layout.group(GROUP)) is not None

    def about(self, topic: str) -> TopicOfOffsets | None:
        path = layout.topic_offsets(GROUP, topic)
        return TopicOfOffsets.read(self.store.get(path).data) if self.store.exists(path) else None


@pytest.fixture
def world() -> World:
    return World()


def test_an_offset_of_a_topic_that_nobody_subscribes_to_expires_after_the_retention(world: World) -> None:
    world.join(GROUP, "m1")
    world.pass_time(WEEK_S - HOUR_S)
    assert world.has(AT)
    world.pass_time(2 * HOUR_S)
    assert not world.has(AT)
    assert world.has(TopicPartition(READ, 0)), "the offset of a topic that is subscribed to never expires"
    assert world.about(LEFT) == TopicOfOffsets(IDS[LEFT], 1), "so `latest` still applies to what existed already"


def test_an_offset_that_is_committed_again_begins_a_new_retention(world: World) -> None:
    world.join(GROUP, "m1")
    world.pass_time(WEEK_S - HOUR_S)
    world.commit(AT)
    world.pass_time(DAY_S)
    assert world.has(AT)
    world.pass_time(WEEK_S)
    assert not world.has(AT)


def test_nothing_expires_while_the_subscription_of_any_member_is_unknown(world: World) -> None:
    world.join(GROUP, "m1")
    world.pass_time(HOUR_S)
    world.store.create(layout.registration(GROUP, "m2"), b"{")
    world.pass_time(2 * WEEK_S)
    assert world.has(AT)


@pytest.mark.parametrize("lasts_s", [HOUR_S, 2 * WEEK_S])
def test_a_retention_that_the_client_has_set_goes_before_that_of_the_group(world: World, lasts_s: float) -> None:
    expires_at_ms = round((world.clock.time() + lasts_s) * 1000)
    write_details(world.store, GROUP, {AT: CommittedOffset(100, expires_at_ms=expires_at_ms)})
    world.join(GROUP, "m1")
    world.pass_time(lasts_s - HOUR_S / 2)
    assert world.has(AT)
    world.pass_time(HOUR_S)
    assert not world.has(AT)
    assert world.store.exists(layout.offset_details(GROUP, *AT)) is None


def test_in_an_empty_group_the_retention_that_the_client_has_set_is_kept_too(world: World) -> None:
    lasts_s = 2 * WEEK_S
    expires_at_ms = round((world.clock.time() + lasts_s) * 1000)
    write_details(world.store, GROUP, {AT: CommittedOffset(100, expires_at_ms=expires_at_ms)})
    world.join(GROUP, "m1")
    world.pass_time(HOUR_S)
    world.leave("m1")
    world.pass_time(WEEK_S + HOUR_S)
    assert not world.has(TopicPartition(READ, 0))
    assert world.has(AT)
    world.pass_time(WEEK_S)
    assert not world.exists()


@pytest.mark.parametrize("has_member", [True, False])
def test_the_offsets_of_a_deleted_topic_go_a_day_later_even_if_the_coordinator_changes(
    world: World, *, has_member: bool
) -> None:
    world.join(GROUP, "m1")
    world.pass_time(HOUR_S)
    if not has_member:
        world.leave("m1")
    world.delete(LEFT)
    world.pass_time(DAY_S - HOUR_S)
    assert world.has(AT)
    world.handler.memories.drop(GROUP)  # as in a coordinator that was just elected
    world.pass_time(2 * HOUR_S)
    assert not world.has(AT)
    assert world.about(LEFT) is None


def test_a_topic_that_is_seen_again_with_its_id_has_its_offsets_back(world: World) -> None:
    world.join(GROUP, "m1")
    world.pass_time(HOUR_S)
    world.delete(LEFT)
    world.pass_time(DAY_S - HOUR_S)
    world.make(LEFT, IDS[LEFT])
    world.pass_time(HOUR_S)
    assert world.about(LEFT) == TopicOfOffsets(IDS[LEFT], 1)
    world.delete(LEFT)
    world.pass_time(HOUR_S)
    assert world.has(AT)


def test_offsets_go_at_the_next_check_when_the_name_has_another_id(world: World) -> None:
    world.join(GROUP, "m1")
    world.pass_time(HOUR_S)
    world.delete(LEFT)
    world.make(LEFT, ANOTHER)
    world.pass_time(HOUR_S)
    assert not world.has(AT)
    assert world.about(LEFT) == TopicOfOffsets(ANOTHER, 0), "the new topic is read from its beginning"


def test_nothing_is_concluded_from_a_tree_without_topics(world: World) -> None:
    world.join(GROUP, "m1")
    world.pass_time(HOUR_S)
    world.delete(LEFT)
    world.delete(READ)
    world.store.delete(layout.BROKER_TOPICS)
    world.pass_time(2 * DAY_S)
    assert world.has(AT)


@pytest.mark.parametrize(
    ("pattern", "is_told"), [(".*", True), ("flights|__consumer_offsets", False), ("flights", False)]
)
def test_a_group_with_offsets_of_an_internal_topic_is_told_once_that_its_pattern_leaves_it_out(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pattern: str, is_told: bool
) -> None:
    at = TopicPartition("__consumer_offsets", 0)
    monkeypatch.setitem(IDS, at.topic, "WMyOC9fMQO2RvZzC_cfMOw")
    world.make(at.topic, IDS[at.topic])
    world.commit(at)
    world.store.ensure_path(layout.channel(GROUP, "m1"))
    value = member_settings(group=GROUP, include=pattern, consumer_id="m1").registration_value(world.store)
    world.store.multi(register_ops(GROUP, "m1", value))
    world.pass_time(3 * HOUR_S)
    told = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "internal_topic_left_out"]
    assert len(told) == is_told
    assert all("|__consumer_offsets" in one for one in told)
    assert world.has(at)


def make_empty(world: World) -> None:
    """Empties the group of members and offsets."""
    world.join(GROUP, "m1")
    world.pass_time(HOUR_S)
    for topic in (READ, LEFT):
        world.store.delete(layout.offset(GROUP, topic, 0))
    world.leave("m1")


def test_an_empty_group_without_offsets_is_removed_at_the_next_check(world: World) -> None:
    make_empty(world)
    world.pass_time(60)
    assert world.handler.outcomes[GROUP].state is GroupState.EMPTY
    world.pass_time(HOUR_S)
    assert not world.exists()


def settings(world: World) -> None:
    world.store.set(
        layout.group(GROUP), fields.dump(structs.replace(GroupSettings(), rebalance_timeout_ms=1_000).to_json())
    )


def pause(world: World) -> None:
    world.store.create(layout.paused(GROUP), fields.dump(Pause("me", "for now", 1).to_json()))


def kind(world: World) -> None:
    entry = Decision(0, 0, "converted", "", 1, 0, 0, 0, settled_ms=0, causes=(Cause.TAKEN_OVER,))
    world.store.set(layout.history(GROUP), fields.dump(history_to_json((entry,))))


def offset(world: World) -> None:
    world.commit(AT)


@pytest.mark.parametrize("keep", [settings, pause, kind, offset])
def test_an_empty_group_is_kept_with_an_offset_or_anything_that_was_asked_for(
    world: World, keep: Callable[[World], None]
) -> None:
    make_empty(world)
    keep(world)
    world.pass_time(DAY_S)
    assert world.exists()


def test_an_offset_that_is_committed_while_the_group_is_being_removed_keeps_it(world: World) -> None:
    make_empty(world)
    write = world.store.multi

    def commit_first(ops: object) -> object:
        world.store.multi = write  # type: ignore[method-assign]
        world.commit(AT)
        return write(ops)  # type: ignore[arg-type]

    memory = world.handler.memories.of(GROUP)
    while not memory.nothing_kept:
        world.clock.now += 1
        world.handler.step()
    world.store.multi = commit_first  # type: ignore[assignment,method-assign]
    world.pass_time(HOUR_S)
    assert world.store.multi == write, "the removal was tried"
    assert world.has(AT)


def test_the_offsets_of_every_members_topics_stay(world: World) -> None:
    world.join(GROUP, "m1")
    world.store.ensure_path(layout.channel(GROUP, "m2"))
    value = plain_member(GROUP, LEFT, "m2").registration_value(world.store)
    world.store.multi(register_ops(GROUP, "m2", value))
    world.pass_time(2 * WEEK_S)
    assert world.has(AT)
