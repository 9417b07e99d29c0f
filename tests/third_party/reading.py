"""A third-party consumer at work: its records from real brokers, on a thread of its own."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.end_to_end.parties import SESSION_MS, Reader
from tests.third_party.consumer import ThirdPartyConsumer


class Fetcher:
    """What a third-party consumer is handed: fetches from a partition, with a client for each that keeps its place."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._clients: dict[tuple[str, int], tuple[Consumer, int]] = {}

    def __call__(self, topic: str, partition: int, offset: int) -> list[tuple[int, bytes]]:
        client, place = self._clients.get((topic, partition), (None, None))
        if client is None:
            client = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "none", "enable.auto.commit": False})
        if place != offset:
            client.assign([TopicPartition(topic, partition, OFFSET_BEGINNING if offset < 0 else offset)])
        messages = [message for message in client.consume(100, timeout=0.02) if message.error() is None]
        self._clients[topic, partition] = client, messages[-1].offset() + 1 if messages else offset
        return [(message.offset(), message.value()) for message in messages]

    def close(self) -> None:
        for client, _ in self._clients.values():
            client.close()


class ThirdPartyReader(Reader):
    """As the library's reader, and counted together with it."""

    def __init__(self, zookeeper: str, bootstrap: str, group: str, topic: str, name: str) -> None:
        super().__init__(zookeeper, group, topic, name)
        self._made_of: tuple[Any, ...] = (zookeeper, group, [topic])
        self._fetcher = Fetcher(bootstrap)

    def _run(self) -> None:
        try:
            with ThirdPartyConsumer(
                *self._made_of, self._fetcher, name=self.name, session_timeout=SESSION_MS / 1000
            ) as consumer:
                self.consumer = consumer
                while not self._stop.is_set():
                    record = consumer.poll(0.2)
                    if record is not None:
                        self.given.append(record[1:3])
        except BaseException as failure:  # noqa: BLE001  reported by stop(), on the test's thread
            self.failure = failure
        finally:
            self._fetcher.close()
