"""Writes records continuously during a measurement."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from typing import Self

from confluent_kafka import Producer

from kafka_coord.dev.cluster.topics import TopicAdmin


class Feeding:
    """While the ``with`` block runs, a thread writes ``burst`` records every ``every_s`` seconds to all partitions of a
    topic in turn. It cycles through ``values``.
    """

    def __init__(self, bootstrap: str, topic: str, burst: int, every_s: float, values: Iterable[bytes]) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._topic, self._burst, self._every_s = topic, burst, every_s
        self._values = itertools.cycle(values)
        self._partitions = itertools.cycle(range(TopicAdmin(bootstrap).partition_count(topic)))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-feeding", daemon=True)
        self.written = 0

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            for _ in range(self._burst):
                self._producer.produce(self._topic, value=next(self._values), partition=next(self._partitions))
            self._producer.flush(10)
            self.written += self._burst
            due = max(due + self._every_s, time.monotonic())
            self._ended.wait(due - time.monotonic())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
