"""Reads from a consumer in tests: by count, or on a thread."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from kafka_coord import Consumer, Record, Stream


def read(consumer: Consumer | Stream, count: int, within_s: float = 20.0) -> list[Record]:
    """Reads the next ``count`` records one by one. Returns fewer if one does not arrive in time."""
    records: list[Record] = []
    while len(records) < count:
        record = consumer.poll(within_s)
        if record is None:
            break
        records.append(record)
    return records


class Reader:
    """Iterates over a consumer or stream on a thread until the consumer is closed. ``with`` waits for that."""

    def __init__(self, source: Consumer | Stream) -> None:
        self.records: list[Record] = []
        self.error: BaseException | None = None
        self._source = source
        self._thread = threading.Thread(target=self._run)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in list(self.records)]

    def _run(self) -> None:
        try:
            for record in self._source:
                self.records.append(record)
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._source, Consumer):
            self._source.close()
        self._thread.join(20)
        assert not self._thread.is_alive()
