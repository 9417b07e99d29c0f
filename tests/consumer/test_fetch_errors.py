"""Tests of where a partition continues after an error of its fetch. No I/O."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kafka_coord.consumer.fetch_errors import FetchErrors
from kafka_coord.consumer.offset_reset import OffsetReset
from kafka_coord.model import NO_OFFSET, TopicPartition

BEGIN, END = 60, 100


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
    partitions: Any = SimpleNamespace(seek=lambda _holding, offset: sought.append(offset))
    client: Any = SimpleNamespace(bounds_of=lambda _partition: (BEGIN, END))
    never: Any = None  # no other trouble is reported
    holding: Any = SimpleNamespace(partition=TopicPartition("flights", 0), position=position)
    FetchErrors(partitions, client, reset, never).handle(holding, KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
    assert sought == [continues_at]
