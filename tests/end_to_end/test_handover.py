"""Real brokers, real ZooKeeper, the library's consumers: the effect of a rebalance on records (invariants 6 and 8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.zk import connect, layout
from tests.end_to_end.parties import all_given, coordinator, expected, owners, wait_for_all
from tests.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

PARTITIONS = 12


@pytest.fixture
def zookeeper_of_kafka(kafka_cluster) -> Iterator[str]:
    with coordinator(kafka_cluster.zookeeper) as service:
        eventually(lambda: service.leads)
        yield kafka_cluster.zookeeper


def committed(zookeeper: str, group: str, topic: str) -> dict[int, int]:
    store = connect(zookeeper)
    try:
        return {
            int(p): int(store.get(layout.offset(group, topic, int(p))).data)
            for p in store.children(layout.topic_offsets(group, topic))
        }
    finally:
        store.close()


def test_joining_and_leaving_repeats_nothing_and_loses_nothing(
    zookeeper_of_kafka, kafka_cluster, make_topic, reader, numbered
):
    topic = make_topic(partitions=PARTITIONS)
    producer = numbered(topic, PARTITIONS).start()
    readers = [reader("handover", topic, "r1")]
    eventually(lambda: owners(readers) == [12])
    readers.append(reader("handover", topic, "r2"))
    eventually(lambda: owners(readers) == [6, 6])
    readers.append(reader("handover", topic, "r3"))
    eventually(lambda: owners(readers) == [4, 4, 4])
    eventually(lambda: len(readers[2].given) > 200)
    readers[0].stop()
    eventually(lambda: owners(readers[1:]) == [6, 6])
    written = producer.stop()
    wait_for_all(readers, written)
    for one in readers[1:]:
        one.stop()
    given = all_given(readers)
    assert set(given) == expected(written), "every record was given, and none that does not exist"
    assert [record for record, times in given.items() if times > 1] == [], "none was given twice"
    for one in readers:
        for partition in range(PARTITIONS):
            offsets = [o for p, o in one.given if p == partition]
            assert offsets == sorted(offsets), "in order within a partition"
    assert committed(zookeeper_of_kafka, "handover", topic) == dict(written)


def test_offsets_survive_the_end_of_every_process(kafka_cluster, make_topic, reader, numbered):
    topic = make_topic(partitions=3)
    producer = numbered(topic, 3)
    producer.burst(300)
    with coordinator(kafka_cluster.zookeeper, 101):
        first = reader("survive", topic, "r1")
        wait_for_all([first], producer.written)
        first.stop()
    producer.burst(300)
    with coordinator(kafka_cluster.zookeeper, 102):
        second = reader("survive", topic, "r9")
        eventually(lambda: len(second.given) >= 300)
        second.stop()
    given = all_given([first, second])
    assert set(given) == expected(producer.stop())
    assert set(given.values()) == {1}


def test_new_partitions_are_read_from_their_first_record(
    zookeeper_of_kafka, kafka_cluster, make_topic, topics, reader, numbered
):
    topic = make_topic(partitions=2)
    one = reader("grow", topic, "r1")
    eventually(lambda: owners([one]) == [2])
    topics.add_partitions(topic, 4)
    producer = numbered(topic, 4)
    producer.burst(400)
    wait_for_all([one], producer.written)
    one.stop()
    assert set(all_given([one])) == expected(producer.stop())


def test_consumers_continue_after_a_broker_dies_and_returns(
    zookeeper_of_kafka, kafka_cluster, make_topic, reader, numbered
):
    topic = make_topic(partitions=6, replication=3)
    producer = numbered(topic, 6, per_second=1_000).start()
    readers = [reader("ride", topic, name) for name in ("r1", "r2")]
    eventually(lambda: owners(readers) == [3, 3])
    broker = kafka_cluster.brokers[2]
    broker.kill()
    try:
        before = len(readers[0].given) + len(readers[1].given)
        eventually(lambda: len(readers[0].given) + len(readers[1].given) > before + 1_000, within_s=40)
    finally:
        broker.start()
    written = producer.stop()
    wait_for_all(readers, written)
    for one in readers:
        one.stop()
    given = all_given(readers)
    assert expected(written) <= set(given), (
        "producers retry, so a partition may hold more; nothing acknowledged is lost"
    )
    assert max(given.values()) == 1, "nobody was rebalanced, so nothing is given twice"
