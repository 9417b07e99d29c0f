"""Runs one consumer of a run: ``python -m tests.chaos.worker``. At SIGTERM, it leaves cleanly.

It records only the observations of its application, not the state of the library or of ZooKeeper.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping

from kafka_coord import Consumer
from kafka_coord.consumer.fetcher import Stream
from kafka_coord.consumer.member import Partition
from kafka_coord.consumer.record import Record
from kafka_coord.errors import ConsumerClosed, ConsumerIdInUse, MembershipLost, StoreUnavailable
from kafka_coord.model import TopicPartition
from tests.chaos.journal import ConsumerWriter
from tests.chaos.member import AGAIN_S, run
from tests.chaos.parts import Part

log = logging.getLogger("kafka_coord.chaos.worker")

_WAIT_S = 0.25
_RETRY_S = 0.05
_TRIES = 20
_FETCHING = {
    "fetch.wait.max.ms": 300,
    "queued.min.messages": 2_000,
    "fetch.queue.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,  # brokers are restarted often in a run
    "topic.metadata.refresh.interval.ms": 5_000,
    "log_level": 0,
}


class Work:
    """The consumer of a process, and its journal."""

    def __init__(self, part: Part, zookeeper: str, journal: ConsumerWriter, stopping: threading.Event) -> None:
        self._part = part
        self._journal = journal
        self._asked_to_stop = stopping
        self._failed = threading.Event()
        self._made = threading.Event()
        self._gone = False
        self._failure: BaseException | None = None
        self._done: dict[TopicPartition, int] = {}
        self._consumer = Consumer(
            None if part.socket else zookeeper,
            bootstrap=part.channel if part.socket else None,
            group=part.group,
            topics=dict.fromkeys(part.topics, part.streams) or None,
            include=part.pattern,
            streams=part.streams if part.pattern else 1,
            consumer_id=part.name,
            auto_offset_reset="latest" if part.latest else "earliest",
            auto_commit_interval_ms=0 if part.commit_every else 1_000,
            session_timeout_ms=part.session_timeout_ms,
            rejoin_grace_ms=part.rejoin_grace_ms,
            mode=part.mode,
            assignor=part.assignor,
            kafka=_FETCHING | part.security,
            on_assign=self._on_start,
            on_revoke=self._on_stop,
            on_lost=self._on_lost,
        )
        self._made.set()

    def run(self) -> None:
        """Runs until the stop signal. Raises the consumer's errors."""
        with self._consumer:
            threads = [
                threading.Thread(target=self._read_on, args=[stream], name=f"stream-{stream.number}")
                for stream in self._consumer.streams[1:]
            ]
            for thread in threads:
                thread.start()
            self._read_on(self._consumer.streams[0])
            for thread in threads:
                thread.join()
            if self._failure is not None:
                raise self._failure
        self._journal.closed()

    def _read_on(self, stream: Stream) -> None:
        try:
            self._read(stream)
            self._commit()  # the end of the ``with`` block commits the records in hand of only one thread
        except BaseException as failure:  # noqa: BLE001  raised by run(), on the process' own thread
            self._failure = self._failure or failure
            self._failed.set()

    def _read(self, stream: Stream) -> None:
        uncommitted = 0
        while not self._asked_to_stop.is_set() and not self._failed.is_set():
            since = time.monotonic()
            records = self._next(stream)
            if not records:
                if self._part.commit_every and uncommitted:
                    uncommitted = 0
                    self._commit()
                continue
            seen = [(record.topic, record.partition, record.offset, int(record.value or b"-1")) for record in records]
            self._journal.handed(since, time.monotonic(), seen)
            self._done |= {TopicPartition(topic, partition): offset + 1 for topic, partition, offset, _ in seen}
            if self._part.work_s:
                self._asked_to_stop.wait(self._part.work_s)
            uncommitted += len(records)
            if self._part.commit_every and uncommitted >= self._part.commit_every:
                uncommitted = 0
                self._commit()

    def _next(self, stream: Stream) -> list[Record]:
        if not self._part.iterates:
            return stream.consume(self._part.batch, _WAIT_S)
        record = stream.poll(_WAIT_S)
        return [record] if record is not None else []

    def _commit(self) -> None:
        """Commits the offsets after the last handed-out records of held partitions. The offsets are stored unless it
        raises."""
        for _ in range(_TRIES):
            held = self._consumer.assignment()
            offsets: dict[Partition, int] = {
                partition: end for partition, end in dict(self._done).items() if partition in held
            }
            if not offsets:
                return
            try:
                self._consumer.commit(offsets)
            except MembershipLost as error:  # one partition was stopped since then, or all are lost
                log.info("commits again consumer=%s: %s", self._part.name, error)
                time.sleep(_RETRY_S)
            except (StoreUnavailable, ConsumerClosed) as error:
                log.warning("could not commit consumer=%s: %s", self._part.name, error)
                return
            else:
                self._claim({TopicPartition(*partition): end for partition, end in offsets.items()})
                return

    def _commit_before_stop(self, partitions: frozenset[TopicPartition]) -> None:
        while True:
            try:
                self._consumer.commit()
            except StoreUnavailable:
                time.sleep(AGAIN_S)  # without this commit, the next owner would begin at an earlier commit
            else:
                return self._claim({tp: self._done[tp] for tp in partitions if tp in self._done})

    def _claim(self, ends: Mapping[TopicPartition, int]) -> None:
        if self._part.streams == 1 and ends:  # the records in hand of other streams are unknown
            self._journal.committed(ends)

    # --- what the connector calls ------------------------------------------------------------------------------------

    def _on_start(self, partitions: frozenset[TopicPartition]) -> None:
        self._made.wait()
        if self._gone:
            self._gone = False
            self._journal.rejoined()
        for partition in partitions:
            self._done.pop(partition, None)
        self._journal.started({partition: self._consumer.position(partition) for partition in partitions})

    def _on_stop(self, partitions: frozenset[TopicPartition]) -> None:
        self._made.wait()
        self._journal.stopped(partitions)
        if self._part.commit_every:
            self._commit_before_stop(partitions)

    def _on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._gone = True
        for partition in partitions:
            self._done.pop(partition, None)
        self._journal.lost(partitions)


def work(part: Part, zookeeper: str, _bootstrap: str, journal: ConsumerWriter, stopping: threading.Event) -> None:
    """Consumes. Starts again if ZooKeeper is unreachable or another process still holds the name, as a supervisor does.
    The consumer finds the brokers in ZooKeeper."""
    while not stopping.is_set():
        try:
            Work(part, zookeeper, journal, stopping).run()
        except (ConsumerIdInUse, StoreUnavailable) as error:
            log.warning("again soon consumer=%s: %s", part.name, error)
            stopping.wait(AGAIN_S)
        else:
            return


if __name__ == "__main__":
    sys.exit(run("tests.chaos.worker", __doc__, work, None))
