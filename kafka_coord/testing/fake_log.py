"""In-memory topics, and fakes of the librdkafka clients that read them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from kafka_coord.errors import NotFound

_LATEST, _EARLIEST = -1, -2
"""The special timestamps of Kafka's ListOffsets request."""


class FakeMessage:
    """Behaves like ``confluent_kafka.Message``."""

    def __init__(self, topic: str, partition: int, offset: int, **fields: Any) -> None:
        self._topic, self._partition, self._offset, self._fields = topic, partition, offset, fields

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._fields.get("error")

    def key(self) -> bytes | None:
        return self._fields.get("key")

    def value(self) -> bytes | None:
        return self._fields.get("value")

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._fields.get("headers")

    def timestamp(self) -> tuple[int, int]:
        return 1, self._fields["timestamp_ms"]


class FakeLogs:
    """The logs of all partitions. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.topics: dict[str, list[list[FakeMessage]]] = {}
        self.begins: dict[tuple[str, int], int] = {}

    def append(self, topic: str, partition: int, fields: Mapping[str, Any]) -> int:
        """Raises :class:`NotFound`, which says how to create the topic or the partition."""
        with self.changed:
            if not 0 <= partition < len(self.topics.get(topic, ())):
                call = f"cluster.create_topic({topic!r}, partitions={max(partition, 0) + 1})"
                raise NotFound(f"partition {partition} of topic {topic!r} does not exist; create it first with {call}")
            log = self.topics[topic][partition]
            log.append(FakeMessage(topic, partition, len(log), **fields))
            self.changed.notify_all()
            return len(log) - 1

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the log's first offset and the offset of the next record. Raises :class:`KafkaException` if the
        partition does not exist."""
        with self.changed:
            if partition not in range(len(self.topics.get(topic, ()))):
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such partition"))
            return self.begins.get((topic, partition), 0), len(self.topics[topic][partition])


class FakeClient:
    """Behaves like a ``confluent_kafka.Consumer`` with manually assigned partitions. Not thread-safe."""

    def __init__(self, logs: FakeLogs) -> None:
        self._logs = logs
        self._next: dict[tuple[str, int], int] = {}

    def incremental_assign(self, partitions: list[Any]) -> None:
        self._next |= {(one.topic, one.partition): one.offset for one in partitions}

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for one in partitions:
            del self._next[one.topic, one.partition]

    def poll(self, timeout: float) -> FakeMessage | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, limit: int, timeout: float) -> list[FakeMessage]:
        with self._logs.changed:
            found = self._take(limit)
            if not found and timeout > 0:
                self._logs.changed.wait(timeout)
                found = self._take(limit)
            return found

    def _take(self, limit: int) -> list[FakeMessage]:
        taken: list[FakeMessage] = []
        for (topic, partition), offset in list(self._next.items()):
            if topic not in self._logs.topics:
                continue
            begin, end = self._logs.bounds(topic, partition)
            at = begin if offset == OFFSET_BEGINNING else offset
            if begin <= at <= end:
                messages = self._logs.topics[topic][partition][at : at + limit - len(taken)]
                self._next[topic, partition] = at + len(messages)
                taken += messages
            elif len(taken) < limit:
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "Broker: Offset out of range")
                self._next[topic, partition] = end  # an error is reported only once
                taken.append(FakeMessage(topic, partition, at, error=error))
        return taken

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        del timeout
        return self._logs.bounds(partition.topic, partition.partition)

    def list_topics(self, topic: str, timeout: float) -> Any:
        del timeout
        led_by_nobody = SimpleNamespace(error=None, leader=-1)  # so silence is expected
        partitions = dict.fromkeys(range(len(self._logs.topics.get(topic, []))), led_by_nobody)
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions, error=None)})

    def close(self) -> None:
        self._next.clear()


class FakeAdmin:
    """Behaves like ``confluent_kafka.admin.AdminClient.list_offsets``."""

    def __init__(self, logs: FakeLogs) -> None:
        self._logs = logs

    def list_offsets(self, asked: Mapping[Any, Any], **_settings: Any) -> dict[Any, Future[Any]]:
        return {partition: self._answer(partition, spec._value) for partition, spec in asked.items()}

    def _answer(self, partition: Any, time_ms: int) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            begin, end = self._logs.bounds(partition.topic, partition.partition)
        except KafkaException as error:
            answer.set_exception(error)
            return answer
        offset = {_LATEST: end, _EARLIEST: begin}.get(time_ms)
        if offset is None:
            messages = self._logs.topics[partition.topic][partition.partition][begin:]
            offset = next((one.offset() for one in messages if one.timestamp()[1] >= time_ms), -1)
        answer.set_result(SimpleNamespace(offset=offset))
        return answer
