"""Scenarios that hold on any ZooKeeper. They run on a single server, and on the ensemble in containers."""

from __future__ import annotations

from kafka_coord.model import (
    NO_OFFSET,
    GroupSettings,
    Request,
    RequestType,
    StartFetcher,
    StopFetcher,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.coordinator.harness import World
from tests.waiting import eventually

FIRST, SECOND = "first-id--------------", "second-id-------------"
"""Two topic ids."""


def a_second_member_gets_half_of_the_partitions_and_the_others_do_not_move(world: World) -> None:
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c1.position = {TopicPartition("flights", p): 100 + p for p in range(4)}
    c2 = world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    assert [type(command) for command in c1.seen] == [StartFetcher, StopFetcher]
    moved = c1.seen[-1].partitions
    assert len(moved) == 2
    assert c2.started == {tp: 100 + tp.partition for tp in moved}, "c2 must start at the committed offsets"
    assert c1.owned.isdisjoint(c2.owned)


def no_member_is_started_before_the_owner_has_acknowledged_the_stop(world: World) -> None:
    world.instance(1).start_elected()
    c1 = world.consumer("c1", obedient=False).join()
    eventually(c1.obey)
    world.settles("c1", partitions=4)
    c2 = world.consumer("c2").join()
    eventually(lambda: world.ledgers()["c1"].stopping)
    stop = eventually(lambda: c1.obey(acknowledge=False))
    assert isinstance(stop, StopFetcher)
    # a third event causes another pass while c1 has not acknowledged
    world.consumer("c3").join()
    eventually(lambda: "c3" in (target.members if (target := world.target()) else {}))
    assert not any(tp in c2.started for tp in stop.partitions)
    eventually(lambda: world.settled() is not None or (c1.obey(), False)[1])
    world.settles("c1", "c2", "c3", partitions=4)


def the_next_owner_starts_at_the_offsets_that_a_leaving_member_committed(world: World) -> None:
    world.instance(1).start_elected()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    c2.position = dict.fromkeys(c2.owned, 7)
    left, told = c2.owned, len(c1.seen)
    c2.leave()
    assert world.settles("c1", partitions=4).reason == "member c2 left"
    assert {tp: c1.started[tp] for tp in left} == dict.fromkeys(left, 7)
    assert [type(c) for c in c1.seen[told:]] == [StartFetcher], "partitions that do not move must not be stopped"


def a_vanished_member_is_replaced_after_its_session_ends(world: World) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    c2 = world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    c2.close()
    target = world.settles("c1", partitions=4)
    assert target.reason.startswith("member c2 expired"), "it did not say goodbye"
    assert world.children(layout.channel("delays", "c2")) == (), "the dead member's commands must be deleted"
    assert "c2" not in world.ledgers()


def a_member_that_returns_within_its_grace_gets_its_own_partitions_back(world: World) -> None:
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    c2 = world.consumer("c2", rejoin_grace_ms=60_000).join()
    world.settles("c1", "c2", partitions=4)
    had, commands = c2.owned, len(c1.seen)
    first = c2.registration.incarnation
    c2.close()
    eventually(lambda: world.node(layout.registration("delays", "c2")) is None)
    again = world.consumer("c2", rejoin_grace_ms=60_000).join()
    eventually(lambda: again.owned == had)
    assert again.registration.incarnation != first
    world.settles("c1", "c2", partitions=4)
    assert len(c1.seen) == commands, "the other member must get no commands"


def a_consumer_that_does_not_acknowledge_is_evicted(world: World) -> None:
    world.store.ensure_path(layout.group("delays"))
    world.store.set(layout.group("delays"), fields.dump(GroupSettings(rebalance_timeout_ms=500).to_json()))
    world.instance(1).start_elected()
    stuck = world.consumer("c1", obedient=False).join()
    eventually(lambda: world.node(layout.registration("delays", "c1")) is None)
    world.consumer("c2").join()
    world.settles("c2", partitions=4)
    assert stuck.seen == []


def a_recreated_topic_starts_without_the_offsets_of_the_old_one(world: World) -> None:
    world.kafka.topic("flights", 4, topic_id=FIRST)
    world.instance(1).start_elected()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    for c in (c1, c2):
        c.position = {TopicPartition("flights", p): 5000 for p in range(4)}
    world.kafka.delete_topic("flights")
    # the topic is deleted and created again between two passes, with fewer partitions
    world.kafka.topic("flights", 2, topic_id=SECOND)
    world.settles("c1", "c2", partitions=2)
    eventually(lambda: world.node(layout.topic_offsets("delays", "flights")).data == f"{SECOND} 0".encode())
    world.settles("c1", "c2", partitions=2)
    started = c1.started | c2.started
    assert [started[TopicPartition("flights", p)] for p in range(2)] == [NO_OFFSET, NO_OFFSET]
    assert world.children(layout.topic_offsets("delays", "flights")) == ()


def an_operator_can_make_the_coordinator_resign(world: World) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    second = world.instance(2).start()
    answer = world.ask(Request(RequestType.RESIGN, reason="maintenance"))
    assert answer.result == "done"
    eventually(lambda: second.service.leads)
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)


SCENARIOS = (
    a_second_member_gets_half_of_the_partitions_and_the_others_do_not_move,
    no_member_is_started_before_the_owner_has_acknowledged_the_stop,
    the_next_owner_starts_at_the_offsets_that_a_leaving_member_committed,
    a_vanished_member_is_replaced_after_its_session_ends,
    a_member_that_returns_within_its_grace_gets_its_own_partitions_back,
    a_consumer_that_does_not_acknowledge_is_evicted,
    a_recreated_topic_starts_without_the_offsets_of_the_old_one,
    an_operator_can_make_the_coordinator_resign,
)
