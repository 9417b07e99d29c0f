"""One stream of a consumer, as the application sees it. Read it from one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Never

from confluent_kafka import Message

from kafka_coord.consumer.fetcher import DEFAULT_MAX_RECORDS, Fetcher
from kafka_coord.consumer.other_clients import check_call
from kafka_coord.consumer.record import K, Record, V
from kafka_coord.errors import ConsumerClosed
from kafka_coord.model import TopicPartition


class Stream(Generic[K, V]):
    """The records of the stream's partitions. Iteration ends when the consumer is closed or stopped."""

    def __init__(self, fetcher: Fetcher, check_process: Callable[[], None]) -> None:
        self._fetcher = fetcher
        self._check_process = check_process

    @property
    def number(self) -> int:
        """The stream's index in the consumer."""
        return self._fetcher.number

    def poll(self, timeout_s: float = 1.0, **other: Never) -> Record[K, V] | None:
        """Returns the next record, or ``None`` if no record arrived within ``timeout_s`` seconds.

        The previous record counts as consumed from then on. Raises the errors that :class:`~kafka_coord.Consumer`
        lists.
        """
        if other:
            check_call("poll", other)
        record = self._fetcher.next_of_run()
        if record is not None:
            return record
        self._check_process()
        return self._fetcher.take_one(timeout_s)

    def consume(
        self, max_records: int = DEFAULT_MAX_RECORDS, timeout_s: float = 1.0, **other: Never
    ) -> list[Record[K, V]]:
        """Returns up to ``max_records`` records as soon as any is available, or an empty list after ``timeout_s``
        seconds. All previous records count as consumed from then on.
        """
        check_call("consume", other)
        self._check_process()
        return self._fetcher.take(max_records, timeout_s)

    def consume_messages(self, max_messages: int = DEFAULT_MAX_RECORDS, timeout_s: float = 1.0) -> list[Message]:
        """Like :meth:`consume`, but returns confluent-kafka's messages. They are never errors."""
        self._check_process()
        return self._fetcher.take_messages(max_messages, timeout_s)

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this stream fetches now."""
        return frozenset(holding.partition for holding in self._fetcher.partitions.holdings() if not holding.stopping)

    def __iter__(self) -> Iterator[Record[K, V]]:
        return self._fetcher.iterate(self._take)

    def forked(self) -> None:
        """Stops this copy, which belongs to a forked process, from returning records. Its next call raises an error."""
        self._fetcher.forked()

    def __next__(self) -> Record[K, V]:
        try:
            return self._fetcher.next_of_run() or self._take()
        except ConsumerClosed:
            raise StopIteration from None

    def _take(self) -> Record[K, V]:
        self._check_process()
        while True:
            record = self._fetcher.take_one(1.0)
            if record is not None:
                return record
            if self._fetcher.stopped:
                raise ConsumerClosed("the consumer was stopped")
