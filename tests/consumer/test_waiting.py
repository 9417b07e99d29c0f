"""What a consumer does while its ZooKeeper does not answer, with real records and a ZooKeeper that is stopped."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kafka_coord import Consumer
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.zk import connect, layout
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

_STOPPED_S = 30.0


@pytest.fixture
def zookeeper(zookeeper_server_factory: Callable[..., ZooKeeperServer]) -> ZooKeeperServer:
    """A ZooKeeper of the group's own. The brokers use another one, so they go on while it is stopped."""
    return zookeeper_server_factory()


@pytest.fixture
def coordinator(zookeeper: ZooKeeperServer) -> Iterator[HandCoordinator]:
    store = connect(zookeeper.connect_string, session_timeout_ms=40_000)
    yield HandCoordinator(store, "g")
    store.close()


class Reader:
    """Reads records on a thread, and remembers each offset and when it came."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.read: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            record = self.consumer.poll(0.1)
            if record is not None:
                self.read.append((time.monotonic(), record.offset))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def again(self) -> list[int]:
        return [offset for offset, times in Counter(offset for _, offset in self.read).items() if times > 1]


@contextmanager
def producing(produce: Callable[..., list[bytes]], topic: str) -> Iterator[Callable[[], int]]:
    """Writes ten records a second. Yields the number of records written so far."""
    written = itertools.count()
    done, stop = [0], threading.Event()

    def write() -> None:
        while not stop.wait(0.1):
            produce(topic, 0, 1)
            done[0] = next(written) + 1

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield lambda: done[0]
    stop.set()
    thread.join()


@pytest.fixture
def make(
    kafka_cluster: KafkaCluster, zookeeper: ZooKeeperServer, make_topic: Callable[..., str]
) -> Iterator[Callable[..., tuple[Consumer, str]]]:
    made: list[Consumer] = []

    def make_one(**settings: object) -> tuple[Consumer, str]:
        topic = make_topic(partitions=1)
        arguments: dict[str, object] = {
            "auto_offset_reset": "earliest",
            "kafka": {"bootstrap.servers": kafka_cluster.bootstrap_servers},
            "session_timeout_ms": 10_000,
            **settings,
        }
        consumer = Consumer(zookeeper.connect_string, group="g", topics=[topic], **arguments)  # type: ignore[arg-type]
        made.append(consumer)
        return consumer, topic

    yield make_one
    for consumer in made:
        consumer.close()


@pytest.mark.parametrize("session_ms", [10_000, 40_000])
def test_a_stopped_zookeeper_makes_no_record_read_again(
    make: Callable[..., tuple[Consumer, str]],
    coordinator: HandCoordinator,
    zookeeper: ZooKeeperServer,
    produce: Callable[..., list[bytes]],
    session_ms: int,
):
    consumer, topic = make(session_timeout_ms=session_ms)
    coordinator.run_start(consumer.consumer_id, dict.fromkeys(partitions_of(topic, 0), 0))
    reader = Reader(consumer)
    with producing(produce, topic) as written:
        eventually(lambda: len(reader.read) > 10)
        zookeeper.pause()
        time.sleep(_STOPPED_S)
        zookeeper.resume()
        print(session_ms, consumer.stats, written(), len(reader.read))
        eventually(lambda: len(reader.read) >= written(), 60)
        print(session_ms, consumer.stats, reader.again)
    reader.close()
    assert reader.again == []
    assert consumer.stats.losses == 0
    assert [offset for _, offset in reader.read] == list(range(len(reader.read)))
