"""A producer that writes to a topic continuously, and stock consumers that read it, each in its own thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.waiting import eventually


@dataclass
class Feed:
    """Produces numbered records until it is stopped."""

    bootstrap: str
    topic: str
    partitions: int
    every_s: float = 0.02
    produced: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        while not self.stopping.wait(self.every_s):
            producer.produce(self.topic, str(self.produced), partition=self.produced % self.partitions)
            producer.poll(0)
            self.produced += 1
        assert producer.flush(30) == 0

    @contextlib.contextmanager
    def running(self) -> Iterator[Feed]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            thread.join()


@dataclass
class Reader:
    """A stock consumer. Several may share ``found``, the numbers that were read."""

    bootstrap: str
    group: str
    topic: str
    found: list[int]
    settings: dict[str, Any] = field(default_factory=dict)
    assigned: int = 0
    own: list[int] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        given = {"bootstrap.servers": self.bootstrap, "group.id": self.group, "auto.offset.reset": "earliest"}
        one = Consumer(given | self.settings)
        one.subscribe([self.topic], on_assign=self._count)
        while not self.stopping.is_set():
            message = one.poll(0.1)
            if message is not None and message.error() is None:
                self.own.append(int(message.value()))
                self.found.append(int(message.value()))
        one.close()

    def _count(self, _consumer: Consumer, _partitions: object) -> None:
        self.assigned += 1

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reader]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            self.goes_on()
            yield self
        finally:
            self.stopping.set()
            thread.join()

    def goes_on(self) -> None:
        """Waits until the consumer has read records that were produced after this call."""
        before = max(self.own, default=-1)
        eventually(lambda: max(self.own, default=-1) > before + 10, within_s=60)
