"""Tests of the records of groups at rest: each is written once, and the next coordinator uses it while it is valid."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from kafka_coord.coordinator.idle import IdleGroups, topics_digest
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import MalformedValue
from kafka_coord.model import GroupSettings, Request, RequestType, Settled, Subscription, TopicInfo, Zxids
from kafka_coord.model import json_fields as fields
from kafka_coord.model.member import interests
from kafka_coord.zk import layout
from tests.coordinator.harness import FAST, Instance, World
from tests.waiting import eventually

SOON = replace(FAST, settled_after_ms=100)
"""A group counts as at rest after 0.1 s."""


def written_down(world: World, group: str = "delays") -> Settled | None:
    """The group's record, if it is valid."""
    path = layout.settled(group)
    node = world.node(path)
    if node is None:
        return None
    try:
        settled = Settled.from_json(fields.load(node.data, path), path)
    except MalformedValue:
        return None
    as_of = (
        world.store.get(layout.group(group)).stat.mzxid,
        *(world.store.get(p).stat.pzxid for p in (layout.ids(group), layout.owners(group), layout.channels(group))),
        world.store.get(layout.assignment(group)).stat.mzxid,
    )
    zxids = settled.zxids
    assert zxids.group <= as_of[0]
    return settled if (zxids.group, zxids.ids, zxids.owners, zxids.channel, zxids.assignment) == as_of else None


def at_rest(world: World, group: str = "delays") -> Settled:
    found = eventually(lambda: written_down(world, group))
    assert found is not None
    return found


def sentence(instance: Instance, group: str = "delays") -> str:
    coordinator = instance.service.coordinator
    outcome = coordinator.handler.outcomes.get(group) if coordinator is not None else None
    return outcome.summary if outcome is not None else ""


@pytest.fixture
def resting(world: World) -> tuple[World, Instance]:
    """A group of two at rest with its record, and the instance that has written it."""
    world.kafka.topic("flights", 4)
    instance = world.instance(1, SOON).start_elected()
    world.consumer("c1").join()
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    at_rest(world)
    return world, instance


def test_the_record_of_a_group_at_rest_is_written_once(resting: tuple[World, Instance]):
    world, _ = resting
    settled = at_rest(world)
    assert settled.members == 2
    assert settled.subscriptions == (Subscription.to(["flights"]),)
    node = world.store.get(layout.settled("delays"))
    world.ask(Request(RequestType.LOOK, "delays"))
    time.sleep(0.5)
    assert world.store.get(layout.settled("delays")).stat.mzxid == node.stat.mzxid


def test_the_next_coordinator_trusts_the_settled_record_and_writes_nothing(resting: tuple[World, Instance]):
    world, first = resting
    before = world.store.get(layout.assignment("delays")).stat.mzxid
    second = world.instance(2, SOON).start()
    first.stop()
    eventually(lambda: second.service.leads)
    assert eventually(lambda: sentence(second)) == "at rest, as recorded by an earlier coordinator: 2 members"
    coordinator = second.service.coordinator
    assert coordinator is not None
    assert coordinator.handler.outcomes["delays"].state is GroupState.STABLE
    assert coordinator.registry.groups_for_topic("flights") == {"delays"}
    assert world.store.get(layout.assignment("delays")).stat.mzxid == before
    world.consumer("c3").join()
    world.settles("c1", "c2", "c3", partitions=4)
    at_rest(world)


def _leaves(world: World) -> Callable[[], object]:
    world._consumers[1].leave()
    return lambda: world.settles("c1", partitions=4)


def _comes_back(world: World) -> Callable[[], object]:
    consumer = world._consumers[1]
    assert consumer.registration is not None
    before = consumer.registration.incarnation
    consumer.leave()
    consumer.join()

    def taken_in() -> bool:
        ledger = world.ledgers()["c2"]
        return ledger.incarnation != before and bool(ledger.owned) and world.settled() is not None

    return lambda: eventually(taken_in)


def _topic_grows(world: World) -> Callable[[], object]:
    world.kafka.topic("flights", 6)
    return lambda: world.settles("c1", "c2", partitions=6)


def _settings_change(world: World) -> Callable[[], object]:
    world.store.set(layout.group("delays"), fields.dump(GroupSettings(assignor="range").to_json()))

    def decided() -> bool:
        target = world.settled()
        return target is not None and target.assignor == "range"

    return lambda: eventually(decided)


def _target_is_deleted(world: World) -> Callable[[], object]:
    before = world.target()
    assert before is not None
    world.store.delete(layout.assignment("delays"))
    return lambda: eventually(lambda: (t := world.settled()) is not None and t.generation > before.generation)


@pytest.mark.parametrize("happens", [_leaves, _comes_back, _topic_grows, _settings_change, _target_is_deleted])
def test_the_next_coordinator_finds_changes_that_happened_without_a_coordinator(
    resting: tuple[World, Instance], happens: Callable[[World], Callable[[], object]]
):
    world, first = resting
    first.stop()
    settles = happens(world)
    world.instance(2, SOON).start_elected()
    settles()
    at_rest(world)


def test_the_next_coordinator_finds_a_pause_that_began_without_a_coordinator(resting: tuple[World, Instance]):
    world, first = resting
    first.stop()
    world.store.create(layout.paused("delays"))
    second = world.instance(2, SOON).start_elected()
    eventually(lambda: "paused" in sentence(second))
    world.store.delete(layout.paused("delays"))
    world.ask(Request(RequestType.LOOK, "delays"))
    eventually(lambda: "paused" not in sentence(second))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":1,"zxids":{}}', b'{"version":2}', b"\xff"])
def test_an_unreadable_record_is_ignored_and_replaced(
    resting: tuple[World, Instance], data: bytes, caplog: pytest.LogCaptureFixture
):
    world, first = resting
    first.stop()
    world.store.set(layout.settled("delays"), data)
    with caplog.at_level(logging.WARNING):
        world.instance(2, SOON).start_elected()
        at_rest(world)
    assert any(layout.settled("delays") in message for message in caplog.messages)


def test_a_deleted_settled_znode_is_written_again_at_the_next_rest(resting: tuple[World, Instance]):
    world, _ = resting
    world.store.delete(layout.settled("delays"))
    world.consumer("c3").join()
    world.settles("c1", "c2", "c3")
    at_rest(world)


def test_no_record_is_written_for_a_group_with_socket_consumers(world: World):
    world.kafka.topic("flights", 2)
    world.instance(1, SOON).start_elected()
    world.consumer("c1", gateway=1).join()
    world.settles("c1", partitions=2)
    time.sleep(1)
    assert world.node(layout.settled("delays")) is None


def test_no_records_are_written_if_settled_after_ms_is_0(world: World):
    world.kafka.topic("flights", 2)
    world.instance(1, replace(FAST, settled_after_ms=0)).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=2)
    time.sleep(0.5)
    assert world.node(layout.settled("delays")) is None


def test_a_group_at_rest_is_read_completely_at_intervals(world: World):
    """The test edits a registration by hand, which changes none of the compared zxids."""
    world.kafka.topic("flights", 2)
    options = replace(SOON, look_interval_ms=200, whole_look_interval_ms=1_000)
    instance = world.instance(1, options).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=2)
    at_rest(world)
    world.store.set(layout.registration("delays", "c1"), b"nothing anybody can read")
    eventually(lambda: instance.service.coordinator is not None and instance.service.coordinator.handler.unreadable)


# --- the contents of a record -----------------------------------------------------------------------------------------


def test_a_record_is_valid_while_all_zxids_are_equal():
    zxids = Zxids(1, 2, 3, 4, 5)
    assert zxids.hold(2, Zxids(1, 2, 3, 4, 5))
    assert zxids.hold(2)
    assert not zxids.hold(3)
    for name in ("group", "owners", "channel", "assignment"):
        assert not zxids.hold(2, structs.replace(zxids, **{name: 9}))


def test_equal_interests_are_combined():
    one, other = Subscription.to(["a", "b"], 2), Subscription.to(["b", "c"])
    lists = Subscription.matching("x.*"), Subscription.matching("x.*", streams=3)
    told = interests([one, other, *lists, one])
    assert told == (Subscription.to(["a", "b", "c"]), Subscription.matching("x.*"))
    settled = Settled(Zxids(1, 2, 3, 4, 5), "digest", 4, told)
    assert Settled.from_json(settled.to_json(), "here") == settled


def test_the_digest_of_topics_covers_everything_that_a_target_depends_on():
    flights = TopicInfo("flights", frozenset(range(4)), "id 7")
    others = {"flights": flights, "routes": TopicInfo("routes", frozenset({0}), "id 8")}
    wanted = frozenset({"flights", "later"})
    digest = topics_digest(others, wanted)
    assert digest == topics_digest({"flights": flights}, wanted)
    assert digest != topics_digest({"flights": replace(flights, partitions=frozenset(range(5)))}, wanted)
    assert digest != topics_digest({"flights": replace(flights, identity="id 9")}, wanted)
    assert digest != topics_digest({**others, "later": replace(flights, name="later")}, wanted)
    assert digest == topics_digest({"flights": replace(flights, replica_racks={0: frozenset({"a"})})}, wanted)
    assert topics_digest(others, None) != topics_digest({"flights": flights}, None)


def test_an_unknown_group_does_not_count_as_at_rest(world: World):
    assert not IdleGroups(world.store, None, SOON).is_idle(GroupMemory("delays"))  # type: ignore[arg-type]
