"""Tests of the details of offsets in ZooKeeper, and of writes that make them invalid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.channel.offset_details import details_ops, read_offsets, write_details
from kafka_coord.channel.operations import offset_op
from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.model import CommittedOffset, TopicPartition
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import Store

pytestmark = pytest.mark.zookeeper
AT, OTHER = TopicPartition("flights", 0), TopicPartition("flights", 1)
WITH_DETAILS = CommittedOffset(120, 5, "gate A/ß")


@pytest.fixture
def store(zk_hosts: str) -> Iterator[Store]:
    made = connect(zk_hosts)
    yield made
    made.close()


@pytest.fixture
def group(store: Store) -> str:
    ensure_group(store, "delays")
    store.ensure_path(layout.topic_offsets("delays", "flights"))
    return "delays"


def stored(store: Store, group: str) -> CommittedOffset | None:
    return read_offsets(store, group, [AT, OTHER])[AT]


def commit(store: Store, group: str, one: CommittedOffset, *, exists: bool) -> None:
    existing = {path for path in _paths(group) if store.exists(path) is not None}
    details = {} if one.is_bare else {AT: one}
    store.multi([offset_op(group, AT, one.offset, exists=exists), *details_ops(group, details, existing)])


def _paths(group: str) -> list[str]:
    return [layout.details(group), layout.topic_details(group, "flights"), layout.offset_details(group, *AT)]


def test_the_details_of_an_offset_are_stored_with_it(store: Store, group: str) -> None:
    assert stored(store, group) is None
    commit(store, group, WITH_DETAILS, exists=False)
    assert stored(store, group) == WITH_DETAILS
    assert store.get(layout.offset(group, *AT)).data == b"120", "clients that do not know details must still read it"
    later = CommittedOffset(121, -1, "gate B")
    commit(store, group, later, exists=True)
    assert stored(store, group) == later
    store.multi([offset_op(group, OTHER, 7, exists=False)])
    assert read_offsets(store, group, [AT, OTHER]) == {AT: later, OTHER: CommittedOffset(7)}


def test_a_later_write_of_the_offset_makes_its_details_invalid(store: Store, group: str) -> None:
    commit(store, group, WITH_DETAILS, exists=False)
    for offset in (120, 119, 120):  # the same offset, an earlier one, and the same one again
        store.set(layout.offset(group, *AT), str(offset).encode())
        assert stored(store, group) == CommittedOffset(offset)
    write_details(store, group, {AT: WITH_DETAILS, OTHER: WITH_DETAILS})
    assert read_offsets(store, group, [AT, OTHER]) == {AT: WITH_DETAILS, OTHER: None}


def test_the_details_of_a_deleted_offset_are_invalid(store: Store, group: str) -> None:
    commit(store, group, WITH_DETAILS, exists=False)
    store.delete(layout.offset(group, *AT))
    assert stored(store, group) is None
    commit(store, group, CommittedOffset(120), exists=False)
    assert stored(store, group) == CommittedOffset(120)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b'{"version":9,"offset":120}',
        b'{"version":1,"offset":120,"metadata":1}',
        b'{"version":1,"offset":120,"leader_epoch":2147483648}',
    ],
)
def test_unreadable_details_count_as_missing(store: Store, group: str, damage: bytes) -> None:
    commit(store, group, WITH_DETAILS, exists=False)
    store.set(layout.offset_details(group, *AT), damage)
    assert stored(store, group) == CommittedOffset(120)
