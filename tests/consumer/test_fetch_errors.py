"""Tests of where a partition continues after an error of its fetch. No I/O."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError

from kafka_coord.consumer import fetcher
from kafka_coord.consumer.fetcher import FetchErrors
from kafka_coord.consumer.fetchers import KafkaFetchers
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.consumer.stream_partitions import HeldPartition, StreamPartitions
from kafka_coord.errors import NoOffset
from kafka_coord.model import NO_OFFSET, TopicPartition

BEGIN, END = 60, 100
PARTITION = TopicPartition("flights", 0)
CUT_AT_FIVE = KafkaError(
    KafkaError._AUTO_OFFSET_RESET,
    "Partition log truncation detected at offset 10 (leader epoch 3): broker end offset is 5 (offset leader epoch 3). "
    "Reset to INVALID.: Local: Partition log truncation detected by broker (broker 2)",
)


@pytest.mark.parametrize(
    ("position", "reset", "continues_at"),
    [
        pytest.param(50, OffsetReset.LATEST, BEGIN, id="retention has overtaken it"),
        pytest.param(50, OffsetReset.EARLIEST, BEGIN, id="retention has overtaken it, earliest"),
        pytest.param(500, OffsetReset.LATEST, END, id="the log was truncated"),
        pytest.param(500, OffsetReset.EARLIEST, NO_OFFSET, id="the log was truncated, earliest"),
        pytest.param(80, OffsetReset.LATEST, 80, id="the log has reached the offset again"),
        pytest.param(END, OffsetReset.LATEST, END, id="the log has just reached the offset again"),
    ],
)
def test_after_an_offset_out_of_range_nothing_that_still_exists_is_skipped_needlessly(
    position: int, reset: OffsetReset, continues_at: int
) -> None:
    sought: list[int] = []
    partitions: Any = SimpleNamespace(
        seek=lambda _holding, offset: sought.append(offset), position=lambda holding: holding.position
    )
    client: Any = SimpleNamespace(bounds_of=lambda _partition: (BEGIN, END))
    never: Any = None  # no other trouble is reported
    holding: Any = SimpleNamespace(partition=TopicPartition("flights", 0), position=position)
    FetchErrors(partitions, client, reset, never).handle(holding, KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
    assert sought == [continues_at]


@pytest.mark.parametrize("reset", OffsetReset)
def test_a_partition_that_starts_at_its_beginning_does_so_also_if_that_has_just_moved(
    reset: OffsetReset, caplog: pytest.LogCaptureFixture
) -> None:
    """One that came later, on latest, or after seek("earliest"): retention deletes what was the beginning when it was
    listed, before the first fetch."""
    holding, partitions = held(NO_OFFSET)
    client: Any = SimpleNamespace(bounds_of=lambda _partition: (BEGIN, END))
    before = holding.serial
    errors = FetchErrors(partitions, client, reset, lambda _partition, _error: None)
    errors.handle(holding, KafkaError(KafkaError._AUTO_OFFSET_RESET, "Broker: Offset out of range"))
    partitions.raise_failing()
    assert (holding.position, holding.fetch_from) == (NO_OFFSET, OFFSET_BEGINNING)
    assert holding.serial > before, "it is fetched anew"
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_an_error_that_the_broker_repeats_at_each_fetch_is_said_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a batch that its disk has damaged: ten fetches a second fail."""
    clock = [1_000.0]
    monkeypatch.setattr(fetcher, "_monotonic", lambda: clock[0])
    holding, partitions = held(7)
    errors = FetchErrors(partitions, NoBroker(), OffsetReset.LATEST, lambda _partition, _error: None)  # type: ignore[arg-type]
    for _ in range(1_200):
        errors.handle(holding, KafkaError(KafkaError.UNKNOWN))
        clock[0] += 0.1
    errors.handle(holding, KafkaError(KafkaError._BAD_MSG))
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [("UNKNOWN" in one, "_BAD_MSG" in one) for one in told] == [(True, False), (True, False), (False, True)]
    assert holding.position == 7, "it is tried again"


class NoBroker:
    """Fails the test if the broker is asked where the log ends."""

    def bounds_of(self, key: object) -> tuple[int, int]:
        raise AssertionError(f"asked for the bounds of {key}")


def held(position: int) -> tuple[HeldPartition, StreamPartitions]:
    partitions = StreamPartitions(wake=lambda: None, changed=lambda: None)
    holding = HeldPartition(PARTITION, position)
    partitions.hold([holding])
    partitions.begin([PARTITION])
    return holding, partitions


def after_the_cut(position: int, reset: OffsetReset) -> tuple[HeldPartition, StreamPartitions]:
    holding, partitions = held(position)
    errors = FetchErrors(partitions, NoBroker(), reset, lambda _partition, _error: None)  # type: ignore[arg-type]
    errors.handle(holding, CUT_AT_FIVE)
    return holding, partitions


@pytest.mark.parametrize("reset", [OffsetReset.EARLIEST, OffsetReset.LATEST])
def test_the_reset_goes_to_the_end_of_the_epoch_and_says_so(
    reset: OffsetReset, caplog: pytest.LogCaptureFixture
) -> None:
    holding, _ = after_the_cut(8, reset)
    assert holding.position == 5
    assert holding.may_go_back
    (told,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert "the log of flights-0 was cut at 5, and the last 3 offsets before 8 are gone" in told


def test_the_application_is_told_if_so_configured() -> None:
    _, partitions = after_the_cut(8, OffsetReset.ERROR)
    with pytest.raises(NoOffset, match=r"was cut at 5.*seek"):
        partitions.raise_failing()


@pytest.mark.parametrize("reset", OffsetReset)
def test_an_application_that_had_not_come_so_far_goes_on_where_it_was(
    reset: OffsetReset, caplog: pytest.LogCaptureFixture
) -> None:
    holding, partitions = after_the_cut(4, reset)
    partitions.raise_failing()
    assert holding.position == 4
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_seek_beyond_the_time_of_the_last_record_says_that_it_ends_up_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sought: list[object] = []
    fetchers: Any = SimpleNamespace(
        held=lambda _partition: None,
        log_offsets=SimpleNamespace(at_times=lambda times: {tp: 7 if at < 1_000 else None for tp, at in times.items()}),
        seek=lambda _partition, target: sought.append(target),
    )
    KafkaFetchers.seek_to_time(fetchers, PARTITION, 999)
    assert (sought, caplog.messages) == ([7], [])
    KafkaFetchers.seek_to_time(fetchers, PARTITION, 1_000)
    assert sought == [7, OffsetReset.LATEST]
    assert "no record of partition=flights-0 is at or after 1000 ms" in caplog.messages[0]
