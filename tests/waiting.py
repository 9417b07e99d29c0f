"""Waiting for conditions, the only way in which tests wait."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, TopicMetadata

from kafka_coord.errors import StoreError
from kafka_coord.zk.store import Store

T = TypeVar("T")


def answered(client: Producer | AdminClient, topic: str) -> TopicMetadata:
    """The brokers' metadata of a topic; repeats the question if a broker has just died."""

    def ask() -> TopicMetadata | None:
        with contextlib.suppress(KafkaException):
            return client.list_topics(topic, timeout=10).topics[topic]
        return None

    return eventually(ask, within_s=60)


def eventually(condition: Callable[[], T], within_s: float = 30.0, every_s: float = 0.02) -> T:
    """The first true value of ``condition``. Fails the test with its last value if none comes in time."""
    deadline = time.monotonic() + within_s
    while True:
        late = time.monotonic() >= deadline  # before asking: the process may have slept long, so it asks once more
        if value := condition():
            return value
        assert not late, f"not within {within_s} s; last seen: {value!r}"
        time.sleep(every_s)


@contextlib.contextmanager
def beside(run: Callable[[threading.Event], object]) -> Iterator[None]:
    """Calls ``run`` in a thread while the block runs. It must return soon after the event is set."""
    ends = threading.Event()
    thread = threading.Thread(target=run, args=(ends,))
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def write(producer: Producer, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Writes records to one partition, which may be new. The first is repeated until it is written: a producer gives
    records up at once as long as it does not know their partition, and ``flush`` does not tell."""

    def failures(some: Sequence[bytes]) -> list[KafkaError]:
        found: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                found.append(error)

        for value in some:
            try:
                producer.produce(topic, value, key=b"k", partition=partition, on_delivery=delivered)
            except KafkaException as error:
                found.append(error.args[0])
            producer.poll(0)
        assert producer.flush(90) == 0
        return found

    eventually(lambda: answered(producer, topic) and not failures(values[:1]), within_s=60)
    assert not failures(values[1:])


def delete_all(store: Store, path: str) -> None:
    """Deletes the znode and what is below it, also what running instances create meanwhile."""

    def gone() -> bool:
        with contextlib.suppress(StoreError):
            for name in store.children(path):
                delete_all(store, f"{path}/{name}")
            store.delete(path)
        return store.exists(path) is None

    eventually(gone)
