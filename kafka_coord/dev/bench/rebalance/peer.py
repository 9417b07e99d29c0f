"""Runs several fetching members in one process: this project's consumers, or those of other Python clients. Each
event is appended to a journal, as in :mod:`~kafka_coord.dev.bench.rebalance.member`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as Assigned

from kafka_coord import Consumer
from kafka_coord.dev.bench.rebalance.contenders import LIBRARIES, Protocol
from kafka_coord.dev.bench.rebalance.journal import What
from kafka_coord.dev.bench.rebalance.member import Journal, Note, Orderly, serve_orders
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.zk.session import connect

_POLL_S = 0.1
_ENDS_S = 60.0


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """The group and servers for the members of a process. ``settings`` are passed to the client library."""

    protocol: Protocol
    bootstrap: str
    zookeeper: str
    group: str
    topic: str
    settings: Mapping[str, Any]
    journal: str


class _Fetching:
    """A thread that reads until it is stopped; its consumer then leaves the group."""

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
        """Stops the thread. Returns whether it was running."""
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


class PeerMember(_Fetching, ABC):
    """A member that uses another client library. It creates its client before it subscribes, which favours that library
    in the comparison."""

    def __init__(self, place: PeerPlace, name: str, note: Note) -> None:
        super().__init__(note)
        self._place, self._name = place, name
        self._client = self._made()

    @abstractmethod
    def _made(self) -> Any:
        """Returns a new client."""

    @abstractmethod
    def _subscribe(self) -> None: ...

    @abstractmethod
    def _read(self) -> None:
        """Reads for at most :data:`_POLL_S`."""

    @abstractmethod
    def _close(self) -> None:
        """Closes the client, which leaves the group."""

    def join(self) -> None:
        self._note(What.JOINING, ())
        self._subscribe()
        self.start(self._read, self._close)

    def leave(self) -> None:
        if self.stop():
            self._client = self._made()

    def close(self) -> None:
        if not self.stop():
            self._close()


class ConfluentMember(PeerMember):
    """A member that uses confluent-kafka. Its callbacks run after partitions have stopped, but before the client
    requests the offsets to start from, so gaps look shorter than they are."""

    def _made(self) -> Any:
        place = self._place
        names = {"bootstrap.servers": place.bootstrap, "group.id": place.group, "client.id": self._name, "log_level": 0}
        return KafkaConsumer(names | dict(place.settings))

    def _subscribe(self) -> None:
        self._client.subscribe(
            [self._place.topic],
            on_assign=lambda _, partitions: self.started(_ours(partitions)),
            on_revoke=lambda _, partitions: self.stopped(_ours(partitions)),
            on_lost=lambda _, partitions: self.stopped(_ours(partitions)),
        )

    def _read(self) -> None:
        self._client.poll(_POLL_S)

    def _close(self) -> None:
        self._client.close()


class KafkaPythonMember(PeerMember):
    """A member that uses kafka-python."""

    def _made(self) -> Any:
        from kafka import KafkaConsumer as Client

        place = self._place
        return Client(bootstrap_servers=place.bootstrap, group_id=place.group, **place.settings)

    def _subscribe(self) -> None:
        from kafka.consumer.subscription_state import ConsumerRebalanceListener

        self._client.subscribe([self._place.topic], listener=_listener(ConsumerRebalanceListener, self))

    def _read(self) -> None:
        self._client.poll(timeout_ms=_POLL_S * 1000)

    def _close(self) -> None:
        self.stopped(_ours(self._client.assignment()))  # close does not call the listener
        self._client.close()


class AiokafkaMember(PeerMember):
    """A member that uses aiokafka, with an event loop of its own."""

    def __init__(self, place: PeerPlace, name: str, note: Note) -> None:
        self._run = asyncio.new_event_loop().run_until_complete
        super().__init__(place, name, note)

    def _made(self) -> Any:
        return self._run(self._started())

    async def _started(self) -> Any:
        from aiokafka import AIOKafkaConsumer

        place = self._place
        client = AIOKafkaConsumer(bootstrap_servers=place.bootstrap, group_id=place.group, **place.settings)
        await client.start()
        return client

    def _subscribe(self) -> None:
        from aiokafka.abc import ConsumerRebalanceListener

        async def subscribe() -> None:
            self._client.subscribe([self._place.topic], listener=_listener(ConsumerRebalanceListener, self))

        self._run(subscribe())

    def _read(self) -> None:
        self._run(self._client.getmany(timeout_ms=round(_POLL_S * 1000)))

    def _close(self) -> None:
        self.stopped(_ours(self._client.assignment()))  # close does not call the listener
        self._run(self._client.stop())


def _listener(base: type, member: _Fetching) -> Any:
    """Returns a rebalance listener for kafka-python or aiokafka that passes its calls to ``member``."""

    def stopped(_: object, partitions: Iterable[Assigned]) -> None:
        member.stopped(_ours(partitions))

    def started(_: object, partitions: Iterable[Assigned]) -> None:
        member.started(_ours(partitions))

    told = {"on_partitions_assigned": started, "on_partitions_revoked": stopped, "on_partitions_lost": stopped}
    return type("Listener", (base,), told)()


def _ours(partitions: Iterable[Assigned]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, one.partition) for one in partitions]


_PEERS: Mapping[str, type[PeerMember]] = {"aiokafka": AiokafkaMember, "kafka-python": KafkaPythonMember}


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    given = json.loads(sys.argv[1])
    place = PeerPlace(**given | {"protocol": Protocol(given["protocol"])})
    journal = Journal(place.journal)
    library = LIBRARIES.get(place.protocol, "").partition("==")[0]

    def make(consumer: str) -> Orderly:
        def note(what: What, partitions: Iterable[TopicPartition]) -> None:
            journal.note(consumer, what, PartitionSet.of(partitions))

        if place.protocol is Protocol.OURS:
            return OwnMember(place, consumer, note)
        return _PEERS.get(library, ConfluentMember)(place, consumer, note)

    serve_orders(make, sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
