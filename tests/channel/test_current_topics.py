"""Offsets of deleted topics are returned to nobody, and those of topics that are not seen come back with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.channel.offset_details import read_offsets
from kafka_coord.channel.zookeeper import stored_offsets
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.model import CommittedOffset, TopicOfOffsets, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store
from tests.simulation.store import connected_store

GROUP, AT, NONE = "delays", TopicPartition("flights", 0), TopicPartition("flights", 1)
TOPIC, OFFSETS = layout.broker_topic("flights"), layout.topic_offsets("delays", "flights")
FIRST, SECOND = "first-id--------------", "second-id-------------"


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with an offset of the topic with the first id."""
    store = connected_store()
    store.ensure_path(layout.BROKER_TOPICS)
    store.ensure_path(layout.offsets(GROUP))
    store.create(OFFSETS, FIRST.encode())
    store.create(layout.offset(GROUP, *AT), b"500")
    store.create(TOPIC, topic_value(2, topic_id=FIRST))
    yield store
    store.disconnect()


def found(store: Store) -> int | None:
    """Returns the offset as every reader sees it."""
    offsets, detailed = stored_offsets(store, GROUP, [AT, NONE]), read_offsets(store, GROUP, [AT, NONE])
    assert detailed == {tp: None if one is None else CommittedOffset(one) for tp, one in offsets.items()}
    return offsets[AT]


def test_the_offset_of_a_topic_that_was_made_anew_is_not_returned(store: Store) -> None:
    assert found(store) == 500
    store.delete(TOPIC)
    store.create(TOPIC, topic_value(2, topic_id=SECOND))
    assert found(store) is None


def test_the_number_of_first_partitions_beside_the_id_changes_nothing(store: Store) -> None:
    store.set(OFFSETS, TopicOfOffsets(FIRST, 2).data)
    assert found(store) == 500
    store.set(TOPIC, topic_value(2, topic_id=SECOND))
    assert found(store) is None


def test_an_offset_is_hidden_with_its_topic_and_valid_again_when_the_same_id_returns(store: Store) -> None:
    store.delete(TOPIC)
    assert found(store) is None
    store.create(TOPIC, topic_value(2, topic_id=FIRST))
    assert found(store) == 500


@pytest.mark.parametrize("value", [b"", b"unreadable", topic_value(2)], ids=["empty", "unreadable", "without an id"])
def test_nothing_is_concluded_from_a_topic_whose_id_is_unknown(store: Store, value: bytes) -> None:
    store.set(TOPIC, value)
    assert found(store) == 500


@pytest.mark.parametrize("written", [b"", b"not an identity!"])
def test_an_offset_of_unknown_origin_is_returned(store: Store, written: bytes) -> None:
    store.set(OFFSETS, written)
    assert found(store) == 500


def test_nothing_is_concluded_from_a_tree_without_topics(store: Store) -> None:
    store.delete(TOPIC)
    store.delete(layout.BROKER_TOPICS)
    assert found(store) == 500
