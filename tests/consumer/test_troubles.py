"""Partitions that a consumer cannot read: what librdkafka's answers mean. No brokers: the answers are the test's."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_coord.consumer.assigned_client import AssignedClient
from kafka_coord.consumer.troubles import Troubles
from kafka_coord.model import TopicPartition

SALARIES = TopicPartition("salaries", 0)


def failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


class Answers:
    """The brokers' answers: no partition has a leader, and ``rights`` is the answer to a question about rights."""

    def __init__(self, rights: Future[Any]) -> None:
        self._rights = rights

    def ask_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
        return {partition: failed(KafkaError._NOENT) for partition in partitions}

    def ask_rights(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        return dict.fromkeys(topics, self._rights)


def troubles_with(rights: Future[Any]) -> Troubles:
    answers: Any = Answers(rights)
    return Troubles(answers, wake=lambda: None, readable=lambda _: None)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "cannot read" in record.getMessage()]


def test_a_topic_that_may_not_be_described_is_refused_although_librdkafka_finds_only_no_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    troubles = troubles_with(failed(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    troubles.start_at_end(SALARIES)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            troubles.step()
    assert set(troubles.refused) == {"salaries"}
    assert "TOPIC_AUTHORIZATION_FAILED" in troubles.current[SALARIES]
    (line,) = told(caplog)
    assert "TOPIC_AUTHORIZATION_FAILED" in line


def test_a_partition_without_a_leader_is_not_refused_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    described: Future[Any] = Future()
    described.set_result(SimpleNamespace(authorized_operations=None))
    troubles = troubles_with(described)
    troubles.start_at_end(SALARIES)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            troubles.step()
    assert troubles.refused == {}
    (line,) = told(caplog)
    assert "_NOENT" in line


class Client:
    """A librdkafka client that may not describe any topic, and reports no error for its partitions."""

    def incremental_assign(self, _partitions: list[Any]) -> None: ...

    def poll(self, _timeout_s: float) -> None: ...

    def close(self) -> None: ...

    def list_topics(self, topic: str, timeout: float) -> Any:
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={}, error=error)})


def test_a_partition_with_a_known_offset_is_refused_if_its_topic_may_not_be_described() -> None:
    refused: list[tuple[TopicPartition, str]] = []
    client = AssignedClient(
        lambda: {SALARIES: (1, 7)}, lambda partition, error: refused.append((partition, error.name()))
    )
    librdkafka: Any = Client()
    client.use(librdkafka)
    client.fetch(0.0, 1, lambda _messages, _assigned: None)
    client.close()
    assert refused == [(SALARIES, "TOPIC_AUTHORIZATION_FAILED")]


class Silent(Client):
    """A librdkafka client that delivers nothing of a partition, which has a leader."""

    def __init__(self) -> None:
        self.leader = 1
        self.queued: list[Any] = []

    def poll(self, _timeout_s: float) -> Any:
        return self.queued.pop() if self.queued else None

    def list_topics(self, topic: str, timeout: float) -> Any:
        partition = SimpleNamespace(error=None, leader=self.leader)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={SALARIES.partition: partition}, error=None)})


def test_another_client_fetches_a_partition_of_which_nothing_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("kafka_coord.consumer.assigned_client.time.monotonic", lambda: now)
    renewed: list[float] = []
    client = AssignedClient(lambda: {SALARIES: (1, 7)}, renew=lambda: renewed.append(now))
    silent: Any = Silent()
    client.use(silent)

    def fetch() -> None:
        client.fetch(0.0, 1, lambda _messages, _assigned: None)

    for _ in range(90):
        fetch()
        now += 0.5
    assert renewed == [1_010.0, 1_030.0], "with more patience each time"
    silent.leader = -1
    now += 100.0
    fetch()
    assert len(renewed) == 2, "there is nobody to fetch from"
    silent.leader = 1
    silent.queued = [SimpleNamespace(topic=lambda: SALARIES.topic, partition=lambda: SALARIES.partition)]
    fetch()
    now += 1_000.0
    fetch()
    assert len(renewed) == 2, "the end of the log was reached"
    client.close()
