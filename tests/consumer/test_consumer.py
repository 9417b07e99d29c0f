"""Tests of a consumer's start and end on a simulated ZooKeeper, without Kafka."""

from __future__ import annotations

import pytest

from kafka_coord import Consumer
from kafka_coord.errors import ConsumerClosed
from kafka_coord.zk import layout
from tests.simulation.store import SimulatedStore, connected_store
from tests.waiting import eventually


@pytest.fixture
def store() -> SimulatedStore:
    store = connected_store()
    for path in layout.PERSISTENT_ROOTS:
        store.ensure_path(path)
    return store


def registered(store: SimulatedStore) -> bool:
    return store.exists(layout.registration("g", "c")) is not None


@pytest.mark.parametrize(("leave", "requests"), [(False, 0), (True, 1)])
def test_close_asks_for_the_removal_of_the_consumers_place_only_with_leave(
    store: SimulatedStore, leave: bool, requests: int
) -> None:
    consumer = Consumer(group="g", topics=["flights"], consumer_id="c", store=store, rejoin_grace_ms=60_000)
    assert eventually(lambda: registered(store))
    consumer.close(leave=leave)
    assert not registered(store)
    assert len(store.children(layout.REQUESTS)) == requests


def test_the_end_of_the_with_block_closes_the_consumer_and_later_calls_raise_an_error(store: SimulatedStore) -> None:
    with Consumer(group="g", topics=["flights"], consumer_id="c", store=store) as consumer:
        assert eventually(lambda: registered(store))
    assert not registered(store)
    with pytest.raises(ConsumerClosed):
        consumer.commit()
    assert list(consumer) == []
