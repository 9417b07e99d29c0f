"""Reads the groups log during a run, before compaction removes its older commits."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from kafka_coord.errors import KafkaCoordError
from kafka_coord.grouplog.records import OffsetEntry, read_record
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.model import TopicPartition
from kafka_coord.wire.batches import LogRecord
from tests.chaos.journal import Appended, LogPlace, LogWriter

_ASK_S = 10.0
_TO_THE_END_S = 60.0


BROKERS_LOG = "__consumer_offsets"
_OF_BROKERS = 1_000
"""What is added to the partitions of :data:`BROKERS_LOG`."""


class LogFollower:
    """Reads all partitions of the log from their beginning, on a thread, and records their entries. With
    ``of_brokers``, also reads the brokers' own log, and notes by the records' timestamps which came first."""

    def __init__(self, bootstrap: str, directory: Path, *, of_brokers: bool = False) -> None:
        self._topics = {TOPIC: 0} | ({BROKERS_LOG: _OF_BROKERS} if of_brokers else {})
        self._writer = LogWriter(directory)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "chaos-follows-the-log",  # librdkafka requires a group id, but this reader joins no group
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 1_000,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._reached: dict[tuple[str, int], int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follows-the-log")

    def start(self) -> None:
        """Starts reading. The topics must exist. Raises :class:`KafkaException`."""
        known = self._consumer.list_topics(timeout=_ASK_S).topics
        self._reached = {(topic, partition): 0 for topic in self._topics for partition in known[topic].partitions}
        self._consumer.assign([Position(*where, 0) for where in self._reached])
        self._thread.start()

    def finish(self) -> None:
        """Waits until everything up to the current end is read. Raises :class:`KafkaCoordError` at the timeout."""
        deadline = time.monotonic() + _TO_THE_END_S
        while behind := [where for where in self._reached if not self._at_end(where)]:
            if time.monotonic() >= deadline:
                raise KafkaCoordError(f"the reader of the groups log did not reach the end of partitions {behind}")
            time.sleep(0.2)

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._consumer.close()
        self._writer.close()

    def _at_end(self, where: tuple[str, int]) -> bool:
        try:
            _, end = self._consumer.get_watermark_offsets(Position(*where), timeout=_ASK_S)
        except KafkaException:
            return False
        return self._reached[where] >= int(end)

    def _follow(self) -> None:
        while not self._closing.is_set():
            messages = [one for one in self._consumer.consume(1_000, timeout=0.1) if one.error() is None]
            self._writer.read(self._row(one) for one in messages)
            for one in messages:
                self._reached[one.topic(), one.partition()] = one.offset() + 1

    def _row(self, message: Message) -> tuple[LogPlace, Appended | None]:
        at_ms = message.timestamp()[1] if len(self._topics) > 1 else 0
        place = LogPlace(self._topics[message.topic()] + message.partition(), message.offset())
        commit = _commit(message)
        return place, commit and commit._replace(at_ms=at_ms)


def _commit(message: Message) -> Appended | None:
    entry = read_record(LogRecord(message.key(), message.value(), message.offset(), 0))
    if not isinstance(entry, OffsetEntry):
        return None
    offset = entry.value.offset if entry.value is not None else None
    return Appended(entry.group, TopicPartition(entry.topic, entry.partition), offset)
