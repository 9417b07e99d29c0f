"""Runs one stock client of the demo as a process: ``python -m kafka_coord.dev.demo.stock.worker …``.

It uses confluent-kafka's own ``Consumer``, with the instances as ``bootstrap.servers``. Only after a record is in the
journal does the worker store its offset for librdkafka's automatic commit, so every committed record is in a journal.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from kafka_coord import Record
from kafka_coord.dev.demo.journal import Change, JournalWriter, now_ms
from kafka_coord.dev.demo.worker import BATCH, FETCHING, WAIT_S, Pace, Work, run_worker
from kafka_coord.errors import ConsumerError
from kafka_coord.model import PartitionSet, TopicPartition

COMMIT_MS = 500


def _protocol(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings for the group protocol. For a KIP-848 client, the coordinator sets the session timeout, but
    the assignor is set here: librdkafka 2.8 would request ``range``, which moves more partitions."""
    if given.group_protocol == "consumer":
        return {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
    return {
        "session.timeout.ms": given.session_timeout_ms,
        "heartbeat.interval.ms": 1_000,
        "partition.assignment.strategy": given.strategy,
        **({"group.instance.id": given.consumer_id} if given.static else {}),
    }


class StockConsumer:
    """Belongs to the group from the first :meth:`turn` until :meth:`leave`. Writes its events to the journal.

    It stores new offsets only after the last ones are committed. Otherwise, librdkafka could resend an older automatic
    commit after a newer one when the coordinator is back.
    """

    def __init__(self, given: argparse.Namespace, journal: JournalWriter) -> None:
        self._journal = journal
        self._work = Work()
        self._pending: list[Message] = []
        self._processed: dict[TopicPartition, int] = {}
        """The ends of what was processed since the last store."""
        self._stored: dict[TopicPartition, int] = {}
        """The stored offsets that are not committed yet."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": given.bootstrap,
                "group.id": given.group,
                "client.id": given.consumer_id,
                **_protocol(given),
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,
                "auto.commit.interval.ms": COMMIT_MS,
                "topic.metadata.refresh.interval.ms": 1_000,  # to notice new partitions quickly
                "on_commit": self._committed,
                **FETCHING,
            }
        )
        self._consumer.subscribe(
            [given.topic], on_assign=self._noting(Change.STARTED), on_revoke=self._revoked, on_lost=self._lost
        )

    def turn(self) -> int:
        """Reads records until a batch is full or no more arrive, and processes them. Returns how many."""
        while len(self._pending) < BATCH:
            message = self._consumer.poll(0 if self._pending else WAIT_S)
            if message is None:
                break
            if message.error() is None:
                self._pending.append(message)
            elif message.error().fatal():
                raise ConsumerError(f"fatal client error: {message.error().str()}")
        done = self._finish_pending()
        if not self._stored:
            self._store()
        return done

    def leave(self) -> None:
        self._finish_pending()
        self._store()
        self._consumer.close()

    def _finish_pending(self) -> int:
        taken, self._pending = self._pending, []
        if taken:
            self._journal.records(now_ms(), self._work.do(map(Record, taken)))
            self._processed |= {TopicPartition(one.topic(), one.partition()): one.offset() + 1 for one in taken}
        return len(taken)

    def _store(self) -> None:
        """Stores the offsets for the next automatic commit. The client commits them as well before it gives partitions
        up."""
        if not self._processed:
            return
        # The client refuses to store offsets of a partition that has been revoked in the meantime.
        with contextlib.suppress(KafkaException):
            self._consumer.store_offsets(offsets=[Position(*where, end) for where, end in self._processed.items()])
            self._stored |= self._processed
        self._processed = {}

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        for where in partitions:
            self._processed.pop(where, None)
            self._stored.pop(where, None)

    def _noting(self, change: Change) -> Callable[[Consumer, list[Position]], None]:
        def note(_consumer: Consumer, partitions: list[Position]) -> None:
            if partitions:
                self._journal.handed(now_ms(), change, PartitionSet.of(_named(partitions)))

        return note

    def _revoked(self, consumer: Consumer, partitions: list[Position]) -> None:
        self._finish_pending()
        self._store()
        self._forget(_named(partitions))
        self._noting(Change.STOPPED)(consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[Position]) -> None:
        gone = _named(partitions)
        self._pending = [one for one in self._pending if TopicPartition(one.topic(), one.partition()) not in gone]
        self._forget(gone)
        self._noting(Change.LOST)(consumer, partitions)

    def _committed(self, error: KafkaError | None, partitions: Sequence[Position]) -> None:
        kept = {
            TopicPartition(one.topic, one.partition): one.offset
            for one in partitions
            if error is None and one.error is None and one.offset >= 0
        }
        if kept:
            self._stored = {where: end for where, end in self._stored.items() if kept.get(where, -1) < end}
            self._journal.committed(now_ms(), kept)


def _named(partitions: Sequence[Position]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(one.topic, one.partition) for one in partitions)


def consume(given: argparse.Namespace, journal: JournalWriter, stopping: threading.Event) -> None:
    consumer, pace = StockConsumer(given, journal), Pace(given.records_per_s)
    try:
        while not stopping.is_set():
            pace.worked(consumer.turn(), stopping)
    finally:
        consumer.leave()


if __name__ == "__main__":
    sys.exit(run_worker("kafka_coord.dev.demo.stock.worker", consume))
