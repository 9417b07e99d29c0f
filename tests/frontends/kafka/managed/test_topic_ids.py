"""Tests of topic ids in ZooKeeper and in ledgers."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.frontends.kafka.managed.topics import TopicIds
from kafka_coord.model import Ledger, PartitionSet
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store
from tests.simulation.store import connected_store

EARLIER, PRESENT = b"flights, earlier", b"flights, present"
PATH = layout.broker_topic("flights")


def written(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with the ledger of a consumer that holds a partition of a topic that was deleted."""
    store = connected_store()
    owned = PartitionSet.from_json({"flights": "0"}, "")
    ledger = Ledger("c1", 7, owned, topic_ids={"flights": written(EARLIER)})
    path = layout.ledger("delays", "c1")
    for parent in (path.rpartition("/")[0], layout.BROKER_TOPICS):
        store.ensure_path(parent)
    store.create(path, fields.dump(ledger.to_json()))
    yield store
    store.disconnect()


def test_a_ledger_keeps_the_id_of_the_deleted_topic(store: Store) -> None:
    store.create(PATH, topic_value(1, topic_id=written(PRESENT)))
    ids = TopicIds(store)
    assert ids.of_ledger("delays", "c1", {"flights"}) == {"flights": EARLIER}
    assert ids.get("flights") == PRESENT
    store.delete(PATH)
    ids.learn({"flights"})
    assert ids.get("flights") is None


def test_a_topic_with_an_unreadable_znode_does_not_count_as_deleted(store: Store) -> None:
    store.create(PATH, b"unreadable")
    ids = TopicIds(store)
    ids.of_ledger("delays", "c1", {"flights"})
    assert ids.get("flights") == EARLIER
