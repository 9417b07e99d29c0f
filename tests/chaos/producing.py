"""Runs the producer of a run: ``python -m tests.chaos.producing``. It writes numbered records to every partition of
every topic with the run's prefix, including later topics, and records the acknowledged offsets. At SIGTERM, it ends
when all records are acknowledged."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from confluent_kafka import KafkaException, Producer

from kafka_coord.dev.cluster.process import stopping_event
from tests.chaos.journal import ProducedWriter
from tests.chaos.logins import login
from tests.chaos.parts import PREFIX

_TICK_S = 0.05
_LOOK_S = 2.0
_TELL_S = 0.5
_FLUSH_S = 120.0


class Producing:
    """Writes ``per_s`` records a second in total, to all partitions in turn."""

    def __init__(
        self, bootstrap: str, directory: Path, per_s: float, user: str | None = None, linger_ms: int = 1_000
    ) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": linger_ms,
                # One request at a time keeps the order. A record is repeated until a broker has it.
                "max.in.flight.requests.per.connection": 1,
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 1_000,
                "topic.metadata.refresh.interval.ms": 5_000,
                "log_level": 0,
                **(login(user) if user is not None else {}),
            }
        )
        self._per_s = per_s
        self._writer = ProducedWriter(directory)
        self._numbers: Counter[tuple[str, int]] = Counter()
        self._partitions: list[tuple[str, int]] = []
        self._acknowledged: list[tuple[str, int, int, int]] = []
        self._again: list[tuple[str, int, int]] = []
        self._waiting = 0
        self.refused: Counter[str] = Counter()
        """Counts librdkafka's errors, after which records are repeated. For example, a newly started broker may know
        fewer partitions.
        """

    def run(self, stopping: threading.Event) -> int:
        """Runs until the stop signal. Returns the number of records that are unacknowledged at the end."""
        look = told = 0.0
        turn, owed = 0, 0.0
        while not stopping.wait(_TICK_S):
            now = time.monotonic()
            if now >= look:
                self._look()
                look = now + _LOOK_S
            owed = min(owed + self._per_s * _TICK_S, self._per_s)
            while owed >= 1 and self._partitions and self._waiting < 50_000:
                owed -= 1
                turn = (turn + 1) % len(self._partitions)
                topic, partition = self._partitions[turn]
                if self._put(topic, partition, self._numbers[topic, partition]):
                    self._numbers[topic, partition] += 1
            self._put_again()
            self._producer.poll(0)
            if now >= told:
                self._tell()
                told = now + _TELL_S
        deadline = time.monotonic() + _FLUSH_S
        while (self._waiting or self._again) and time.monotonic() < deadline:
            self._producer.poll(0.1)
            self._put_again()
            self._tell()
        self._tell()
        return self._waiting + len(self._again)

    def _put_again(self) -> None:
        self._again = [wanted for wanted in self._again if not self._put(*wanted)]

    def _put(self, topic: str, partition: int, number: int) -> bool:
        def acknowledged(error: Any, message: Any) -> None:
            self._waiting -= 1
            if error is None:
                self._acknowledged.append((topic, partition, message.offset(), number))
            else:
                self.refused[error.name()] += 1
                self._again.append((topic, partition, number))

        try:
            self._producer.produce(topic, str(number).encode(), partition=partition, on_delivery=acknowledged)
        except (BufferError, KafkaException):
            return False
        self._waiting += 1
        return True

    def _look(self) -> None:
        try:
            topics = self._producer.list_topics(timeout=2.0).topics
        except KafkaException:
            return
        found = [
            (name, partition)
            for name, topic in topics.items()
            if name.startswith(PREFIX) and topic.error is None
            for partition in topic.partitions
        ]
        if len(found) >= len(self._partitions):  # a newly started broker may not know all partitions yet
            self._partitions = sorted(found)

    def _tell(self) -> None:
        told, self._acknowledged = self._acknowledged, []
        self._writer.acknowledged(told)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the process. The exit code is 1 if records remain unacknowledged."""
    parser = argparse.ArgumentParser(prog="tests.chaos.producing", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("--per-s", type=float, default=400.0)
    parser.add_argument("--user", help="The user to log in as. [default: none]")
    parser.add_argument("--linger-ms", type=int, default=1_000)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopping = stopping_event(signal.SIGTERM)
    producing = Producing(given.bootstrap, given.directory, given.per_s, given.user, given.linger_ms)
    left = producing.run(stopping)
    if left or producing.refused:
        click.echo(f"unacknowledged at the end: {left}; refused and repeated: {dict(producing.refused)}", err=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
