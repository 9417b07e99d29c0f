"""Offsets of deleted topics are returned to nobody, and those of topics that are not seen come back with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from kafka_coord.channel.offset_details import read_offsets
from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel, ensure_group, stored_offsets
from kafka_coord.consumer.command_loop import UnresolvedPartitions
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import MalformedValue, NoAuth
from kafka_coord.model import CommittedOffset, TopicOfOffsets, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.store import Read, ReadResult, Store
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


def test_a_topic_that_is_hidden_by_its_acl_does_not_hide_that_another_was_made_anew(store: Store) -> None:
    """ZooKeeper refuses a multi-read as a whole."""
    read_many = store.read_many

    def refused(reads: Sequence[Read]) -> tuple[ReadResult, ...]:
        if any(one.path == layout.broker_topic("hidden") for one in reads):
            raise NoAuth("hidden", layout.broker_topic("hidden"))
        return read_many(reads)

    store.create(layout.topic_offsets(GROUP, "hidden"), FIRST.encode())
    store.create(layout.offset(GROUP, "hidden", 0), b"7")
    store.set(TOPIC, topic_value(2, topic_id=SECOND))
    store.read_many = refused  # type: ignore[method-assign]
    hidden = TopicPartition("hidden", 0)
    assert stored_offsets(store, GROUP, [AT, hidden]) == {AT: None, hidden: 7}
    assert read_offsets(store, GROUP, [AT, hidden]) == {AT: None, hidden: CommittedOffset(7)}


def test_an_offset_that_someone_has_damaged_costs_no_other_partition(store: Store) -> None:
    store.create(layout.offset(GROUP, *NONE), b"12o")
    found = read_offsets(store, GROUP, [AT, NONE])
    assert found[AT] == CommittedOffset(500)
    assert isinstance(found[NONE], MalformedValue)
    with pytest.raises(MalformedValue):
        stored_offsets(store, GROUP, [AT, NONE])


def test_the_first_ends_of_other_partitions_are_kept_beside_a_damaged_offset(store: Store) -> None:
    """Whoever repairs the offset resolves the partition; until then nobody is given it, and no member ends."""
    store.ensure_path(layout.unresolved(GROUP))
    channel = ConsumerChannel(store, GROUP, "c1")
    ensure_group(store, GROUP)
    registration = channel.register(b'{"version":1,"subscription":{"flights":1},"pattern":"static"}')
    assert isinstance(registration, Registration)
    store.set(layout.offset(GROUP, *AT), b"12o")
    channel.await_ends(registration, {AT: "no leader", NONE: "no leader"})
    assert store.exists(layout.awaited_end(GROUP, *NONE)) is not None
    assert channel.keep_ends(registration, {AT: 7, NONE: 9}) == {NONE: 9}
    assert store.get(layout.offset(GROUP, *NONE)).data == b"9"
    assert store.get(layout.offset(GROUP, *AT)).data == b"12o"


class Holding:
    """Fetchers that hold partitions without positions."""

    def __init__(self, *starting: TopicPartition) -> None:
        self.starting, self.begun = dict.fromkeys(starting, "no leader"), dict[TopicPartition, int]()

    def unresolved(self) -> dict[TopicPartition, str]:
        return self.starting

    def refused(self) -> dict[str, str]:
        return {}

    def listed_ends(self) -> dict[TopicPartition, int]:
        return {}

    def resolve(self, offsets: dict[TopicPartition, int]) -> None:
        self.begun |= offsets
        self.starting = {tp: why for tp, why in self.starting.items() if tp not in offsets}

    def begin(self, partitions: object) -> None:
        """They begin when they are resolved."""


def test_a_member_that_awaits_an_end_outlives_a_damaged_offset_and_goes_on_once_it_is_repaired(store: Store) -> None:
    store.delete(layout.offset(GROUP, *AT))
    ensure_group(store, GROUP)
    store.ensure_path(layout.unresolved(GROUP))
    channel, fetchers = ConsumerChannel(store, GROUP, "c1"), Holding(AT, NONE)
    registration = channel.register(b'{"version":1,"subscription":{"flights":1},"pattern":"static"}')
    assert isinstance(registration, Registration)
    member = UnresolvedPartitions(channel, fetchers)  # type: ignore[arg-type]
    member.step(registration, 0.0)
    store.create(layout.offset(GROUP, *AT), b"12o")
    store.create(layout.offset(GROUP, *NONE), b"9")
    member.step(registration, 10.0)
    assert fetchers.begun == {NONE: 9}
    store.set(layout.offset(GROUP, *AT), b"12")
    member.step(registration, 20.0)
    assert fetchers.begun == {NONE: 9, AT: 12}
