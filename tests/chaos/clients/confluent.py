"""Runs one confluent-kafka consumer of a run: ``python -m tests.chaos.clients.confluent``.

It records assignments with their committed offsets, records, and each commit before its request and after its
acknowledgement. At SIGTERM, it leaves cleanly.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from kafka_coord.model import TopicPartition
from tests.chaos.journal import ConsumerWriter
from tests.chaos.member import AGAIN_S, run
from tests.chaos.parts import CONSUMER_PROTOCOL, Part

log = logging.getLogger("kafka_coord.chaos.clients")

WAIT_S = 0.25
_ASK_S = 5.0
_AUTO_COMMIT_MS = 1_000


class Member:
    """One consumer and its journal."""

    def __init__(self, part: Part, bootstrap: str, journal: ConsumerWriter, stopping: threading.Event) -> None:
        self._part, self._journal, self._stopping = part, journal, stopping
        self._done: dict[TopicPartition, int] = {}
        self._consumer = Consumer(settings(part, bootstrap) | {"on_commit": self._on_commit})
        self._consumer.subscribe(
            list(part.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def run(self) -> None:
        """Runs until the stop signal. Raises the consumer's errors.

        It closes right after it has asked for records, because asking also runs the pending rebalance callbacks. If one
        is still pending at that time, librdkafka may hang in a commit (docs/kafka-clients.md).
        """
        try:
            uncommitted = 0
            while True:
                since = time.monotonic()
                found = self._next()
                rows = [(m.topic(), m.partition(), m.offset(), int(m.value() or b"-1")) for m in found]
                self._journal.handed(since, time.monotonic(), rows)
                self._done |= {TopicPartition(topic, partition): offset + 1 for topic, partition, offset, _ in rows}
                uncommitted += len(rows)
                if self._stopping.is_set():
                    break
                if self._part.commit_every and uncommitted >= (self._part.commit_every if rows else 1):
                    uncommitted = 0
                    self._commit(self._done)
        finally:
            self._consumer.close()
        self._journal.closed()

    def _next(self) -> list[Message]:
        """Raises :class:`KafkaException` if the consumer cannot recover."""
        found = self._consumer.consume(self._part.batch, WAIT_S)
        for one in found:
            error = one.error()
            if error is not None and _is_final(error):
                raise KafkaException(error)
        return [one for one in found if one.error() is None]

    def _commit(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits the offsets after the last handed-out records of these partitions, and waits for the answer. Raises
        :class:`KafkaException` if the consumer cannot recover.
        """
        offsets = {partition: self._done[partition] for partition in partitions if partition in self._done}
        if not offsets:
            return
        self._journal.committing(offsets)
        try:
            wanted = [Position(*partition, offset) for partition, offset in offsets.items()]
            found = self._consumer.commit(offsets=wanted, asynchronous=False) or []
        except KafkaException as error:
            if _is_final(error.args[0]):
                raise
            log.info("not committed consumer=%s: %s", self._part.name, error)
            return
        self._acknowledged(found)

    def _acknowledged(self, found: Iterable[Position]) -> None:
        offsets = {TopicPartition(one.topic, one.partition): one.offset for one in found if one.error is None}
        offsets = {partition: offset for partition, offset in offsets.items() if offset >= 0}
        if offsets:
            self._journal.committed(offsets)

    # --- librdkafka's callbacks ---------------------------------------------------------------------------------------

    def _on_commit(self, error: Any, found: list[Position]) -> None:
        """Records automatic commits. A requested commit returns its result to the caller."""
        if error is None and not self._part.commit_every:
            self._acknowledged(found)

    def _on_assign(self, consumer: Consumer, partitions: list[Position]) -> None:
        """Begins at the group's committed offsets. If it gets no answer, librdkafka asks again by itself.

        A partition without a committed offset begins at 0, where each of these topics begins. If librdkafka looked up
        the beginning, a rebalance meanwhile could make it begin twice (docs/kafka-clients.md).
        """
        since: float | None = time.monotonic()
        try:
            found = consumer.committed(partitions, timeout=_ASK_S)
        except KafkaException as error:
            log.info("no committed offsets consumer=%s: %s", self._part.name, error)
            found, since = partitions, None
        if any(one.error is not None for one in found):
            found, since = partitions, None
        for one in found:
            self._done.pop(TopicPartition(one.topic, one.partition), None)
        offsets = {TopicPartition(one.topic, one.partition): one.offset if one.offset >= 0 else None for one in found}
        self._journal.started(offsets, since)
        if since is not None:
            found = [Position(one.topic, one.partition, max(one.offset, 0)) for one in found]
        (consumer.incremental_assign if self._part.cooperative else consumer.assign)(found)

    def _on_revoke(self, consumer: Consumer, partitions: list[Position]) -> None:
        gone = [TopicPartition(one.topic, one.partition) for one in partitions]
        self._journal.stopped(gone)
        if self._part.commit_every:
            self._commit(gone)
        self._give_up(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[Position]) -> None:
        self._journal.lost(TopicPartition(one.topic, one.partition) for one in partitions)
        self._give_up(consumer, partitions)

    def _give_up(self, consumer: Consumer, partitions: list[Position]) -> None:
        for one in partitions:
            self._done.pop(TopicPartition(one.topic, one.partition), None)
        if self._part.cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()


def _is_final(error: KafkaError) -> bool:
    """Tells whether only a new consumer helps. librdkafka fails in this way if the commit of a static member that has
    joined again arrives with its earlier member id, or if its coordinator moves before its new member id is in the
    log."""
    return bool(error.fatal()) or error.code() in {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}


def settings(part: Part, bootstrap: str) -> dict[str, Any]:
    given = {
        "bootstrap.servers": bootstrap,
        "group.id": part.group,
        "client.id": part.name,
        "auto.offset.reset": "earliest",
        **_protocol(part),
        "max.poll.interval.ms": 60_000,
        "enable.auto.commit": not part.commit_every,
        "auto.commit.interval.ms": _AUTO_COMMIT_MS,
        "topic.metadata.refresh.interval.ms": 5_000,
        "reconnect.backoff.max.ms": 1_000,
        "socket.timeout.ms": 10_000,
        "fetch.wait.max.ms": 300,
        "log_level": 4,
        **part.security,
    }
    return given | ({"group.instance.id": part.name} if part.static else {})


def _protocol(part: Part) -> dict[str, Any]:
    if part.protocol == CONSUMER_PROTOCOL:
        return {"group.protocol": part.protocol, "group.remote.assignor": part.strategy}
    return {
        "session.timeout.ms": part.session_timeout_ms,
        "heartbeat.interval.ms": part.session_timeout_ms // 4,
        "partition.assignment.strategy": part.strategy,
    }


def work(part: Part, _zookeeper: str, bootstrap: str, journal: ConsumerWriter, stopping: threading.Event) -> None:
    """Consumes. Replaces a consumer that cannot recover, as a supervisor does."""
    while not stopping.is_set():
        try:
            Member(part, bootstrap, journal, stopping).run()
        except KafkaException as error:
            log.warning("again soon consumer=%s: %s", part.name, error)
            stopping.wait(AGAIN_S)
        else:
            return


if __name__ == "__main__":
    sys.exit(run("tests.chaos.clients.confluent", __doc__, work, None))
