"""Runs several fetching members in one process: this project's consumers, or confluent-kafka's in Kafka's own groups.
The process appends each event of a partition to a journal, like :mod:`~kafka_coord.dev.bench.rebalance.member`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as Assigned

from kafka_coord import Consumer
from kafka_coord.dev.bench.rebalance.contenders import Protocol
from kafka_coord.dev.bench.rebalance.journal import What
from kafka_coord.dev.bench.rebalance.member import Journal, Note, serve_orders
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.zk.session import connect

_POLL_S = 0.1
_ENDS_S = 60.0


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """The group and servers of a process's members. ``settings`` are librdkafka's."""

    protocol: Protocol
    bootstrap: str
    zookeeper: str
    group: str
    topic: str
    settings: Mapping[str, Any]
    journal: str


class _Fetching:
    """A thread that reads until it is stopped. Then its consumer leaves the group."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, read: Callable[[], object], leave: Callable[[], object]) -> None:
        def run() -> None:
            try:
                while not self._ended.is_set():
                    read()
            finally:
                self._note(What.LEAVING, ())
                leave()

        self._ended.clear()
        self._thread = threading.Thread(target=run, name="bench-reading")
        self._thread.start()

    def stop(self) -> bool:
        """Stops the thread. Tells whether it was running."""
        if self._thread is None:
            return False
        self._ended.set()
        self._thread.join(_ENDS_S)
        self._thread = None
        return True

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        if found := list(partitions):
            self._note(What.STARTED, found)
            self._note(What.ACKNOWLEDGED, ())

    def stopped(self, partitions: Iterable[TopicPartition]) -> None:
        if found := list(partitions):
            self._note(What.STOPPED, found)
            self._note(What.ACKNOWLEDGED, ())


class OwnMember(_Fetching):
    """This project's consumer. It opens its session before it registers."""

    def __init__(self, place: PeerPlace, name: str, note: Note) -> None:
        super().__init__(note)
        self._place, self._name = place, name
        self._store = connect(place.zookeeper, session_timeout_ms=10_000)

    def join(self) -> None:
        self._note(What.JOINING, ())
        consumer = Consumer(
            store=self._store,
            group=self._place.group,
            topics=[self._place.topic],
            consumer_id=self._name,
            kafka={"bootstrap.servers": self._place.bootstrap, **self._place.settings},
            on_start=self.started,
            on_stop=self.stopped,
            on_lost=self.stopped,
        )
        self.start(lambda: consumer.consume(timeout_s=_POLL_S), consumer.close)

    def leave(self) -> None:
        self.stop()

    def close(self) -> None:
        self.leave()
        self._store.close()


class PeerMember(_Fetching):
    """A member of one of Kafka's own groups. It creates its client before it subscribes. Its callbacks come after a
    stop, and before it requests the offsets for a start. Both favour this member in the comparison.
    """

    def __init__(self, place: PeerPlace, name: str, note: Note) -> None:
        super().__init__(note)
        self._place = place
        self._settings = {
            "bootstrap.servers": place.bootstrap,
            "group.id": place.group,
            "client.id": name,
            "log_level": 0,
            **place.settings,
        }
        self._client = KafkaConsumer(self._settings)

    def join(self) -> None:
        client = self._client
        self._note(What.JOINING, ())
        client.subscribe(
            [self._place.topic],
            on_assign=lambda _, partitions: self.started(_ours(partitions)),
            on_revoke=lambda _, partitions: self.stopped(_ours(partitions)),
            on_lost=lambda _, partitions: self.stopped(_ours(partitions)),
        )
        self.start(lambda: client.poll(_POLL_S), client.close)

    def leave(self) -> None:
        if self.stop():
            self._client = KafkaConsumer(self._settings)

    def close(self) -> None:
        if not self.stop():
            self._client.close()


def _ours(partitions: Sequence[Assigned]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, one.partition) for one in partitions]


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    given = json.loads(sys.argv[1])
    place = PeerPlace(**given | {"protocol": Protocol(given["protocol"])})
    journal = Journal(place.journal)
    kind = OwnMember if place.protocol is Protocol.OURS else PeerMember

    def make(consumer: str) -> OwnMember | PeerMember:
        def note(what: What, partitions: Iterable[TopicPartition]) -> None:
            journal.note(consumer, what, PartitionSet.of(partitions))

        return kind(place, consumer, note)

    serve_orders(make, sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
