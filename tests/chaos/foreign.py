"""Runs a third-party consumer of a run, which shares only the protocol's document with the library.

It is the consumer of the tests (``tests/third_party/consumer.py``), which exists only in a checkout.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Assigned

import kafka_coord
from kafka_coord.model import TopicPartition
from tests.chaos.journal import ConsumerWriter
from tests.chaos.logins import login
from tests.chaos.member import AGAIN_S, run
from tests.chaos.parts import Part

log = logging.getLogger("kafka_coord.chaos.foreign")

SOURCE = Path(kafka_coord.__file__).parents[1] / "tests" / "third_party" / "consumer.py"
"""The path of the consumer in a checkout."""


class Fetcher:
    """Fetches for the third-party consumer. Each partition has its own client, which keeps its position."""

    def __init__(self, bootstrap: str, user: str = "") -> None:
        self._bootstrap, self._user = bootstrap, user
        self._clients: dict[tuple[str, int], tuple[Consumer, int]] = {}

    def __call__(self, topic: str, partition: int, offset: int) -> list[tuple[int, bytes | None]]:
        client, place = self._clients.get((topic, partition)) or (self._client(), None)
        if place != offset:
            client.assign([Assigned(topic, partition, OFFSET_BEGINNING if offset < 0 else offset)])
        messages = [message for message in client.consume(100, timeout=0.02) if message.error() is None]
        end = (messages[-1].offset() or 0) + 1 if messages else offset
        self._clients[topic, partition] = client, end
        return [(message.offset() or 0, message.value()) for message in messages]

    def forget(self, topic: str, partition: int) -> None:
        """Closes the partition's client."""
        known = self._clients.pop((topic, partition), None)
        if known is not None:
            known[0].close()

    def close(self) -> None:
        """Closes all clients."""
        for of in list(self._clients):
            self.forget(*of)

    def _client(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "log_level": 0,
                "reconnect.backoff.max.ms": 1_000,
                **login(self._user),
            }
        )


def third_party() -> Any:
    """Returns the module of the third-party consumer. Raises :class:`FileNotFoundError` outside a checkout."""
    spec = importlib.util.spec_from_file_location("third_party_consumer", SOURCE)
    if spec is None or spec.loader is None or not SOURCE.is_file():
        raise FileNotFoundError(SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def telling(base: type[Any], journal: ConsumerWriter, fetcher: Fetcher) -> type[Any]:
    """Extends the class, so that it records each change of its partitions."""

    class Telling(base):  # type: ignore[misc]
        lost = False

        def _start(self, partitions: Mapping[tuple[str, int], int]) -> Any:
            found = super()._start(partitions)
            if self.lost:
                self.lost = False
                journal.rejoined()
            journal.started({TopicPartition(*of): at if at >= 0 else None for of, at in partitions.items()})
            return found

        def _stop(self, partitions: Mapping[tuple[str, int], None]) -> Any:
            journal.stopped(TopicPartition(*of) for of in partitions)
            for of in partitions:
                fetcher.forget(*of)
            return super()._stop(partitions)

        def _settle(self, offsets: Mapping[tuple[str, int], int], delete: str | None = None) -> None:
            super()._settle(offsets, delete)
            if offsets:
                journal.committed({TopicPartition(*of): offset for of, offset in offsets.items()})

        def _forget(self) -> None:
            held = [TopicPartition(*of) for of in getattr(self, "_positions", ())]
            super()._forget()
            if held:
                self.lost = True
                journal.lost(held)

    return Telling


def work(part: Part, zookeeper: str, bootstrap: str, journal: ConsumerWriter, stopping: threading.Event) -> None:
    """Consumes until the stop signal. Starts again if ZooKeeper is unreachable or the name is taken."""
    fetcher = Fetcher(bootstrap, part.user)
    module = third_party()
    passing = (module.KazooClient().handler.timeout_exception, module.kz.NodeExistsError)
    consumer_class = telling(module.ThirdPartyConsumer, journal, fetcher)
    while not stopping.is_set():
        try:
            with consumer_class(
                zookeeper,
                part.group,
                part.topics,
                fetcher,
                name=part.name,
                session_timeout=part.session_timeout_ms / 1000,
            ) as consumer:
                while not stopping.is_set():
                    since = time.monotonic()
                    record = consumer.poll(0.2)
                    if record is not None:
                        topic, partition, offset, value = record
                        journal.handed(since, time.monotonic(), [(topic, partition, offset, int(value or b"-1"))])
        except passing as error:
            log.warning("again soon consumer=%s: %r", part.name, error)
            stopping.wait(AGAIN_S)
        else:
            journal.closed()


if __name__ == "__main__":
    sys.exit(run("tests.chaos.foreign", __doc__, work, None))
