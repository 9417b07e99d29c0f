"""What librdkafka does that nobody expects: versions that may hang, and offsets that no broker has told."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned

from kafka_coord.consumer import fetchers
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.kafka.librdkafka import LogOffsets, log_bounds
from kafka_coord.model import TopicPartition


def make_fetchers() -> fetchers.KafkaFetchers:
    return fetchers.KafkaFetchers(
        {},
        streams=1,
        reset=OffsetReset.EARLIEST,
        auto_commit=True,
        hands_out_until=lambda: float("inf"),
        check=lambda: None,
        wake=lambda: None,
    )


@pytest.mark.parametrize(("name", "number", "said"), [("2.9.0", 0x020900FF, 0), ("2.16.1", 0x021001FF, 1)])
def test_a_warning_is_logged_about_a_librdkafka_that_may_hang(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, number: int, said: int
) -> None:
    monkeypatch.setattr(fetchers, "libversion", lambda: (name, number))
    make_fetchers()
    assert sum(f"librdkafka {name}" in message for message in caplog.messages) == said


def test_no_warning_is_logged_about_the_installed_librdkafka(caplog: pytest.LogCaptureFixture) -> None:
    make_fetchers()
    assert caplog.messages == []


def test_an_offset_that_no_broker_has_told_is_a_failure_that_passes() -> None:
    """librdkafka returns -1001 without an error while a partition's leader goes away."""
    offsets = LogOffsets(uncommitted=False)
    answers: dict[Assigned, Future[Any]] = {Assigned("t", number): Future() for number in range(2)}
    offsets.admin = cast(Any, SimpleNamespace(list_offsets=lambda *_, **__: answers))
    told = offsets.ask_ends([TopicPartition("t", 0), TopicPartition("t", 1)])
    for answer, end in zip(answers.values(), (7, OFFSET_INVALID), strict=True):
        answer.set_result(SimpleNamespace(offset=end))
    assert told[TopicPartition("t", 0)].result().offset == 7
    failure = told[TopicPartition("t", 1)].exception()
    assert isinstance(failure, KafkaException)
    assert failure.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
    for bounds in (None, (0, OFFSET_INVALID)):
        client = cast(Any, SimpleNamespace(get_watermark_offsets=lambda *_, bounds=bounds, **__: bounds))
        with pytest.raises(KafkaException) as raised:
            log_bounds(client, Assigned("t", 0), 1.0)
        assert raised.value.args[0].retriable()


def test_who_asks_for_rights_gets_an_answer_whatever_librdkafka_raises() -> None:
    """A member that never heard would never ask for the topic again."""
    offsets = LogOffsets(uncommitted=False)
    offsets.admin = cast(Any, SimpleNamespace())  # it has no method at all
    failure = offsets.ask_rights(["t"])["t"].exception(10)
    assert isinstance(failure, KafkaException)
    assert "list_topics" in failure.args[0].str()
