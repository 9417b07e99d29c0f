"""What operators' commands and the monitor ask of the brokers, through one interface.

This project's own connections answer it wherever they know how the brokers are secured: plaintext or TLS, without SASL
or with PLAIN or SCRAM. librdkafka answers it for all other sites.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Protocol, TypeVar

from kafka_coord.classic_groups.errors import BrokerCode, Error, named
from kafka_coord.errors import BrokerError, RequestRefused, SettingsError
from kafka_coord.kafka.authentication import knows_all
from kafka_coord.kafka.cluster import READ, RIGHTS_UNKNOWN, ClusterClient, may
from kafka_coord.model import TopicPartition
from kafka_coord.model.offsets import ListedOffsets

T = TypeVar("T")


class KafkaClient(Protocol):
    """A client of one cluster. Methods wait for the brokers, for about ``timeout_s`` seconds at most, and raise
    :class:`BrokerError` if no broker answers. Thread-safe."""

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool, timeout_s: float
    ) -> ListedOffsets:
        """Lists offsets like :meth:`~kafka_coord.kafka.cluster.ClusterClient.list_offsets`."""

    def refused(self, topics: Iterable[str], timeout_s: float) -> dict[str, str | None]:
        """Returns the topics that the client is not allowed to describe or to read, each with the reason, and those
        that the brokers do not tell of, each with ``None``. A broker before 2.3 does not tell whether the client may
        read."""

    def led_partitions(self, topic: str, timeout_s: float) -> int:
        """Returns the number of partitions that have a leader, or 0 if the topic does not exist."""

    def create_topic(self, topic: str, partitions: int, replication: int, timeout_s: float) -> bool:
        """Creates the topic. -1 stands for the brokers' own number. Returns false if the topic exists. Raises
        :class:`RequestRefused`."""

    def close(self) -> None: ...


def connect(bootstrap: str, properties: Mapping[str, str]) -> KafkaClient:
    """Returns a client of the cluster. ``properties`` are librdkafka's. Raises :class:`BrokerError` for properties that
    librdkafka does not know or accept. Connects on first use."""
    from kafka_coord.kafka.librdkafka import LibrdkafkaClient, why_refused

    try:
        why = why_refused(properties)
    except (TypeError, ValueError, AttributeError) as error:
        why = str(error)
    if why:
        raise BrokerError(f"librdkafka rejected the broker settings: {why}")
    if knows_all(properties):
        try:
            return OwnClient(ClusterClient.of(bootstrap, properties))
        except SettingsError:  # an address without a port
            pass
    return LibrdkafkaClient(bootstrap, properties)


def run_with(cluster: ClusterClient, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """Returns the result of ``work``, and closes the cluster's connections. May be called on any thread."""

    async def run() -> T:
        with closing(cluster):
            return await work(cluster)

    return _outside_loops(lambda: asyncio.run(run()))


def _outside_loops(work: Callable[[], T]) -> T:
    """Calls ``work``, which runs an event loop: on another thread if this one runs a loop already, as a notebook's
    does, because no loop can run inside another."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "kafka-coord-asks") as pool:
        return pool.submit(work).result()


class OwnClient:
    """A :class:`KafkaClient` over this project's own connections. They stay open between two calls."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._runner: asyncio.Runner | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._runner is not None:
                _outside_loops(partial(self._end, self._runner))
            self._runner = None

    def _end(self, runner: asyncio.Runner) -> None:
        async def closed() -> None:
            self._cluster.close()
            await asyncio.sleep(0)  # the transports close their sockets in the loop's next pass

        runner.run(closed())
        runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def after_news() -> T:
            await asyncio.sleep(0)  # the loop stood still: it may hear only now that a broker has hung up
            return await work

        with self._lock:
            if self._is_closed:
                work.close()
                raise BrokerError("the connections to the brokers are closed")
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            return _outside_loops(partial(self._runner.run, after_news()))

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool, timeout_s: float
    ) -> ListedOffsets:
        return self._run(
            self._cluster.list_offsets(partitions, timestamp, read_committed=read_committed, timeout_s=timeout_s)
        )

    def refused(self, topics: Iterable[str], timeout_s: float) -> dict[str, str | None]:
        wanted = list(topics)
        try:
            answer = self._run(self._cluster.metadata(wanted, rights=True, timeout_s=timeout_s))
        except BrokerError:
            return dict.fromkeys(wanted)
        told = {topic.name: topic for topic in answer.topics}
        refused: dict[str, str | None] = {}
        for name in wanted:
            code = told[name].error_code if name in told else Error.UNKNOWN_SERVER_ERROR
            rights = told[name].topic_authorized_operations if name in told else RIGHTS_UNKNOWN
            if code == Error.TOPIC_AUTHORIZATION_FAILED:
                refused[name] = named(code)
            elif code not in {Error.NONE, Error.UNKNOWN_TOPIC_OR_PARTITION}:
                refused[name] = None
            elif code == Error.NONE and not may(READ, rights):
                refused[name] = "not authorized to READ the topic"
        return refused

    def led_partitions(self, topic: str, timeout_s: float) -> int:
        answer = self._run(self._cluster.metadata([topic], timeout_s=timeout_s))
        described = [one for one in answer.topics if one.name == topic and not one.error_code]
        return sum(part.leader_id >= 0 for one in described for part in one.partitions)

    def create_topic(self, topic: str, partitions: int, replication: int, timeout_s: float) -> bool:
        code, said = self._run(self._cluster.create_topic(topic, partitions, replication, timeout_s=timeout_s))
        if code not in {Error.NONE, BrokerCode.TOPIC_ALREADY_EXISTS}:
            raise RequestRefused(f"cannot create topic {topic}: {said or named(code)}")
        return code == Error.NONE
