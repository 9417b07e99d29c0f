"""Runs one reader in its own process: this project's consumer, or a bare confluent-kafka consumer.

Prints one line of JSON at the end. The measurement begins with the first records, to exclude connecting and joining.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END
from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import TopicPartition as At

from kafka_coord import AsyncConsumer, Consumer
from kafka_coord.consumer.fetchers import client_settings
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.errors import BrokerError, KafkaCoordError

_BATCH = 500
_WAIT_S = 0.2
_GIVES_UP_S = 60.0
_LOOKS = 15

Batches = Iterator[Sequence[bytes]]


class ReadMode(StrEnum):
    """The ways to read records."""

    BARE = "bare"
    """``confluent_kafka.Consumer.consume``, with all partitions assigned manually, and librdkafka's default
    settings."""
    BARE_SET = "bare, our settings"
    """Like ``BARE``, with the librdkafka settings of this project's consumer."""
    BATCH = "batch"
    """``kafka_coord.Consumer.consume``."""
    MESSAGES = "batch of messages"
    """``kafka_coord.Consumer.consume_messages``."""
    ITERATION = "iteration"
    """``for record in kafka_coord.Consumer``."""
    ASYNC_BATCH = "asyncio, batch"
    """``await kafka_coord.AsyncConsumer.consume``."""
    ASYNC_ITERATION = "asyncio, iteration"
    """``async for record in kafka_coord.AsyncConsumer``."""


_BARE = frozenset({ReadMode.BARE, ReadMode.BARE_SET})
_ASYNC = frozenset({ReadMode.ASYNC_BATCH, ReadMode.ASYNC_ITERATION})


@dataclass(frozen=True, slots=True)
class Task:
    """What a reader has to read: ``records`` records from the beginning of the topic or, with ``latency``, new ones.
    The value of a new record begins with the time when it was handed to the producer (ns, monotonic, 20 digits).
    """

    way: ReadMode
    zookeeper: str
    bootstrap: str
    group: str
    topic: str
    partitions: int
    records: int
    latency: bool = False

    def encoded(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Read:
    """How fast a reader was: after the first batch, it read ``records`` records in ``seconds``, which took the process
    ``cpu_s`` of CPU time. With ``Task.latency``, ``latency_ms`` contains the latency of each record."""

    way: ReadMode
    records: int
    seconds: float
    cpu_s: float
    latency_ms: Sequence[float] = ()

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        return self.cpu_s / self.records * 1e6


class _Count:
    """Counts the records, and starts measuring after the first batch."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._records = self._first = 0
        self._began = self._cpu_began = 0.0
        self._latency_ms: list[float] = []
        self._patience = time.monotonic() + _GIVES_UP_S

    def add(self, values: Sequence[bytes]) -> bool:
        """Adds a batch, and returns whether more records are expected. Raises :class:`BrokerError` if none arrive in
        time."""
        now_ns = time.monotonic_ns()
        if not values:
            if time.monotonic() > self._patience:
                raise BrokerError(
                    f"only {self._records} of {self._task.records} records arrived in {_GIVES_UP_S:.0f} s"
                )
            return True
        if self._task.latency:
            self._latency_ms += [(now_ns - int(value[:20])) / 1e6 for value in values]
        self._records += len(values)
        if not self._first:
            self._first, self._began, self._cpu_began = self._records, time.perf_counter(), time.process_time()
        return self._records < self._task.records

    def result(self) -> Read:
        seconds, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu_began
        count = max(1, self._records - self._first)
        return Read(self._task.way, count, max(seconds, 1e-9), cpu_s, self._latency_ms)


def read(task: Task, ready: Callable[[], None]) -> Read:
    """Reads the records. Raises :class:`~kafka_coord.errors.KafkaCoordError` if they do not arrive."""
    if task.way in _ASYNC:
        return asyncio.run(_read_with_asyncio(task))
    with _bare(task) if task.way in _BARE else _ours(task) as batches:
        if task.latency:
            for _ in range(_LOOKS):  # until the reader waits at the end of the log
                next(batches)
            ready()
        count = _Count(task)
        while count.add(next(batches)):
            pass
        return count.result()


async def _read_with_asyncio(task: Task) -> Read:
    async with AsyncConsumer(
        task.zookeeper, group=task.group, topics=[task.topic], auto_offset_reset="earliest"
    ) as consumer:
        count, values = _Count(task), list[bytes]()
        if task.way is ReadMode.ASYNC_BATCH:
            while count.add([record.value or b"" for record in await consumer.consume(_BATCH, _WAIT_S)]):
                pass
            return count.result()
        async for record in consumer:
            values.append(record.value or b"")
            if len(values) == _BATCH:
                if not count.add(values):
                    break
                values.clear()
        return count.result()


@contextmanager
def _bare(task: Task) -> Iterator[Batches]:
    settings = {"group.id": task.group, "enable.auto.commit": False, "auto.offset.reset": "error"}
    if task.way is ReadMode.BARE_SET:
        settings = client_settings(task.group, "bare", {}) | {"enable.partition.eof": False}
    consumer = BareConsumer({**settings, "bootstrap.servers": task.bootstrap})
    start = OFFSET_END if task.latency else OFFSET_BEGINNING
    consumer.assign([At(task.topic, partition, start) for partition in range(task.partitions)])

    size = 1 if task.latency else _BATCH  # consume() waits for a whole batch or for the timeout

    def batches() -> Batches:
        while True:
            messages = consumer.consume(size, _WAIT_S)
            for message in messages:
                if message.error() is not None:
                    raise BrokerError(str(message.error()))
            yield [message.value() or b"" for message in messages]

    try:
        yield batches()
    finally:
        consumer.close()


@contextmanager
def _ours(task: Task) -> Iterator[Batches]:
    reset = "latest" if task.latency else "earliest"
    with Consumer(task.zookeeper, group=task.group, topics=[task.topic], auto_offset_reset=reset) as consumer:
        if task.latency:  # wait until the consumer starts at the end of each partition; new records follow
            awaited(lambda: len(consumer.assignment()) == task.partitions, _GIVES_UP_S, "the consumer's partitions")

        def by_batch() -> Batches:
            while True:
                yield [record.value or b"" for record in consumer.consume(_BATCH, _WAIT_S)]

        def by_messages() -> Batches:
            while True:
                yield [message.value() or b"" for message in consumer.consume_messages(_BATCH, _WAIT_S)]

        def one_by_one() -> Batches:
            given = 0
            while len(consumer.assignment()) < task.partitions:
                found = [record.value or b"" for record in consumer.consume(1, _WAIT_S)]
                given += len(found)
                yield found
            records = iter(consumer)
            size = 1 if task.latency else _BATCH  # the clock is read once per batch, as in the batch modes
            while given < task.records:
                found = [record.value or b"" for record in itertools.islice(records, min(size, task.records - given))]
                given += len(found)
                yield found

        ways = {ReadMode.BATCH: by_batch, ReadMode.MESSAGES: by_messages, ReadMode.ITERATION: one_by_one}
        yield ways[task.way]()


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    given = json.loads(sys.argv[1])
    task = Task(**given | {"way": ReadMode(given["way"])})

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    try:
        found = read(task, lambda: say("ready"))
    except KafkaCoordError as error:
        say(json.dumps({"problem": str(error)}))
        return error.exit_code
    say(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
