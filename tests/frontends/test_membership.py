"""Tests of consumers over sockets as members: they register, carry out commands, commit, leave, and expire."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kafka_coord.channel.frames import AnsweredRequest, Asked, RefusedRequest
from kafka_coord.model import TopicPartition
from kafka_coord.zk import layout
from tests.coordinator.harness import World
from tests.frontends.harness import HandConsumer, SocketInstance
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

Instances = Callable[..., SocketInstance]
Connect = Callable[[SocketInstance], HandConsumer]


def offset(world: World, partition: int) -> int | None:
    node = world.node(layout.offset("delays", "flights", partition))
    return int(node.data) if node is not None else None


def registered(answer: AnsweredRequest | RefusedRequest) -> dict:
    assert isinstance(answer, AnsweredRequest), answer
    return answer.frame


def obey(consumer: HandConsumer, offsets: dict[str, dict[str, int]] | None = None) -> Asked:
    command = consumer.next_command()
    consumer.answer(command, offsets)
    return command


def test_every_instance_names_the_coordinator_and_its_address(
    world: World, instance: Instances, connect: Connect
) -> None:
    first = instance(1).start_elected()
    second = instance(2).start()
    world.kafka.broker(7)
    for asked in (first, second):
        eventually(lambda a=asked: registered(connect(a).ask("cluster-metadata"))["coordinator"] is not None)
        told = registered(connect(asked).ask("cluster-metadata"))
        assert told["coordinator"] == {"instance": 1, "epoch": 1, "endpoint": first.server.address}
        assert sorted(told["instances"]) == sorted([first.server.address, second.server.address])
        assert [broker["id"] for broker in told["brokers"]] == [7]


def test_a_request_to_wait_for_another_coordinator_is_answered_as_soon_as_one_is_elected(
    instance: Instances, connect: Connect
) -> None:
    first, asked = instance(1).start_elected(), instance(2).start()
    early, late = connect(asked), connect(asked)
    eventually(lambda: registered(late.ask("cluster-metadata"))["coordinator"] is not None)
    begin = time.monotonic()
    number = early.say("cluster-metadata", wait_ms=5_000, not_epoch=1)
    assert registered(late.ask("cluster-metadata", wait_ms=300, not_epoch=1))["coordinator"]["epoch"] == 1
    assert time.monotonic() - begin >= 0.3
    assert registered(late.ask("cluster-metadata", wait_ms=5_000, not_epoch=7))["coordinator"]["epoch"] == 1
    first.stop()
    told = early.next()
    assert isinstance(told, AnsweredRequest)
    assert told.id == number
    assert told.frame["coordinator"] == {"instance": 2, "epoch": 2, "endpoint": asked.server.address}
    assert isinstance(late.ask("cluster-metadata", wait_ms=-1), RefusedRequest)


def test_only_the_coordinator_registers_consumers_and_other_instances_name_it(
    instance: Instances, connect: Connect
) -> None:
    first = instance(1).start_elected()
    second = instance(2).start()
    asking = connect(second)
    asking.ask("cluster-metadata")
    answer = asking.register()
    assert isinstance(answer, RefusedRequest)
    assert answer.code == "not-coordinator"
    assert answer.frame["coordinator"]["endpoint"] == first.server.address


def test_a_consumer_starts_partitions_commits_with_pings_and_stops_and_leaves(
    world: World, instance: Instances, connect: Connect
) -> None:
    coordinator = instance().start_elected()
    s1 = connect(coordinator)
    told = registered(s1.register())
    assert told["consumer_id"] == "s1"
    assert told["ping_interval_ms"] == 3_000
    start = obey(s1)
    assert start.type == "start-fetcher"
    assert start.frame["incarnation"] == told["incarnation"]
    assert set(start.frame["partitions"]["flights"]) == {"0", "1", "2", "3"}
    ping = s1.next_ping()
    assert ping.frame["done"] == start.id, "the acknowledgement must be reported as soon as it is stored"
    s1.answer(ping, {"flights": {"0": 12, "3": 5}})
    eventually(lambda: (offset(world, 0), offset(world, 3)) == (12, 5))

    c2 = world.consumer("c2").join()
    stop = obey(s1, {"flights": {"0": 20, "1": 7}})
    assert stop.type == "stop-fetcher"
    world.settles("s1", "c2", partitions=4)
    given = set(stop.frame["partitions"]["flights"])
    assert {tp.partition for tp in c2.owned} == given
    assert all(c2.started[TopicPartition("flights", p)] == {0: 20, 1: 7, 3: 5}.get(p, -1) for p in given)

    kept = next(p for p in range(4) if p not in given)
    answer = s1.ask("leave", offsets={"flights": {str(kept): 40}})
    assert registered(answer) == {"v": 1, "id": answer.id, "type": "answer", "refused": []}
    world.settles("c2", partitions=4)
    assert offset(world, kept) == 40
    assert world.node(layout.registration("delays", "s1")) is None


def test_a_commit_is_answered_once_it_is_stored_and_refused_for_partitions_not_held(
    world: World, instance: Instances, connect: Connect
) -> None:
    s1 = connect(instance().start_elected())
    registered(s1.register())
    refused = s1.ask("commit", offsets={"flights": {"0": 3}})
    assert isinstance(refused, RefusedRequest)
    assert refused.code == "bad-value"
    obey(s1)
    s1.next_ping()
    assert registered(s1.ask("commit", offsets={"flights": {"0": 3}}))["refused"] == []
    assert offset(world, 0) == 3
    found = registered(s1.ask("committed", offsets={"flights": {"0": 0, "1": 0}}))
    assert found["offsets"] == {"flights": {"0": 3, "1": None}}


def test_a_ping_names_the_last_ping_whose_answer_was_heard(instance: Instances, connect: Connect) -> None:
    s1 = connect(instance().start_elected())
    registered(s1.register())
    obey(s1)
    first = s1.next_ping()
    assert first.frame["heard"] == 0
    s1.answer(first)
    second = s1.next_ping()
    assert second.frame["heard"] == first.id


def test_a_consumer_that_is_silent_for_its_session_timeout_is_expired(
    world: World, instance: Instances, connect: Connect
) -> None:
    s1 = connect(instance().start_elected())
    registered(s1.register(session_timeout_ms=3_000))
    c2 = world.consumer("c2").join()
    start = s1.next_command()
    s1.answer(start)
    assert s1.ends_with(silent=True)[0] == "membership-lost"
    world.settles("c2", partitions=4)
    assert len(c2.owned) == 4


def test_a_member_that_reconnects_within_its_session_timeout_keeps_its_partitions(
    world: World, instance: Instances, connect: Connect
) -> None:
    coordinator = instance().start_elected()
    s1 = connect(coordinator)
    before = registered(s1.register(resume_key="mine"))
    obey(s1)
    s1.next_ping()
    target = world.settles("s1", partitions=4)
    s1.close()
    again = connect(coordinator)
    after = registered(again.register(resume_key="mine"))
    assert after["incarnation"] > before["incarnation"]
    start = obey(again)
    assert set(start.frame["partitions"]["flights"]) == {"0", "1", "2", "3"}, (
        "the member must get its own partitions back"
    )
    assert world.settles("s1", partitions=4).generation == target.generation


def test_a_second_consumer_cannot_take_the_name_of_a_live_one(
    world: World, instance: Instances, connect: Connect
) -> None:
    coordinator = instance().start_elected()
    world.consumer("c1").join()
    s1 = connect(coordinator)
    registered(s1.register(resume_key="mine"))
    for name, key in (("s1", "another's"), ("s1", ""), ("c1", "mine")):
        refused = connect(coordinator).register(consumer_id=name, resume_key=key)
        assert isinstance(refused, RefusedRequest)
        assert refused.code == "duplicate-consumer"
    assert name in refused.message


def test_a_consumer_is_notified_when_an_operator_evicts_it(world: World, instance: Instances, connect: Connect) -> None:
    s1 = connect(instance().start_elected())
    registered(s1.register())
    obey(s1)
    world.store.delete(layout.registration("delays", "s1"))
    assert s1.ends_with()[0] == "membership-lost"


def test_after_a_failover_members_have_their_whole_session_timeout_and_keep_their_partitions(
    world: World, instance: Instances, connect: Connect
) -> None:
    first = instance(1).start_elected()
    second = instance(2).start()
    s1 = connect(first)
    registered(s1.register(resume_key="mine", session_timeout_ms=15_000))
    obey(s1)
    s1.next_ping()
    target = world.settles("s1", partitions=4)
    first.stop()
    assert s1.ends_with()[0] in {"not-coordinator", "shutting-down"}
    eventually(lambda: second.server.gateway.term is not None)
    assert world.node(layout.registration("delays", "s1")) is not None
    again = connect(second)
    registered(again.register(resume_key="mine", session_timeout_ms=15_000))
    start = obey(again)
    assert len(start.frame["partitions"]["flights"]) == 4
    assert world.settles("s1", partitions=4).generation == target.generation
    for node in world.store.children(layout.channel("delays", "s1")):
        raise AssertionError(f"a command was left behind: {node}")


def test_a_consumer_that_resumes_after_a_failover_carries_out_the_outstanding_command(
    world: World, instance: Instances, connect: Connect
) -> None:
    first = instance(1).start_elected()
    second = instance(2).start()
    s1 = connect(first)
    told = registered(s1.register(resume_key="mine", session_timeout_ms=15_000))
    obey(s1)
    s1.answer(s1.next_ping(), {"flights": {"0": 5}})
    c2 = world.consumer("c2").join()
    stop = s1.next_command()  # the coordinator stops before s1 carries it out
    first.stop()
    s1.ends_with()
    eventually(lambda: second.server.gateway.term is not None)
    again = connect(second)
    mine = {"group": "delays", "consumer_id": "s1", "incarnation": told["incarnation"], "resume_key": "mine"}
    answer = registered(again.ask("resume", **mine))
    assert answer["outstanding"] == [stop.frame["command"]]
    repeated = obey(again, {"flights": {"0": 9, "1": 2}})
    assert repeated.frame["partitions"] == stop.frame["partitions"]
    assert again.next_ping().frame["done"] == repeated.id
    world.settles("s1", "c2", partitions=4)
    assert len(c2.owned) == 2
    kept = next(p for p in range(4) if TopicPartition("flights", p) not in c2.owned)
    assert registered(again.ask("commit", offsets={"flights": {str(kept): 11}}))["refused"] == []
    assert world.node(layout.registration("delays", "s1")).stat.czxid == told["incarnation"]


def test_a_client_without_the_right_resume_key_cannot_resume_a_membership(
    world: World, instance: Instances, connect: Connect
) -> None:
    coordinator = instance().start_elected()
    s1 = connect(coordinator)
    told = registered(s1.register(resume_key="mine"))
    mine = {"group": "delays", "consumer_id": "s1", "incarnation": told["incarnation"], "resume_key": "mine"}
    for change in ({"resume_key": "another's"}, {"resume_key": ""}, {"incarnation": 1}, {"consumer_id": "s2"}):
        other = connect(coordinator)
        refused = other.ask("resume", **(mine | change))
        assert isinstance(refused, RefusedRequest)
        assert refused.code == "unknown-membership"
        assert isinstance(other.register(consumer_id=None), AnsweredRequest), "the client may still register"
    obey(s1)


@pytest.mark.parametrize("for_good", [False, True])
def test_a_members_partitions_are_kept_for_its_return_unless_it_leaves_for_good(
    world: World, instance: Instances, connect: Connect, for_good: bool
) -> None:
    coordinator = instance().start_elected()
    s1 = connect(coordinator)
    registered(s1.register(rejoin_grace_ms=60_000))
    obey(s1)
    s1.next_ping()
    c2 = world.consumer("c2").join()
    obey(s1)
    world.settles("s1", "c2", partitions=4)
    registered(s1.ask("leave", offsets={}, for_good=for_good))
    if for_good:
        world.settles("c2", partitions=4)
    else:
        eventually(lambda: world.node(layout.registration("delays", "s1")) is None)
        world.instance(2).start()
        target = world.target()
        assert target is not None
        assert set(target.members) == {"s1", "c2"}
        assert len(c2.owned) == 2
