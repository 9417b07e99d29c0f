"""Tests of queries whose topic or coordinator does not exist, with real Spark, brokers and ZooKeeper."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.errors import NotFound
from kafka_coord.model import TopicPartition
from kafka_coord.spark.member import QueryMember
from kafka_coord.spark.options import SourceOptions
from kafka_coord.spark.ranges import OffsetRanges, PlannedBatch
from tests.spark.conftest import source_options
from tests.waiting import eventually

_groups = itertools.count(1)


@pytest.fixture
def joined(kafka_cluster: Any) -> Iterator[Callable[..., QueryMember]]:
    """Members of queries, without Spark."""
    members: list[QueryMember] = []

    def join(topic: str, **options: Any) -> QueryMember:
        given = source_options(kafka_cluster.zookeeper, f"spark-missing-{next(_groups)}", topic, options)
        if "subscribePattern" in options:
            del given["topics"]
        members.append(QueryMember(SourceOptions.of({name: str(value) for name, value in given.items()})))
        return members[-1]

    yield join
    for one in members:
        one.close()


@pytest.mark.usefixtures("elected")
def test_a_missing_topic_ends_a_run_over_what_exists_at_once(spark: Any, kafka_cluster: Any, tmp_path: Path) -> None:
    given = source_options(kafka_cluster.zookeeper, "spark-typo", "filghts", {})
    rows = spark.readStream.format("kafka_coord").options(**given).load()
    writer = rows.writeStream.foreachBatch(lambda _rows, _id: None).option("checkpointLocation", str(tmp_path))
    running = writer.trigger(availableNow=True).start()
    eventually(lambda: not running.isActive, within_s=150)
    assert "do not exist: filghts" in str(running.exception())


@pytest.mark.usefixtures("elected")
def test_onDataLoss_reads_the_topics_that_exist_and_says_which_do_not(  # noqa: N802  Spark's name
    joined: Callable[..., QueryMember], make_topic: Any, numbered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(partitions=1)
    numbered(topic, 1).burst(10)
    assert list(joined(f"{topic},filghts", onDataLoss="earliest").ends_now().values()) == [10]
    assert "do not exist (yet): filghts" in caplog.text
    with pytest.raises(NotFound, match="filghts"):
        joined(f"{topic},filghts").ends_now()


@pytest.mark.usefixtures("elected")
def test_a_pattern_that_matches_nothing_is_said_and_ends_at_once(
    joined: Callable[..., QueryMember], caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    member = joined("", subscribePattern="filghts-[0-9]{1,3}")
    assert member.ends_now() == {}
    assert time.monotonic() - began < 10
    eventually(lambda: "filghts-[0-9]{1,3}" in caplog.text, within_s=10)


@pytest.mark.usefixtures("elected")
def test_a_running_query_says_once_that_it_waits_for_a_topic(
    joined: Callable[..., QueryMember], caplog: pytest.LogCaptureFixture
) -> None:
    member = joined("not-yet", waitMs=1_000)
    member.await_partitions()
    for _ in range(20):
        assert not member.plan(100)
    said = [one for one in caplog.records if one.levelno >= logging.WARNING and "not-yet" in one.getMessage()]
    assert len(said) == 1


def test_a_run_without_a_coordinator_fails_and_says_so(
    joined: Callable[..., QueryMember], make_topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    member = joined(make_topic(partitions=1), waitMs=7_000)
    with pytest.raises(NotFound, match="no coordinator is elected"):
        member.ends_now()
    assert "no coordinator is elected" in caplog.text


@pytest.mark.usefixtures("elected")
@pytest.mark.parametrize("is_available_now", [False, True])
@pytest.mark.parametrize(("start", "where", "first"), [("latest", "end", 10), ("earliest", "beginning", 0)])
def test_a_query_whose_group_has_forgotten_its_offsets_says_where_it_continues(
    joined: Callable[..., QueryMember],
    make_topic: Any,
    numbered: Any,
    caplog: pytest.LogCaptureFixture,
    start: str,
    where: str,
    first: int,
    *,
    is_available_now: bool,
) -> None:
    topic = make_topic(partitions=1)
    numbered(topic, 1).burst(10)
    member = joined(topic, startingOffsets=start)
    partition = TopicPartition(topic, 0)
    if is_available_now:
        member.ends_now()
    member.resume_behind(PlannedBatch("any", 1, OffsetRanges({partition: [(0, 5)]}), "", 0))
    member.await_partitions()
    member.plan(100)
    eventually(lambda: member.plan(1) is not None and member.holdings.stored_up_to(partition) == first)
    said = [one.getMessage() for one in caplog.records if "the checkpoint covers" in one.getMessage()]
    assert said == [f"the checkpoint covers {topic}-0 up to 5, but the group no longer stores an offset for it:"
                    f" continuing at its {where}"]  # fmt: skip
