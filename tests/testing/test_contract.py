"""What an application may rely on, of a fake cluster as of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafka_coord import (
    Consumer,
    ConsumerClosed,
    ConsumerError,
    MembershipLost,
    NoOffset,
    NotFound,
    Record,
    TopicPartition,
)
from tests.testing.conftest import Cluster
from tests.waiting import eventually

pytest_plugins = ["kafka_coord.testing.fixtures"]

Fill = Callable[[int], list[bytes]]


def opened(cluster: Cluster, topic: str, **arguments: Any) -> Consumer[Any, Any]:
    defaults = {"group": topic, "topics": [topic], "auto_offset_reset": "earliest", "auto_commit_interval_ms": None}
    return cluster.consumer(**{**defaults, **arguments})


def read(consumer: Consumer[Any, Any], count: int) -> list[Record[Any, Any]]:
    records: list[Record[Any, Any]] = []
    while len(records) < count:
        record = consumer.poll(30.0)
        assert record is not None
        records.append(record)
    return records


def held(consumer: Consumer[Any, Any], count: int) -> None:
    eventually(lambda: len(consumer.assignment()) == count)


def test_a_record_is_consumed_when_the_application_comes_back_or_leaves_normally(
    cluster: Cluster, topic: str, fill: Fill
) -> None:
    values = fill(5)
    with pytest.raises(ZeroDivisionError), opened(cluster, topic, auto_commit_interval_ms=50) as consumer:
        next(1 / 0 for record in consumer if record.offset == 2)
    assert cluster.committed(topic, topic) == {0: 2}
    with opened(cluster, topic, auto_commit_interval_ms=50) as consumer:
        assert [record.value for record in read(consumer, 3)] == values[2:]
    assert cluster.committed(topic, topic) == {0: 5}
    with pytest.raises(ConsumerClosed):
        consumer.poll()


def test_a_partition_moves_without_a_record_lost_or_repeated(cluster: Cluster, topic: str, fill: Fill) -> None:
    values = fill(10)
    told: list[tuple[str, list[int]]] = []

    def tells(what: str) -> Callable[[frozenset[TopicPartition]], None]:
        return lambda partitions: told.append((what, sorted(p.partition for p in partitions)))

    callbacks = {"on_assign": tells("a assign"), "on_revoke": tells("a revoke")}
    with opened(cluster, topic, consumer_id="a", auto_commit_interval_ms=50, **callbacks) as first:
        held(first, 2)
        before = read(first, 4)
        with opened(cluster, topic, consumer_id="b", auto_commit_interval_ms=50, on_assign=tells("b assign")) as second:
            eventually(lambda: (first.poll(0.0), len(first.assignment()) == 1)[1] or None)
            held(second, 1)
            moved = first if TopicPartition(topic, 0) in first.assignment() else second
            assert told[0] == ("a assign", [0, 1])
            assert told[1][0] == "a revoke"
            rest = read(moved, 10 - first.stats.records) if first.stats.records < 10 else []
        eventually(lambda: len(first.assignment()) == 2)
    assert len(before) == 4
    assert first.stats.records + (second.stats.records if moved is second else 0) == 10
    assert cluster.committed(topic, topic) == {0: 10}
    assert not rest or rest[-1].value == values[-1]


def test_which_offsets_may_be_committed(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill(5)
    partition = TopicPartition(topic, 0)
    with opened(cluster, topic) as consumer:
        read(consumer, 3)
        consumer.commit({partition: 2})
        assert consumer.committed([partition, (topic, 1)]) == {partition: 2, TopicPartition(topic, 1): None}
        with pytest.raises(ConsumerError, match="handed out up to 3"):
            consumer.commit({partition: 4})
        with pytest.raises(ConsumerError, match="seek"):
            consumer.commit({partition: 1})
        with pytest.raises(MembershipLost, match="not assigned"):
            consumer.commit({(topic, 9): 1})
        consumer.commit(asynchronous=True).result(30)
        consumer.seek(partition, 1)
        assert [record.offset for record in read(consumer, 1)] == [1]
        consumer.commit()
    assert cluster.committed(topic, topic) == {0: 2}


def test_a_lost_membership_is_reported_and_uncommitted_records_are_delivered_again(
    cluster: Cluster, topic: str, fill: Fill
) -> None:
    fill(5)
    lost: list[frozenset[TopicPartition]] = []
    with opened(cluster, topic, on_lost=lost.append) as consumer:
        held(consumer, 2)
        read(consumer, 2)
        consumer.commit()
        read(consumer, 2)
        cluster.evict(consumer)
        eventually(lambda: consumer.stats.losses)
        with pytest.raises(MembershipLost, match="lost its membership"):
            consumer.commit()
        assert [record.offset for record in read(consumer, 3)] == [2, 3, 4]
        assert lost == [{TopicPartition(topic, 0), TopicPartition(topic, 1)}]


def test_where_a_consumer_begins_without_a_usable_committed_offset(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill(3)
    partition = TopicPartition(topic, 0)
    with opened(cluster, topic, auto_offset_reset="error") as consumer:
        with pytest.raises(NoOffset, match="seek"):
            consumer.poll(30.0)
        for one in sorted(consumer.assignment()):
            consumer.seek(one, "earliest")
        read(consumer, 1)
        consumer.commit()
    cluster.delete_records(topic, 0, 2)  # the committed offset is gone
    with opened(cluster, topic) as consumer:
        assert [record.offset for record in read(consumer, 1)] == [2]
    with opened(cluster, topic, group=f"{topic}-latest", auto_offset_reset="latest") as consumer:
        held(consumer, 2)
        eventually(lambda: consumer.committed([partition])[partition] == 3)
        cluster.produce(topic, b"new")
        assert [record.value for record in read(consumer, 1)] == [b"new"]


def test_on_latest_what_came_later_begins_at_its_beginning(cluster: Cluster, topic: str, fill: Fill) -> None:
    """What existed when the group first subscribed to it begins at its end."""
    fill(3)
    another = f"{topic}-later"
    with opened(cluster, topic, topics=[topic, another], auto_offset_reset="latest") as consumer:
        held(consumer, 2)
        eventually(lambda: None not in consumer.committed().values())
        cluster.create_topic(another)
        cluster.produce(another, b"first")
        assert [record.value for record in read(consumer, 1)] == [b"first"]
        cluster.create_topic(topic, 3)
        cluster.produce(topic, b"second", partition=2)
        assert [record.value for record in read(consumer, 1)] == [b"second"]


def test_positions_and_the_log(cluster: Cluster, topic: str) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    for minute in range(4):
        when_ms = int((began + timedelta(minutes=minute)).timestamp() * 1000)
        cluster.produce(topic, b"v", headers=(("h", b"1"),), timestamp_ms=when_ms)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with opened(cluster, topic) as consumer:
        held(consumer, 2)
        (record,) = read(consumer, 1)
        assert (record.timestamp_ms, record.timestamp_type) == (int(began.timestamp() * 1000), "create")
        assert (record.headers, record.key) == ((("h", b"1"),), None)
        assert consumer.lag() == {first: 3, second: 0}
        assert consumer.end_offsets([first]) == {first: 4}
        times = {first: began + timedelta(seconds=61), second: began}
        assert consumer.offsets_for_times(times) == {first: 2, second: None}
        with pytest.raises(NotFound):
            consumer.end_offsets([(topic, 9)])
        consumer.pause([first])
        consumer.seek(first, began + timedelta(minutes=3))
        assert consumer.poll(0.1) is None
        consumer.resume([first])
        assert [record.offset for record in read(consumer, 1)] == [3]
        assert consumer.position(first) == 4


def test_another_subscription_and_new_partitions(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill(2)
    another = f"{topic}-more"
    cluster.create_topic(another, 1)
    cluster.produce(another, b"7")
    with opened(cluster, topic, value_deserializer=int) as consumer:
        assert [record.value for record in read(consumer, 2)] == [0, 1]
        consumer.commit()
        consumer.subscribe(include=f"{topic}.*")
        assert [(record.topic, record.value) for record in read(consumer, 1)] == [(another, 7)]
        held(consumer, 3)
        consumer.stop()
        assert list(consumer) == []


def test_asyncio(cluster: Cluster, topic: str, fill: Fill) -> None:
    values = fill(50)

    async def run() -> list[bytes | None]:
        arguments = {"group": topic, "topics": [topic], "auto_offset_reset": "earliest"}
        async with cluster.async_consumer(**arguments) as consumer:
            got = []
            async for record in consumer:
                got.append(record.value)
                if len(got) == len(values):
                    consumer.stop()
            return got

    assert asyncio.run(run()) == values
    assert cluster.committed(topic, topic) == {0: 50}
