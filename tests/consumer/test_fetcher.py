"""Tests that a stream hands out only the records that it may. There is no Kafka: the test provides the messages."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from kafka_coord.consumer.fetcher import Fetcher
from kafka_coord.consumer.fetchers import KafkaFetchers
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.consumer.stream_partitions import HeldPartition, Run
from kafka_coord.model import StartPoint
from tests.consumer.fetched import PARTITION, messages


def test_without_a_valid_lease_no_record_is_handed_out_and_the_connector_is_woken() -> None:
    proven_until, woken = 0.0, []
    fetcher = Fetcher(
        0,
        reset=OffsetReset.EARLIEST,
        hands_out_until=lambda: proven_until,
        check=lambda: None,
        wake=lambda: woken.append(True),
    )
    holding = HeldPartition(PARTITION, 0)
    fetcher.partitions.live[PARTITION] = holding
    fetcher._runs.add(Run(holding, messages(3)))

    assert fetcher.take_one(0.0) is None
    assert fetcher.take(3, 0.0) == []
    assert woken

    proven_until = math.inf
    assert fetcher.take_one(0.0) is not None
    assert fetcher.partitions.fetch_points() == {PARTITION: (holding.serial, 2)}
    assert fetcher.records == 1
    assert len(fetcher.take(3, 0.0)) == 2


@pytest.fixture
def fetchers() -> Iterator[KafkaFetchers]:
    made = KafkaFetchers(
        {"group.id": "g", "log_level": 0},
        streams=2,
        reset=OffsetReset.EARLIEST,
        auto_commit=True,
        hands_out_until=lambda: math.inf,
        check=lambda: None,
        wake=lambda: None,
    )
    yield made
    made.close()


def test_a_threads_records_in_hand_count_until_that_thread_takes_the_next(fetchers: KafkaFetchers) -> None:
    fetchers.hold({PARTITION: StartPoint(0, 1)})
    fetchers.begin([PARTITION])
    _, stream = fetchers.streams
    (holding,) = stream.partitions.holdings()
    stream._runs.add(Run(holding, messages(3)))
    another = threading.Thread()

    assert len(stream.take(3, 0.0)) == 3
    assert fetchers.in_hand_of_others(another)
    assert not fetchers.in_hand_of_others(threading.current_thread())
    assert stream.take(3, 0.0) == []
    assert not fetchers.in_hand_of_others(another)


def test_clients_are_kept_while_the_brokers_do_not_change(fetchers: KafkaFetchers) -> None:
    fetchers.connect(("127.0.0.1:1",))
    admin = fetchers.log_offsets.admin
    fetchers.connect(("127.0.0.1:1",))
    assert fetchers.log_offsets.admin is admin


@pytest.mark.parametrize(
    ("code", "kept"), [(KafkaError.TOPIC_AUTHORIZATION_FAILED, True), (KafkaError._AUTO_OFFSET_RESET, False)]
)
def test_why_a_partition_cannot_be_read_is_not_lost_by_a_seek_in_between(code: int, *, kept: bool) -> None:
    """librdkafka tells it only once. What it says of an offset is outdated after a seek."""
    fetcher = Fetcher(
        0, reset=OffsetReset.EARLIEST, hands_out_until=lambda: math.inf, check=lambda: None, wake=lambda: None
    )
    holding = HeldPartition(PARTITION, 0)
    fetcher.partitions.live[PARTITION] = holding
    fetched_as = {PARTITION: holding.serial}
    holding.renew()
    failed = SimpleNamespace(error=lambda: KafkaError(code), topic=lambda: PARTITION.topic, partition=lambda: 0)
    fetcher._without_errors([failed], fetched_as)
    assert bool(fetcher._to_handle) == kept
