"""Consumers on `latest` skip nothing that was produced for their group: later partitions, later topics, and what is
left after retention has overtaken the group."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Until
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_coord import Consumer
from kafka_coord import TopicPartition as Held
from kafka_coord.spark.member import QueryMember
from kafka_coord.spark.options import SourceOptions
from kafka_coord.zk import connect, layout
from tests.coordinator.harness import seen
from tests.end_to_end.parties import coordinator
from tests.waiting import eventually
from tests.waiting import write as written

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]
_groups = itertools.count(1)
COUNT = 100

Make = Callable[..., Consumer]


@pytest.fixture
def make(kafka_cluster) -> Iterator[Make]:
    """Makes consumers of one group, on `latest` by default, and closes them."""
    group, made = f"later-{next(_groups)}", []

    def consumer(*, exists: bool = True, **given) -> Consumer:
        arguments = {"zookeeper": kafka_cluster.zookeeper, "group": group, "auto_offset_reset": "latest"} | given
        seen(service, given.get("topics", ()) if exists else ())
        made.append(Consumer(**arguments))
        return made[-1]

    with coordinator(kafka_cluster.zookeeper) as service:
        eventually(lambda: service.leads)
        yield consumer
        for one in made:
            one.close()


@pytest.fixture
def produce(kafka_cluster) -> Callable[[str, int, int], None]:
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "log_level": 0})

    def write(topic: str, partition: int, count: int) -> None:
        written(producer, topic, partition, [b"%d" % number for number in range(count)])

    return write


def grow(kafka_cluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


def assigned(consumer: Consumer, partitions: int) -> None:
    eventually(lambda: consumer.poll(0.05) or len(consumer.assignment()) == partitions)


def grown_while_nobody_read(make: Make, make_topic, kafka_cluster, produce) -> tuple[str, str]:
    """A topic whose second partition came, with records, after the group's first member had left; and the group."""
    topic = make_topic(partitions=1)
    first = make(topics=[topic])
    assigned(first, 1)
    first.close()
    grow(kafka_cluster, topic, 2)
    produce(topic, 1, COUNT)
    return topic, first.group


def offsets_read(consumer: Consumer, count: int, topic: str, partition: int) -> list[int]:
    """Reads until ``count`` records of the partition have come, and then for half a second more."""
    read: list[int] = []
    until = time.monotonic() + 30
    while time.monotonic() < until:
        record = consumer.poll(0.1)
        if record is not None and (record.topic, record.partition) == (topic, partition):
            read.append(record.offset)
            if len(read) == count:
                until = time.monotonic() + 0.5
    return read


def test_a_partition_that_was_added_while_nobody_read_is_read_from_its_beginning(
    make: Make, make_topic, kafka_cluster, produce
) -> None:
    topic, _ = grown_while_nobody_read(make, make_topic, kafka_cluster, produce)
    assert offsets_read(make(topics=[topic]), COUNT, topic, 1) == list(range(COUNT))


def test_the_option_turns_the_rule_off(make: Make, make_topic, kafka_cluster, produce) -> None:
    topic, _ = grown_while_nobody_read(make, make_topic, kafka_cluster, produce)
    again = make(topics=[topic], auto_offset_reset_new_partitions="latest")
    eventually(lambda: again.poll(0.05) or (len(again.assignment()) == 2 and again.position(Held(topic, 1)) == COUNT))
    produce(topic, 1, 1)
    assert offsets_read(again, 1, topic, 1) == [COUNT]


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", COUNT)])
def test_a_query_reads_a_later_partition_as_its_option_says(
    make: Make, make_topic, kafka_cluster, produce, reset: str, first: int
) -> None:
    topic, group = grown_while_nobody_read(make, make_topic, kafka_cluster, produce)
    options = {"zookeeper": kafka_cluster.zookeeper, "group": group, "topics": topic}
    query = QueryMember(SourceOptions.of(options | {"autoOffsetResetNewPartitions": reset}))
    later = Held(topic, 1)

    def planned() -> tuple[tuple[int, int], ...]:
        query.holdings.done()
        return query.plan(2 * COUNT).of_partition(later)

    try:
        eventually(lambda: (first == 0 or not planned()) and query.holdings.wanted().get(later, -1) in {-1, first})
        eventually(lambda: first == 0 or query.holdings.stored_up_to(later) == first)
        produce(topic, 1, 1)
        assert eventually(planned)[0][0] == first
    finally:
        query.close()


def test_a_topic_that_appears_under_a_pattern_is_read_from_its_beginning(make: Make, make_topic, produce) -> None:
    before = make_topic(partitions=1)
    produce(before, 0, COUNT)
    prefix = re.match(r"[a-z]+", before)[0]
    consumer = make(include=f"{prefix}.*")
    eventually(lambda: consumer.poll(0.05) or any(tp.topic == before for tp in consumer.assignment()))
    later = make_topic(partitions=1)
    produce(later, 0, COUNT)
    assert offsets_read(consumer, COUNT, later, 0) == list(range(COUNT))
    produce(before, 0, 1)
    assert offsets_read(consumer, 1, before, 0) == [COUNT], "what existed before is read from its end"


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by pattern"])
def test_the_first_topic_of_a_group_that_waited_for_it_is_read_from_its_beginning(
    make: Make, make_topic, kafka_cluster, produce, *, named: bool
) -> None:
    topic = f"awaited-{next(_groups)}"
    consumer = make(topics=[topic], exists=False) if named else make(include=f"{topic}.*")
    with closing(connect(kafka_cluster.zookeeper)) as store:  # until the coordinator has recorded the subscription
        path = layout.offsets(consumer.group)
        eventually(lambda: store.exists(path) and store.get(path).data)
    make_topic(partitions=1, name=topic)
    produce(topic, 0, COUNT)
    assert offsets_read(consumer, COUNT, topic, 0) == list(range(COUNT))


def test_what_is_left_after_retention_is_read_and_the_gone_records_are_counted(
    make: Make, make_topic, kafka_cluster, produce, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(partitions=1)
    first = make(topics=[topic])
    eventually(lambda: first.poll(0.05) or (first.assignment() and first.position(Held(topic, 0)) == 0))
    first.close()  # commits 0
    produce(topic, 0, 6 * COUNT)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    (done,) = admin.delete_records([Until(topic, 0, COUNT)]).values()
    done.result(30)
    with caplog.at_level(logging.WARNING):
        assert offsets_read(make(topics=[topic]), 5 * COUNT, topic, 0) == list(range(COUNT, 6 * COUNT))
    told = [one.getMessage() for one in caplog.records if "unread records are gone" in one.getMessage()]
    assert len(told) == 1
    assert f"{COUNT} unread records are gone" in told[0]
