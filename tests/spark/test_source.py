"""Tests of a streaming query as a member of a group, with real Spark, brokers and ZooKeeper."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from kafka_coord.zk import layout
from tests.spark.queries import Seen, committed
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("elected")


def test_a_query_reads_a_topic_once_and_commits_it_to_the_group(kafka_cluster, query, numbered, make_topic):
    topic = make_topic(partitions=3)
    written = numbered(topic, 3)
    written.burst(900)
    seen = Seen()
    query("spark-once", topic, seen, maxOffsetsPerTrigger=250)
    eventually(lambda: len(seen.records) >= 900, within_s=150)
    assert Counter(seen.records) == Counter((p, o) for p in range(3) for o in range(300))
    assert sorted(map(int, seen.values)) == list(range(900))
    assert seen.batches >= 4, "no micro-batch may exceed maxOffsetsPerTrigger"
    eventually(lambda: committed(kafka_cluster.zookeeper, "spark-once") == {0: 300, 1: 300, 2: 300}, within_s=20)


def test_partitions_move_between_a_query_and_a_consumer_while_both_run(
    kafka_cluster, query, reader, numbered, make_topic
):
    topic = make_topic(partitions=4)
    producer = numbered(topic, 4, per_second=500).start()
    seen = Seen()
    query("spark-shared", topic, seen)
    eventually(lambda: len(seen.records) > 300, within_s=150)
    consumer = reader("spark-shared", topic, "plain")
    eventually(lambda: len(consumer.given) > 200, within_s=90)
    consumer.stop()
    counted = len(seen.records)
    eventually(lambda: len(seen.records) > counted + 500, within_s=90)
    total = sum(producer.stop().values())
    eventually(lambda: len(seen.records) + len(consumer.given) >= total, within_s=90)
    given = Counter(seen.records) + Counter(consumer.given)
    assert len(given) == total
    assert set(given.values()) == {1}, "a clean handover must not repeat records"


def test_a_query_that_is_stopped_and_started_continues_where_it_was(kafka_cluster, query, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    first = Seen()
    running = query("spark-again", topic, first)
    # progress is reported once the checkpoint has it; if the query stops during a micro-batch, that one is read again
    eventually(lambda: sum(one["numInputRows"] for one in running.recentProgress) >= 200, within_s=150)
    running.stop()
    numbered(topic, 2).burst(200)
    second = Seen()
    query("spark-again", topic, second)
    eventually(lambda: len(second.records) >= 200, within_s=150)
    assert Counter(first.records) + Counter(second.records) == Counter((p, o) for p in range(2) for o in range(200))


def test_a_micro_batch_that_failed_is_read_again(query, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    seen = Seen()

    def failing(rows: Any, batch_id: int) -> None:
        rows.count()
        raise RuntimeError("the sink is away")

    broken = query("spark-failed", topic, failing, consumerId="one")
    eventually(lambda: not broken.isActive, within_s=150)
    assert "the sink is away" in str(broken.exception())
    query("spark-failed", topic, seen, consumerId="one")
    eventually(lambda: len(seen.records) >= 200, within_s=150)
    assert Counter(seen.records) == Counter((p, o) for p in range(2) for o in range(100))


def test_a_query_that_is_stopped_leaves_its_group_at_once(store, query, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(100)
    seen = Seen()
    running = query("spark-leaves", topic, seen, sessionTimeoutMs=60_000, consumerId="one")
    eventually(lambda: len(seen.records) >= 100, within_s=150)
    assert store.children(layout.ids("spark-leaves")) == ("one",)
    running.stop()
    eventually(lambda: store.children(layout.ids("spark-leaves")) == (), within_s=15)


def test_an_available_now_query_ends_on_its_own_and_commits_its_offsets(
    spark, kafka_cluster, numbered, make_topic, tmp_path
):
    topic = make_topic(partitions=2)
    options = {"zookeeper": kafka_cluster.zookeeper, "group": "spark-run", "topics": topic, "maxOffsetsPerTrigger": 60}
    rows = spark.readStream.format("kafka_coord").options(**options, startingOffsets="earliest").load()
    seen = Seen()
    writer = rows.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / "checkpoint"))
    for times in (1, 2):
        numbered(topic, 2).burst(100)
        running = writer.trigger(availableNow=True).start()
        assert running.awaitTermination(150)
        assert running.exception() is None
        assert Counter(seen.records) == Counter((p, o) for p in range(2) for o in range(50 * times))
        said = {0: 50 * times, 1: 50 * times}  # at the latest when the planner ends, for which Spark does not wait
        eventually(lambda said=said: committed(kafka_cluster.zookeeper, "spark-run") == said, within_s=20)


def test_exact_ranges_are_read_as_a_batch(spark, kafka_cluster, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    ranges = json.dumps({topic: {"0": [[10, 20]], "1": [[0, 5], [90, 100]]}})
    rows = (
        spark.read.format("kafka_coord")
        .options(zookeeper=kafka_cluster.zookeeper, ranges=ranges)
        .load()
        .select("partition", "offset", "value", "timestampType")
        .collect()
    )
    assert sorted((row[0], row[1]) for row in rows) == [
        *((0, offset) for offset in range(10, 20)),
        *((1, offset) for offset in (*range(5), *range(90, 100))),
    ]
    assert {row[3] for row in rows} == {0}
