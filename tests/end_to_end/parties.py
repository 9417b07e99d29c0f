"""The parties of an end-to-end test: a producer of numbered records, coordinators and consumers, and the judge."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kafka_coord import Consumer
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.coordinator import Coordinator
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.errors import NoNode
from kafka_coord.kafka.offsets import BrokerLog
from kafka_coord.model import CoordinatorInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import Store
from tests.waiting import eventually

SESSION_MS = 6_000


class Numbered:
    """Produces records 0, 1, 2, … round robin over the partitions of a topic, on a thread, until stopped.

    ``written`` counts what the brokers have acknowledged, per partition.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, per_second: int = 2_000) -> None:
        # Idempotent, so that a retry to another leader writes no duplicates.
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings)
        self._topic = topic
        self._partitions = partitions
        self._pause_s = 50 / per_second
        self._stop = threading.Event()
        self.written: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._run, name="numbered-producer", daemon=True)

    def start(self) -> Numbered:
        self._thread.start()
        return self

    def burst(self, count: int) -> None:
        """Writes ``count`` records at once, on the caller's thread."""
        for n in range(count):
            self._put(n)
        assert self._producer.flush(90) == 0

    def stop(self) -> Counter[int]:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(10)
        assert self._producer.flush(90) == 0
        return self.written

    def _run(self) -> None:
        n = 0
        while not self._stop.wait(self._pause_s):
            for _ in range(50):
                self._put(n)
                n += 1
            self._producer.poll(0)

    def _put(self, n: int) -> None:
        self._producer.produce(
            self._topic, str(n).encode(), partition=n % self._partitions, on_delivery=self._delivered
        )
        self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.written[message.partition()] += 1


class Reader:
    """A library consumer on a thread; it records everything that it receives, in order."""

    def __init__(self, zookeeper: str | None, group: str, topic: str, name: str, **options: Any) -> None:
        self.name = name
        self.given: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        options.setdefault("session_timeout_ms", SESSION_MS)
        options.setdefault("topics", [topic])
        options.setdefault("auto_offset_reset", "earliest")
        self._options = {"zookeeper": zookeeper, "group": group, "consumer_id": name, **options}
        self.consumer: Consumer | None = None
        self._thread = threading.Thread(target=self._run, name=f"reader-{name}", daemon=True)

    def start(self) -> Reader:
        self._thread.start()
        return self

    def end(self) -> None:
        """Leaves cleanly, as ``with`` does; safe to call twice."""
        self._stop.set()
        self._thread.join(30)

    def stop(self) -> None:
        """Like :meth:`end`; fails if the consumer failed."""
        self.end()
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with Consumer(**self._options) as consumer:
                self.consumer = consumer
                while not self._stop.is_set():
                    record = consumer.poll(0.2)
                    if record is not None:
                        self.given.append((record.partition, record.offset))
        except BaseException as failure:  # noqa: BLE001  reported by stop(), on the test's thread
            self.failure = failure


@contextmanager
def coordinator(zookeeper: str, broker_id: int = 101) -> Iterator[CoordinatorService]:
    """A running service without a broker, elected or not."""
    store = connect(zookeeper, session_timeout_ms=SESSION_MS)
    lister = BrokerLog(store, {}, read_committed=True)
    service = CoordinatorService(store, broker_id, {}, CoordinatorOptions(), lister=lister.ends)
    service.start()
    try:
        eventually(lambda: service.registered)
        yield service
    finally:
        service.stop()
        lister.close()
        store.close()


class Listening:
    """Two serve processes that listen for consumers; ``bootstrap`` names both."""

    def __init__(self, directory: Path, brokers: list) -> None:
        ports = {broker.broker_id: free_port() for broker in brokers}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports.values())

        def command(broker) -> list[str]:
            serve = [sys.executable, "-m", "kafka_coord.cli.main", "serve", "--session-timeout-ms", "6000"]
            serve += ["--broker-id", str(broker.broker_id), "--zookeeper", broker.zookeeper]
            return [*serve, "--listen-channel", f"127.0.0.1:{ports[broker.broker_id]}"]

        self.instances = [Coordinator(directory, broker, command) for broker in brokers]


def elected(store: Store) -> CoordinatorInfo | None:
    try:
        data = store.get(layout.COORDINATOR).data
    except NoNode:
        return None
    return CoordinatorInfo.from_json(fields.load(data, layout.COORDINATOR), layout.COORDINATOR)


def all_given(readers: list[Reader]) -> Counter[tuple[int, int]]:
    return Counter(record for reader in readers for record in list(reader.given))


def wait_for_all(readers: list[Reader], written: Counter[int], within_s: float = 60) -> None:
    """Waits until every written record was received."""

    def missing() -> int:
        given = all_given(readers)
        failed = [reader.failure for reader in readers if reader.failure is not None]
        assert not failed, failed
        return sum(written.values()) - len(given)

    eventually(lambda: missing() <= 0, within_s=within_s, every_s=0.1)


def expected(written: Counter[int]) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, count in written.items() for offset in range(count)}


def owners(readers: list[Reader]) -> list[int]:
    """The number of partitions that each reader owns; -1 for one that has not started."""
    return [len(r.consumer.assignment()) if r.consumer else -1 for r in readers]
