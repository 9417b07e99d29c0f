"""Tests of reading stored offsets for consumers."""

from __future__ import annotations

from typing import Any

from kafka_coord.errors import StoreUnavailable
from kafka_coord.frontends.members.writes import CommittedReader
from kafka_coord.model import TopicPartition


def test_a_request_that_is_waiting_at_the_end_of_the_term_is_answered() -> None:
    """Until it is answered, a Kafka client sends nothing else on its connection."""
    reader: CommittedReader[int] = CommittedReader(lambda _group, wanted: dict.fromkeys(wanted, 7))
    answers: list[Any] = []
    reader.ask("delays", lambda: [TopicPartition("flights", 0)], answers.append)
    reader.close(StoreUnavailable("the term has ended"))
    assert [type(one) for one in answers] == [StoreUnavailable]
    assert not reader.step()
    assert len(answers) == 1
