"""Tests of the metrics and progress reports of queries."""

from __future__ import annotations

import json
import logging
import urllib.request
import uuid
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryProgress

from kafka_coord.model import TopicPartition
from kafka_coord.spark.progress import GroupProgressListener, watch
from kafka_coord.spark.ranges import OffsetRanges, PlannedBatch
from kafka_coord.zk import layout
from tests.fuzzing.tools import odd_cluster
from tests.spark.queries import Seen
from tests.waiting import eventually

Values = dict[tuple[str, ...], float]


def values(text: str) -> Values:
    """Samples by name and label values, in order of the labels, such as ``("kafka_coord_query_rows_total", …)``."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def progress(batch: int, ranges: OffsetRanges, latest: dict[str, Any], **more: Any) -> QueryProgressEvent:
    """A progress event like Spark's."""
    end = PlannedBatch("delays", batch, ranges, "q1", 1_700_000_000_000).to_json()
    rates = {"numInputRows": ranges.size, "inputRowsPerSecond": 100.0, "processedRowsPerSecond": 250.0}
    ours = {"description": "ours", "startOffset": None, "endOffset": end, "latestOffset": latest, **rates}
    other = {"description": "rate", "startOffset": 0, "endOffset": 7, "latestOffset": 7, **rates}
    written = {
        "id": str(uuid.UUID(int=1)),
        "runId": str(uuid.UUID(int=2)),
        "name": "delays-by-hour",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": batch,
        "batchDuration": 40_000,
        "durationMs": {"addBatch": 39_000, "latestOffset": 400, "triggerExecution": 40_000},
        "stateOperators": [],
        "sources": [ours, other],
        "sink": {"description": "sink", "numOutputRows": -1},
        **more,
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(json.loads(json.dumps(written))))


def logs(ranges: dict[str, tuple[int, int]]) -> dict[str, Any]:
    return {"flights": {partition: {"start": start, "end": end} for partition, (start, end) in ranges.items()}}


def test_offsets_of_which_one_cannot_be_read_do_not_count_as_readable() -> None:
    listener = GroupProgressListener()
    with odd_cluster(Random(1)) as cluster:
        offsets, is_readable = listener._read_committed(cluster.tree.store, ["delays"])
        assert (offsets, is_readable) == ({"delays": {TopicPartition("flights", 0): 5}}, True)
        cluster.tree.put(layout.offset("delays", "flights", 1), b"seven")
        again = GroupProgressListener()._read_committed(cluster.tree.store, ["delays"])
        assert again == ({"delays": {TopicPartition("flights", 0): 5}}, False)


def told_by(listener: GroupProgressListener) -> Values:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(listener)
    return values(generate_latest(registry).decode())


def test_each_partitions_lag_is_that_of_the_last_micro_batch_and_disappears_with_the_partition(tmp_path: Path):
    file = tmp_path / "query.prom"
    listener = GroupProgressListener(file=file)
    a, b = TopicPartition("flights", 0), TopicPartition("flights", 1)
    listener.onQueryProgress(
        progress(1, OffsetRanges({a: [(0, 10)], b: [(5, 8)]}), logs({"0": (0, 15), "1": (0, 8), "2": (0, 3)}))
    )
    found = told_by(listener)
    where = ("delays", "0", "delays-by-hour", "flights")
    assert found["kafka_coord_query_read_offset", *where] == 10
    assert found["kafka_coord_query_partition_lag_records", *where] == 5
    assert found["kafka_coord_query_partition_lag_records", "delays", "1", "delays-by-hour", "flights"] == 0
    assert found["kafka_coord_query_rows_total", "delays", "delays-by-hour"] == 13
    assert values(file.read_text()) == found

    listener.onQueryProgress(progress(2, OffsetRanges({a: [(10, 15)]}), logs({"0": (17, 20)})))
    found = told_by(listener)
    assert found["kafka_coord_query_partition_lag_records", *where] == 3
    assert found["kafka_coord_query_partition_gone_records", *where] == 2, "the log starts two records after the query"
    assert ("kafka_coord_query_partition_lag_records", "delays", "1", "delays-by-hour", "flights") not in found


def test_the_log_line_for_a_slow_micro_batch_names_its_longest_part(caplog: pytest.LogCaptureFixture):
    listener = GroupProgressListener(slow_s=30)
    ranges = OffsetRanges({TopicPartition("flights", 0): [(0, 10)]})
    with caplog.at_level(logging.WARNING):
        listener.onQueryProgress(progress(1, ranges, logs({"0": (0, 10)})))
    assert "micro-batch 1 of query=delays-by-hour group=delays took 40.0 s" in caplog.text
    assert "longest: addBatch 39.0 s" in caplog.text
    caplog.clear()
    listener.onQueryProgress(progress(2, ranges, logs({"0": (0, 10)}), batchDuration=2_000))
    assert not caplog.text
    assert told_by(listener)["kafka_coord_query_slow_batches_total", "delays", "delays-by-hour"] == 1


def test_a_failed_query_fails_the_health_check(caplog: pytest.LogCaptureFixture):
    listener = GroupProgressListener()
    listener.onQueryProgress(progress(1, OffsetRanges(), {}))
    assert listener.healthy()[0]
    listener.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(int=1), uuid.UUID(int=2), "boom\nthe sink is away", None))
    assert listener.healthy() == (False, listener.healthy()[1])
    assert listener.healthy()[1]["queries"] == {"delays-by-hour": "failed"}
    assert "the sink is away" in caplog.text


def test_a_driver_serves_metrics_of_its_queries_and_the_groups_lag(
    spark, kafka_cluster, elected, query, numbered, make_topic
):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(300)
    seen = Seen()
    with watch(spark, zookeeper=kafka_cluster.zookeeper, listen="127.0.0.1:0", slow_s=0.001) as watching:
        running = query("spark-watched", topic, seen, maxOffsetsPerTrigger=100)

        def scraped() -> Values:
            with urllib.request.urlopen(f"http://127.0.0.1:{watching.port}/metrics", timeout=10) as answer:
                return values(answer.read().decode())

        name = str(running.id)
        rows = ("kafka_coord_query_rows_total", "spark-watched", name)
        eventually(lambda: scraped().get(rows) == 300, within_s=150, every_s=0.3)
        lag = ("kafka_coord_group_partition_lag_records", "spark-watched", "1", topic)
        eventually(lambda: scraped().get(lag) == 0, within_s=30, every_s=0.3)
        found = scraped()
        assert found["kafka_coord_group_committed_offset", "spark-watched", "1", topic] == 150
        assert found["kafka_coord_query_partition_lag_records", "spark-watched", "0", name, topic] == 0
        assert found["kafka_coord_query_slow_batches_total", "spark-watched", name] >= 3
        latest = [source.latestOffset for source in running.lastProgress.sources]
        assert json.loads(latest[0]) == {topic: {number: {"start": 0, "end": 150} for number in "01"}}
        running.stop()
        eventually(lambda: scraped()["kafka_coord_query_active", "spark-watched", name] == 0, within_s=20)
