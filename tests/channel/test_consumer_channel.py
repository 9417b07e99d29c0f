"""Tests of the consumer's end of the channel on a simulated ZooKeeper: what it writes together or may not write."""

from __future__ import annotations

import pytest

from kafka_coord.channel.operations import Registration, command_op, look_op
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import NoAuth
from kafka_coord.model import Member, PartitionSet, StopFetcher, Subscription, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import WatchEvent, WatchType
from tests.simulation.store import Quiet, SimulatedStore, connected_store

MEMBER = Member("c", 0, Subscription.to(["flights"]), session_timeout_ms=10_000)


class Forbidding(Quiet):
    """Refuses writes of ``forbidden``."""

    forbidden = ""

    def before_effect(self, _store: SimulatedStore, doing: str) -> None:
        if self.forbidden and doing.startswith("multi") and self.forbidden in doing:
            raise NoAuth("may not be written", self.forbidden)


@pytest.fixture
def around() -> Forbidding:
    return Forbidding()


@pytest.fixture
def store(around: Forbidding) -> SimulatedStore:
    store = connected_store(around=around)
    for path in (*layout.PERSISTENT_ROOTS, layout.topic_offsets("g", "flights")):
        store.ensure_path(path)
    return store


@pytest.fixture
def channel(store: SimulatedStore) -> ConsumerChannel:
    return ConsumerChannel(store, "g", "c")


@pytest.fixture
def registration(channel: ConsumerChannel) -> Registration:
    found = channel.register(fields.dump(MEMBER.to_json()))
    assert isinstance(found, Registration)
    return found


def test_a_consumer_without_the_right_to_give_up_its_place_still_leaves(
    channel: ConsumerChannel, registration: Registration, store: SimulatedStore, around: Forbidding
) -> None:
    around.forbidden = layout.REQUEST_PREFIX
    channel.leave(registration, {TopicPartition("flights", 0): 5}, for_good=True)
    assert store.exists(registration.path) is None
    assert store.get(layout.offset("g", "flights", 0)).data == b"5"


def test_a_new_subscription_is_written_once_and_together_with_a_request_to_read_it(
    channel: ConsumerChannel, registration: Registration, store: SimulatedStore
) -> None:
    for _ in range(2):
        channel.change_subscription(registration, Subscription.to(["fares"]), [look_op("g", "c", 0)])
    written = Member.from_json(fields.load(store.get(registration.path).data, ""), "", consumer="c", incarnation=0)
    assert written.subscription == Subscription.to(["fares"])
    assert len(store.children(layout.REQUESTS)) == 1


def test_an_offset_that_another_client_created_first_is_overwritten(
    channel: ConsumerChannel, registration: Registration, store: SimulatedStore
) -> None:
    store.create(layout.offset("g", "flights", 0), b"5")
    assert channel.commit(registration, {TopicPartition("flights", 0): 6}) == frozenset()
    assert store.get(layout.offset("g", "flights", 0)).data == b"6"


def test_a_new_command_causes_one_event(
    channel: ConsumerChannel, registration: Registration, store: SimulatedStore
) -> None:
    heard: list[WatchEvent] = []
    channel.outstanding(heard.append)
    stop = StopFetcher(1, 1, registration.incarnation, PartitionSet({"flights": [0]}), "by hand")
    (path,) = store.multi([command_op("g", "c", stop)])
    while store.has_notification():
        store.deliver()
    assert heard == [WatchEvent(WatchType.CREATED, str(path))]
