"""Runs one consumer of the demo as a process: ``python -m kafka_coord.dev.demo.worker …``.

It reads flights like any application, sums the delays per airline, and writes the received records to its journal. On
SIGTERM, it leaves the group cleanly.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kafka_coord import Consumer, KafkaCoordError
from kafka_coord.dev.cluster.process import stopping_event
from kafka_coord.dev.demo.expected import AirlineTotal
from kafka_coord.dev.demo.journal import Change, JournalWriter, Run, now_ms
from kafka_coord.model import PartitionSet, TopicPartition

log = logging.getLogger("kafka_coord.demo.worker")

BATCH = 100
"""The maximum number of records in a batch, which is small so that a stop never has to wait long."""
WAIT_S = 0.25
# With small fetches and little prefetching, all partitions advance together. librdkafka counts the prefetched records
# of all partitions, and once there are enough, it pauses a partition for fetch.queue.backoff.ms (1 s by default).
FETCHING = {
    "fetch.wait.max.ms": 50,
    "max.partition.fetch.bytes": 65_536,
    "queued.min.messages": 2_000,
    "fetch.queue.backoff.ms": 20,
}
_LONGEST_DEBT_S = 0.25


class Consumed(Protocol):
    """A record as received by a consumer or a Spark query."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...


@dataclass(slots=True)
class Work:
    """The worker's application: flights and delays per airline."""

    totals: dict[str, AirlineTotal] = field(default_factory=dict)

    def do(self, records: Iterable[Consumed]) -> list[Run]:
        """Processes a batch and returns it as runs of consecutive offsets."""
        seen: dict[TopicPartition, list[tuple[int, str, int | None]]] = {}
        for record in records:
            flight = json.loads(record.value or b"{}")
            airline, delay = flight["carrier"], flight["arr_delay"]
            self.totals.setdefault(airline, AirlineTotal()).add(delay)
            seen.setdefault(TopicPartition(record.topic, record.partition), []).append((record.offset, airline, delay))
        at_ms = now_ms()
        return [run for partition, found in seen.items() for run in _runs(at_ms, partition, found)]


def _runs(at_ms: int, partition: TopicPartition, found: Sequence[tuple[int, str, int | None]]) -> Iterable[Run]:
    begin = 0
    for at in range(1, len(found) + 1):
        if at == len(found) or found[at][0] != found[at - 1][0] + 1:
            part = found[begin:at]
            yield Run(at_ms, partition, part[0][0], tuple(a for _, a, _ in part), tuple(d for _, _, d in part))
            begin = at


class Pace:
    """Limits the number of records per second. After a delay, catches up by at most ``_LONGEST_DEBT_S``."""

    def __init__(self, records_per_s: float) -> None:
        self._per_record_s = 1 / records_per_s if records_per_s else 0.0
        self._due = time.monotonic()

    def worked(self, records: int, stopping: threading.Event) -> None:
        """Waits for the rest of the time that these records should have taken."""
        now = time.monotonic()
        self._due = max(self._due, now - _LONGEST_DEBT_S) + records * self._per_record_s
        if self._due > now:
            stopping.wait(self._due - now)


def work(consumer: Consumer, journal: JournalWriter, pace: Pace, stopping: threading.Event) -> Work:
    """Works until a stop signal."""
    done = Work()
    while not stopping.is_set():
        records = consumer.consume(BATCH, WAIT_S)
        if records:
            # Write the journal before the next call of consume(), which marks the batch as consumed.
            journal.records(now_ms(), done.do(records))
            pace.worked(len(records), stopping)
    return done


def member_arguments(program: str, about: str | None) -> argparse.ArgumentParser:
    """Returns a parser for the command-line arguments of every member process, which :func:`membership` reads."""
    parser = argparse.ArgumentParser(prog=program, description=about)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--zookeeper")
    way.add_argument("--bootstrap", help="The addresses at which coordinators listen for consumers without ZooKeeper.")
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--consumer-id", required=True)
    parser.add_argument("--session-timeout-ms", type=int, default=6_000)
    return parser


def membership(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments for a :class:`~kafka_coord.Consumer` that reads its topic from the beginning."""
    return {
        **({"bootstrap": given.bootstrap} if given.bootstrap else {"zookeeper": given.zookeeper}),
        "group": given.group,
        "topics": [given.topic],
        "consumer_id": given.consumer_id,
        "session_timeout_ms": given.session_timeout_ms,
        "auto_offset_reset": "earliest",
    }


Consuming = Callable[[argparse.Namespace, JournalWriter, threading.Event], None]
"""A function that consumes as a member until a stop signal, and then leaves the group."""


def run_worker(program: str, consume: Consuming, arguments: Sequence[str] | None = None) -> int:
    """Runs the process. Returns 0 after a clean leave, or else the error's exit code."""
    parser = member_arguments(program, __doc__)
    parser.add_argument("--journal", required=True, type=Path)
    parser.add_argument("--group-protocol", choices=["classic", "consumer"], default="classic")
    parser.add_argument("--strategy", default="cooperative-sticky", help="a classic client's assignor")
    parser.add_argument("--static", action="store_true", help="a stock client's group.instance.id is its name")
    parser.add_argument("--records-per-s", type=float, default=0.0, help="0: as fast as possible")

    def run(given: argparse.Namespace) -> None:
        with JournalWriter(given.journal) as journal:
            consume(given, journal, stopping_event())

    return run_process(parser, run, arguments)


def run_process(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None], arguments: Sequence[str] | None
) -> int:
    """Runs a process of the demo, with its log on standard error. Returns 0, or the exit code of the error."""
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(given)
    except KafkaCoordError as error:
        log.exception("ended %s", parser.prog)
        return error.exit_code
    return 0


def _consume(given: argparse.Namespace, journal: JournalWriter, stopping: threading.Event) -> None:
    def note(change: Change, partitions: frozenset[TopicPartition]) -> None:
        journal.handed(now_ms(), change, PartitionSet.of(partitions))

    with Consumer(
        **membership(given),
        kafka=FETCHING,
        on_start=lambda partitions: note(Change.STARTED, partitions),
        on_stop=lambda partitions: note(Change.STOPPED, partitions),
        on_lost=lambda partitions: note(Change.LOST, partitions),
    ) as consumer:
        done = work(consumer, journal, Pace(given.records_per_s), stopping)
        stats = consumer.stats
    log.info(
        "left consumer=%s records=%d commits=%d airlines=%d",
        given.consumer_id,
        stats.records,
        stats.commits,
        len(done.totals),
    )


if __name__ == "__main__":
    sys.exit(run_worker("kafka_coord.dev.demo.worker", _consume))
