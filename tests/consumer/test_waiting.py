"""What a consumer does while its ZooKeeper does not answer, with real records and a ZooKeeper that is stopped."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kafka_coord import Consumer
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.zk import connect, layout
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.waiting import beside, eventually
from tests.zk.sessions import Wire

pytestmark = pytest.mark.kafka

_STOPPED_S = 30.0


@pytest.fixture
def zookeeper(zookeeper_server_factory: Callable[..., ZooKeeperServer]) -> ZooKeeperServer:
    """A ZooKeeper of the group's own. The brokers use another one, so they go on while it is stopped."""
    return zookeeper_server_factory()


@pytest.fixture
def coordinator(zookeeper: ZooKeeperServer) -> Iterator[HandCoordinator]:
    store = connect(zookeeper.connect_string, session_timeout_ms=44_000)
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


@contextmanager
def producing(produce: Callable[..., list[bytes]], topic: str) -> Iterator[Callable[[], int]]:
    """Writes ten records a second. Yields the number of records written so far."""
    written = itertools.count()
    done = [0]

    def write(stop: threading.Event) -> None:
        while not stop.wait(0.1):
            produce(topic, 0, 1)
            done[0] = next(written) + 1

    with beside(write):
        yield lambda: done[0]


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
        hosts = str(arguments.pop("hosts", zookeeper.connect_string))
        consumer = Consumer(hosts, group="g", topics=[topic], **arguments)  # type: ignore[arg-type]
        made.append(consumer)
        return consumer, topic

    yield make_one
    for consumer in made:
        consumer.close()


def stop(server: ZooKeeperServer) -> Callable[[], object]:
    """Stops the process, and lets it continue. Its clock runs on meanwhile, so it then ends shorter sessions."""
    server.pause()
    return server.resume


def restart(server: ZooKeeperServer) -> Callable[[], object]:
    """Kills the process, and starts it again. It then gives every session a new timeout, as a new leader does."""
    server.kill()
    return server.start


@pytest.mark.parametrize(
    ("silence", "session_ms"),
    [pytest.param(stop, 44_000, id="stopped"), pytest.param(restart, 10_000, id="restarted")],
)
def test_no_record_is_read_again_after_zookeeper_has_not_answered_for_30_s(
    make: Callable[..., tuple[Consumer, str]],
    coordinator: HandCoordinator,
    zookeeper: ZooKeeperServer,
    produce: Callable[..., list[bytes]],
    silence: Callable[[ZooKeeperServer], Callable[[], object]],
    session_ms: int,
    caplog: pytest.LogCaptureFixture,
):
    consumer, topic = make(session_timeout_ms=session_ms)
    coordinator.run_start(consumer.consumer_id, dict.fromkeys(partitions_of(topic, 0), 0))
    reader = Reader(consumer)
    with producing(produce, topic) as written:
        eventually(lambda: len(reader.read) > 10)
        silent_at = time.monotonic()
        answer_again = silence(zookeeper)
        time.sleep(_STOPPED_S)
        held, last_read = consumer.assignment(), reader.read[-1][0]
        answer_again()
        eventually(lambda: len(reader.read) >= written(), 60)
    reader.close()
    assert [offset for _, offset in reader.read] == list(range(len(reader.read)))
    assert held == frozenset(partitions_of(topic, 0))
    assert consumer.stats.losses == 0
    assert last_read - silent_at < session_ms / 1000
    said = [message for message in caplog.messages if message.startswith("waiting consumer")]
    assert len(said) == consumer.stats.waits
    # right after it has connected, a lease lasts for almost the whole session timeout
    assert consumer.stats.waits in ({1} if session_ms < 1_000 * _STOPPED_S else {0, 1})


def test_a_consumer_whose_session_has_ended_meanwhile_loses_its_membership(
    make: Callable[..., tuple[Consumer, str]], coordinator: HandCoordinator, zookeeper: ZooKeeperServer
):
    with Wire(zookeeper.port) as wire:  # a stopped ZooKeeper might hear the consumer before it ends the session
        consumer, topic = make(session_timeout_ms=4_000, hosts=wire.hosts)
        incarnation = coordinator.await_member(consumer.consumer_id).incarnation
        coordinator.run_start(consumer.consumer_id, dict.fromkeys(partitions_of(topic, 0), 0))
        wire.cut()
        eventually(lambda: consumer.stats.waits == 1)
        assert consumer.assignment() == frozenset(partitions_of(topic, 0))
        eventually(lambda: coordinator.member(consumer.consumer_id) is None)
        wire.mend()
        eventually(lambda: consumer.stats.losses == 1)
        coordinator.await_member(consumer.consumer_id, other_than=incarnation)
        assert consumer.assignment() == frozenset()
        consumer.close()


def test_a_consumer_hands_out_only_for_the_rebalance_timeout_after_it_has_listed_its_channel(
    make: Callable[..., tuple[Consumer, str]],
    coordinator: HandCoordinator,
    zookeeper: ZooKeeperServer,
    produce: Callable[..., list[bytes]],
):
    consumer, topic = make(session_timeout_ms=40_000)
    coordinator.await_member(consumer.consumer_id)
    coordinator.store.set(layout.group("g"), b'{"version":1,"rebalance_timeout_ms":3000}')
    coordinator.run_start(consumer.consumer_id, dict.fromkeys(partitions_of(topic, 0), 0))
    reader = Reader(consumer)
    with producing(produce, topic) as written:
        eventually(lambda: len(reader.read) > 50)
        stopped_at = time.monotonic()
        zookeeper.pause()
        time.sleep(8)
        last_read = reader.read[-1][0]
        zookeeper.resume()
        eventually(lambda: len(reader.read) >= written(), 60)
    reader.close()
    assert last_read - stopped_at < 3.5
    assert [offset for _, offset in reader.read] == list(range(len(reader.read)))
    assert (consumer.stats.waits, consumer.stats.losses) == (1, 0)
