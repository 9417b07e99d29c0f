"""Tests of operators' requests to the coordinator, and of its answers."""

from __future__ import annotations

import pytest

from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.model import GroupKind, PartitionSet, Pause, Request, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.coordinator.harness import World
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def settled(world: World) -> World:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    return world


def test_a_rebalance_causes_a_new_generation_with_the_operators_reason(settled: World):
    answer = settled.ask(Request(RequestType.REBALANCE, group="delays", reason="trying it out", by="ops"))
    assert answer.result == "done"
    target = settled.settles("c1", partitions=4)
    assert target.generation == 2
    assert "trying it out" in target.reason


def test_an_evicted_consumer_must_register_again(settled: World):
    c2 = settled.consumer("c2").join()
    settled.settles("c1", "c2", partitions=4)
    first = c2.registration.incarnation
    answer = settled.ask(Request(RequestType.EVICT, group="delays", consumer="c2"))
    assert answer.result == "done"
    settled.settles("c1", partitions=4)
    assert settled.node(layout.registration("delays", "c2")) is None
    c2.halt()
    c2.join()
    settled.settles("c1", "c2", partitions=4)
    assert c2.registration.incarnation != first


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request(RequestType.EVICT, group="delays", consumer="nobody"), "nobody"),
        (Request(RequestType.REBALANCE, group="no-such-group"), "no-such-group"),
        (Request(RequestType.DELETE_GROUP, group="delays"), "c1"),
        (Request(RequestType.RESET_OFFSETS, group="delays", offsets={TopicPartition("flights", 0): 3}), "c1"),
        (Request(RequestType.DELETE_OFFSETS, group="delays", partitions=PartitionSet({"flights": [0]})), "c1"),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(settled: World, request_: Request, sentence: str):
    answer = settled.ask(request_)
    assert answer.result == "refused"
    assert sentence in answer.message


def test_offsets_of_an_empty_group_are_reset_and_deleted(settled: World):
    settled._consumers[0].leave()
    settled.settles()
    reset = Request(
        RequestType.RESET_OFFSETS, group="delays", offsets={TopicPartition("flights", p): 9 for p in (0, 3)}
    )
    assert settled.ask(reset).result == "done"
    assert settled.node(layout.offset("delays", "flights", 3)).data == b"9"
    delete = Request(RequestType.DELETE_OFFSETS, group="delays", partitions=PartitionSet({"flights": [0, 1]}))
    assert settled.ask(delete).result == "done"
    assert settled.children(layout.topic_offsets("delays", "flights")) == ("3",)
    again = settled.consumer("c9").join()
    settled.settles("c9", partitions=4)
    assert again.started[TopicPartition("flights", 3)] == 9


def test_a_deleted_group_is_removed_with_all_its_znodes(settled: World):
    settled._consumers[0].leave()
    settled.settles()
    assert settled.ask(Request(RequestType.DELETE_GROUP, group="delays")).result == "done"
    eventually(lambda: settled.node(layout.group("delays")) is None)


def test_a_group_is_deleted_only_if_its_offsets_have_not_changed_since(settled: World):
    settled._consumers[0].leave()
    settled.settles()
    before = settled.store.get(layout.group("delays")).stat.pzxid
    written = Request(RequestType.RESET_OFFSETS, group="delays", offsets={TopicPartition("flights", 0): 9})
    assert settled.ask(written).result == "done"
    answer = settled.ask(Request(RequestType.DELETE_GROUP, group="delays", unchanged_since=before))
    assert (answer.result, answer.message) == ("refused", "the group's offsets have changed since the request")
    now = settled.store.get(layout.offset("delays", "flights", 0)).stat.mzxid
    removed = Request(RequestType.DELETE_OFFSETS, group="delays", partitions=PartitionSet({"flights": [0]}))
    assert settled.ask(removed).result == "done"
    assert settled.ask(Request(RequestType.DELETE_GROUP, group="delays", unchanged_since=now)).result == "refused"
    now = settled.store.get(layout.topic_offsets("delays", "flights")).stat.pzxid
    assert settled.ask(Request(RequestType.DELETE_GROUP, group="delays", unchanged_since=now)).result == "done"


def test_the_elected_coordinator_does_not_answer_conversion_requests(settled: World):
    asked = Request(RequestType.CONVERT_GROUP, group="no-such-group", to=GroupKind.MANAGED)
    path = settled.store.create(layout.REQUEST_PREFIX, fields.dump(asked.to_json()), sequence=True)
    assert settled.ask(Request(RequestType.REBALANCE, group="no-such-group")).result == "refused"
    assert not Request.from_json(fields.load(settled.store.get(path).data, path), path).answered


def test_a_paused_group_moves_nothing_until_it_is_resumed(settled: World):
    settled.store.create(layout.paused("delays"), fields.dump(Pause("ops", "upgrade", 1).to_json()))
    settled.ask(Request(RequestType.LOOK, group="delays"))
    settled.consumer("c2").join()
    assert settled.ask(Request(RequestType.LOOK, group="delays")).result == "done"
    assert set(settled.target().members) == {"c1"}
    settled.store.delete(layout.paused("delays"))
    settled.ask(Request(RequestType.LOOK, group="delays"))
    settled.settles("c1", "c2", partitions=4)


def test_a_pause_of_all_groups_pauses_every_group(settled: World):
    settled.store.create(layout.PAUSED, b"")
    settled.ask(Request(RequestType.LOOK, group="delays"))
    settled.consumer("c2").join()
    settled.consumer("x1", group="other").join()
    assert settled.ask(Request(RequestType.LOOK, group="delays")).result == "done"
    assert set(settled.target().members) == {"c1"}
    settled.store.delete(layout.PAUSED)
    settled.settles("c1", "c2", partitions=4)
    settled.settles("x1", group="other", partitions=4)


def test_a_malformed_request_is_left_unchanged_and_the_next_one_is_answered(settled: World):
    path = settled.store.create(layout.REQUEST_PREFIX, b"\xff not json", sequence=True)
    assert settled.ask(Request(RequestType.REBALANCE, group="delays")).result == "done"
    assert settled.node(path).data == b"\xff not json"


def test_answers_that_are_not_fetched_are_removed_after_a_while(world: World):
    world.instance(1, CoordinatorOptions(answers_kept_ms=300)).start_elected()
    answer = world.ask(Request(RequestType.REBALANCE, group="nobody"))
    eventually(lambda: world.children(layout.REQUESTS) == ())
    assert answer.result == "refused"


def test_a_resignation_that_names_a_group_is_carried_out(settled: World):
    answer = settled.ask(Request(RequestType.RESIGN, group="delays"))
    assert answer.result == "done"
    assert "resigned" in answer.message
