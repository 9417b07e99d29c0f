"""Whole rebalances among parties that each have their own ZooKeeper identity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import NoAuth
from kafka_coord.groups.requests import ask
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.acl import ANYONE, Permission, grants
from kafka_coord.zk.acl_tree import apply, compare, read_tree_acls
from tests.coordinator.harness import World
from tests.security.conftest import OpenAs, credentials, identified, plan
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


def deviations(store) -> list[str]:
    found = compare(store, plan())
    return [*(one.path for one in found.deviations), *found.missing]


def test_two_groups_rebalance_hand_over_and_leave_and_every_znode_gets_the_acl_of_the_plan(
    world: World, open_as: OpenAs
):
    world.instance(1, zk=identified("coordinator")).start_elected()
    world.instance(2, zk=identified("coordinator")).start()
    for group, user in (("delays", "delays"), ("sales", "sales"), ("unnamed", "others")):
        first = world.consumer("c1", group, zk=identified(user)).join()
        world.settles("c1", group=group, partitions=4)
        first.position = {tp: 100 + tp.partition for tp in first.owned}
        second = world.consumer("c2", group, zk=identified(user)).join()
        world.settles("c1", "c2", group=group, partitions=4)
        assert {second.started[tp] for tp in second.owned} == {100 + tp.partition for tp in second.owned}
    assert not deviations(open_as(identified("coordinator")))
    first.leave()
    world.settles("c2", group="unnamed", partitions=4)


def test_an_operator_pauses_resets_evicts_and_removes_a_group_that_comes_back(world: World, open_as: OpenAs):
    from kafka_coord.groups.requests import pause, resume

    world.instance(1, zk=identified("coordinator")).start_elected()
    consumer = world.consumer("c1", zk=identified("delays")).join()
    world.settles("c1", partitions=4)
    operator = open_as(identified("operator"))
    pause(operator, "delays", by="them", reason="a test")
    resume(operator, "delays", by="them")
    evict = Request(RequestType.EVICT, group="delays", consumer="c1", by="them")
    assert ask(operator, evict, 10, print).result == "done"
    consumer.halt()
    eventually(lambda: not world.children(layout.ids("delays")))
    offsets = {TopicPartition("flights", 0): 7}
    reset = Request(RequestType.RESET_OFFSETS, group="delays", offsets=offsets, by="them")
    assert ask(operator, reset, 10, print).result == "done"
    assert ask(operator, Request(RequestType.DELETE_GROUP, group="delays", by="them"), 10, print).result == "done"
    eventually(lambda: world.node(layout.ids("delays")) is None)
    apply(open_as(identified("coordinator")), plan())  # as the coordinator does now and then
    world.consumer("c3", zk=identified("delays")).join()
    world.settles("c3", partitions=4)
    assert not deviations(open_as(identified("coordinator")))


def test_a_consumer_with_the_identity_of_another_group_is_refused(world: World, open_as: OpenAs):
    world.instance(1, zk=identified("coordinator")).start_elected()
    world.consumer("c1", zk=identified("delays")).join()
    world.settles("c1", partitions=4)
    with pytest.raises(NoAuth):
        world.consumer("c2", "delays", zk=identified("sales")).join()
    thief = open_as(identified("sales"))
    with pytest.raises(NoAuth):  # nor if the channel already exists
        ConsumerChannel(thief, "delays", "c1x").register(b"{}")
    assert world.children(layout.ids("delays")) == ("c1",)


def test_leaving_for_good_works_without_the_right_to_ask_the_coordinator(world: World):
    world.instance(1, zk=identified("coordinator")).start_elected()
    consumer = world.consumer("c1", zk=identified("delays")).join()
    world.settles("c1", partitions=4)
    consumer.halt()
    consumer.channel.leave(consumer.registration, {TopicPartition("flights", 0): 5}, for_good=True)
    assert world.children(layout.ids("delays")) == ()
    assert world.store.get(layout.offset("delays", "flights", 0)).data == b"5"


def test_an_open_tree_is_closed_while_all_clients_use_it(world: World, open_as: OpenAs):
    # given: an installation without identities, in use
    world.instance(1).start_elected()
    nobody = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    nobody.position = dict.fromkeys(nobody.owned, 50)
    coordinator = open_as(identified("coordinator"))
    assert len(read_tree_acls(coordinator).open) == read_tree_acls(coordinator).looked_at > 10
    # when: first everybody authenticates, but still creates open znodes; in any order
    world.instance(2, zk=credentials("coordinator")).start()
    proven = world.consumer("c2", zk=credentials("delays")).join()
    world.settles("c1", "c2", partitions=4)
    nobody.leave()
    world.instances[0].stop()
    world.settles("c2", partitions=4)
    proven.position = dict.fromkeys(proven.owned, 60)
    # then everybody gets the identities, again in any order, and creates new znodes by the plan
    world.consumer("c3", zk=identified("delays")).join()
    world.settles("c2", "c3", partitions=4)
    world.instance(3, zk=identified("coordinator")).start()
    world.instances[1].stop()
    newest = world.consumer("c4", zk=identified("delays")).join()
    world.settles("c2", "c3", "c4", partitions=4)
    # and at last the existing znodes are closed
    told: list[tuple[int, int]] = []
    done = apply(coordinator, plan(), lambda *progress: told.append(progress))
    assert done.changed > 10
    assert not done.refused
    assert told[-1][0] == told[-1][1]
    # then: they are closed, and the group works
    assert not deviations(coordinator)
    assert read_tree_acls(coordinator).open == ()
    again = apply(coordinator, plan())
    assert (again.changed, again.made, again.refused) == (0, 0, ())
    proven.leave()
    newest.leave()
    world.settles("c3", partitions=4)
    assert not deviations(coordinator)
    with pytest.raises(NoAuth):
        world.store.set(layout.assignment("delays"), b"")


def test_foreign_znodes_are_left_unchanged_and_refused_changes_are_listed(world: World, open_as: OpenAs):
    world.store.ensure_path("/consumers/a-group-of-0.8/offsets/flights/0")
    done = apply(open_as(identified("coordinator")), plan())
    assert not done.refused
    (found,) = world.store.read_acls(["/consumers/a-group-of-0.8/offsets"])
    assert found.acl == grants([(ANYONE, Permission.ALL)])
    consumer = open_as(identified("sales"))
    assert compare(consumer, plan()).acls.foreign == ("/consumers/a-group-of-0.8",)
    assert not compare(consumer, plan()).deviations  # everybody may read, but sees no hashes
    wider = replace(plan(), operators=())
    refused = apply(consumer, wider).refused
    assert {path for path, _ in refused} == {one.path for one in compare(consumer, wider).deviations}
    assert all("ACL does not allow it" in why for _, why in refused)


def test_of_a_tree_with_many_groups_only_a_sample_is_checked(world: World, open_as: OpenAs):
    for number in range(30):
        world.store.ensure_path(layout.ids(f"g{number}"))
    sampled = read_tree_acls(open_as(identified("operator")), most_of_a_kind=10)
    assert not sampled.whole
    assert sampled.looked_at == 2 + 10 + 10  # /consumers, groups, ten groups, ten ids
