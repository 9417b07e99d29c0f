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


class LogFollower:
    """Reads all partitions of the log from their beginning, on a thread, and records their entries."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
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
        self._reached: dict[int, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follows-the-log")

    def start(self) -> None:
        """Starts reading. The topic must exist. Raises :class:`KafkaException`."""
        partitions = self._consumer.list_topics(TOPIC, timeout=_ASK_S).topics[TOPIC].partitions
        self._reached = dict.fromkeys(partitions, 0)
        self._consumer.assign([Position(TOPIC, partition, 0) for partition in partitions])
        self._thread.start()

    def finish(self) -> None:
        """Waits until everything up to the current end is read. Raises :class:`KafkaCoordError` at the timeout."""
        deadline = time.monotonic() + _TO_THE_END_S
        while behind := [partition for partition in self._reached if not self._at_end(partition)]:
            if time.monotonic() >= deadline:
                raise KafkaCoordError(f"the reader of the groups log did not reach the end of partitions {behind}")
            time.sleep(0.2)

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._consumer.close()
        self._writer.close()

    def _at_end(self, partition: int) -> bool:
        try:
            _, end = self._consumer.get_watermark_offsets(Position(TOPIC, partition), timeout=_ASK_S)
        except KafkaException:
            return False
        return self._reached[partition] >= int(end)

    def _follow(self) -> None:
        while not self._closing.is_set():
            messages = [one for one in self._consumer.consume(1_000, timeout=0.1) if one.error() is None]
            self._writer.read(_row(one) for one in messages)
            for one in messages:
                self._reached[one.partition()] = one.offset() + 1


def _row(message: Message) -> tuple[LogPlace, Appended | None]:
    place = LogPlace(message.partition(), message.offset())
    entry = read_record(LogRecord(message.key(), message.value(), message.offset(), 0))
    if not isinstance(entry, OffsetEntry):
        return place, None
    offset = entry.value.offset if entry.value is not None else None
    return place, Appended(entry.group, TopicPartition(entry.topic, entry.partition), offset)
