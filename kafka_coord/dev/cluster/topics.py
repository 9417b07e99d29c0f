"""The topics of a cluster: creates, grows and deletes them, reads the cluster's metadata from one of its brokers, and
checks that the cluster is ready by writing records and reading them back."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafka_coord.errors import BrokerError, DevClusterError, NotFound, RequestRefused, Timeout
from kafka_coord.settings import host_and_port


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One broker's metadata: the live brokers, the controller, and the leader of each partition.

    ``controller`` and leaders are broker ids, or -1 if there is none.
    """

    brokers: Mapping[int, str]
    controller: int
    topics: Mapping[str, Mapping[int, int]]

    def led_partitions(self, topic: str) -> int:
        """Returns how many partitions of ``topic`` have a live leader. An unknown topic has 0."""
        return sum(leader in self.brokers for leader in self.topics.get(topic, {}).values())


def view_of(address: str, timeout_s: float = 5.0) -> ClusterView | None:
    """Returns the metadata of the broker at ``address`` (``host:port``), or None if the broker does not answer."""
    try:
        # If the connection is refused, librdkafka retries and logs it, so try a plain socket first: it fails fast and
        # logs nothing.
        socket.create_connection(host_and_port(address), timeout=1).close()
        # A new client each time, because one that knows other brokers might ask any of them.
        answer = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=timeout_s)
    except (OSError, KafkaException):
        return None
    return ClusterView(
        brokers={broker.id: f"{broker.host}:{broker.port}" for broker in answer.brokers.values()},
        controller=answer.controller_id,
        topics={
            name: {number: partition.leader for number, partition in topic.partitions.items()}
            for name, topic in answer.topics.items()
            if topic.error is None
        },
    )


_POLL_S = 0.05
_AGAIN_S = 0.5
NO_CONTROLLER = frozenset({KafkaError.NOT_CONTROLLER, KafkaError.UNKNOWN})
"""Errors from a broker that has just become, or has just stopped being, the controller."""


class TopicAdmin:
    """Creates, grows and deletes topics of the cluster at ``bootstrap_servers`` (``host:port,…``).

    Every method raises :class:`~kafka_coord.errors.Timeout` if a live broker does not show the result within
    ``timeout_s`` seconds, and :class:`~kafka_coord.errors.BrokerError` if no broker answers.
    """

    def __init__(self, bootstrap_servers: str, *, timeout_s: float = 60.0) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        # a topic recreated within this time corrupts librdkafka's memory (ADR 11)
        settings = {"metadata.max.age.ms": 100, "log_level": 0}
        # no answer takes longer, whatever the timeouts of the request
        settings["socket.timeout.ms"] = round(max(timeout_s, 60.0) * 1000)
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, **settings})

    def create(
        self, name: str, partitions: int = 1, *, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic. Returns when all its partitions have a leader in the metadata of every live broker.

        Raises :class:`~kafka_coord.errors.RequestRefused` if the topic exists or Kafka refuses to create it.
        """
        self._ask(
            lambda: self._create(name, partitions, replication, config or {}),
            f"create topic {name}",
            KafkaError.TOPIC_ALREADY_EXISTS,
        )
        self._await(
            lambda view: view.led_partitions(name) == partitions, f"{partitions} partitions of {name} to have leaders"
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Grows a topic to ``total`` partitions. Returns when every live broker knows the leaders of all of them.

        Raises :class:`~kafka_coord.errors.RequestRefused` if it already has that many, or does not exist.
        """
        self._ask(
            lambda: self._admin.create_partitions([NewPartitions(name, total)], operation_timeout=self._timeout_s),
            f"add partitions to {name}",
            KafkaError.INVALID_PARTITIONS,
        )
        self._await(lambda view: view.led_partitions(name) == total, f"{total} partitions of {name} to have leaders")

    def delete(self, name: str) -> None:
        """Deletes a topic. Returns when no live broker lists it and the name can be used again.

        Raises :class:`~kafka_coord.errors.RequestRefused` if it does not exist.
        """
        self._ask(
            lambda: self._admin.delete_topics([name], operation_timeout=self._timeout_s),
            f"delete topic {name}",
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )
        self._await(lambda view: name not in view.topics, f"{name} to disappear from the metadata")
        # A topic can be absent from the metadata but still in ZooKeeper, so this asks Kafka whether the name is free.
        deadline = time.monotonic() + self._timeout_s
        while not self._name_is_free(name):
            self._sleep_until(deadline, f"topic {name} to be deleted from ZooKeeper")

    def partition_count(self, name: str) -> int:
        """Returns the number of partitions. Raises :class:`~kafka_coord.errors.NotFound` if there is no such topic."""
        partitions = self._any_view().topics.get(name)
        if not partitions:
            raise NotFound(f"no topic {name} at {self.bootstrap_servers}")
        return len(partitions)

    def _create(
        self, name: str, partitions: int, replication: int, config: Mapping[str, str], *, validate_only: bool = False
    ) -> dict[str, Future[Any]]:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config))
        futures: dict[str, Future[Any]] = self._admin.create_topics(
            [topic],
            operation_timeout=self._timeout_s,
            request_timeout=self._timeout_s,
            validate_only=validate_only,
        )
        return futures

    def _name_is_free(self, name: str) -> bool:
        try:
            self._answer(self._create(name, 1, 1, {}, validate_only=True)[name])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise BrokerError(f"cannot determine whether topic {name} is deleted: {error.args[0].str()}") from error
        return True

    def _ask(self, ask: Callable[[], Mapping[str, Future[Any]]], what: str, is_done: int) -> None:
        """Sends a request, and retries while the addressed broker is not the controller. It may have carried the
        request out all the same: the error ``is_done`` of a retry says so. After the controller has changed, librdkafka
        finds the new one only in metadata, which it fetches every five minutes, so the metadata is requested before
        each retry.
        """
        deadline, tries = time.monotonic() + self._timeout_s, 0
        while True:
            cause, tries = self._refusal(ask()), tries + 1
            if cause is None or (tries > 1 and cause.code() == is_done):
                return
            if cause.code() == KafkaError._TIMED_OUT:
                raise self._silent()
            if cause.code() < KafkaError.UNKNOWN:  # librdkafka's own errors: no broker, no answer
                raise BrokerError(f"cannot {what}: {cause.str()} ({self.bootstrap_servers})")
            if cause.code() not in NO_CONTROLLER or time.monotonic() > deadline:
                raise RequestRefused(f"cannot {what}: {cause.str()}")
            time.sleep(_AGAIN_S)
            with contextlib.suppress(KafkaException):  # no broker answers at the moment
                self._admin.list_topics(timeout=self._timeout_s / 10)

    def _refusal(self, futures: Mapping[str, Future[Any]]) -> KafkaError | None:
        try:
            for future in futures.values():
                self._answer(future)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            return cause
        return None

    def _answer(self, future: Future[Any]) -> None:
        try:
            future.result(self._timeout_s)
        except TimeoutError:  # librdkafka has not reported its own timeout yet
            raise self._silent() from None

    def _silent(self) -> Timeout:
        return Timeout(f"no broker at {self.bootstrap_servers} answered within {self._timeout_s:.0f} s")

    def _await(self, condition: Callable[[ClusterView], bool], what: str) -> None:
        """Waits until ``condition`` holds for the metadata of every live broker."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            views = [view_of(address) for address in self._any_view().brokers.values()]
            if all(view is not None and condition(view) for view in views):
                return
            self._sleep_until(deadline, what)

    def _any_view(self) -> ClusterView:
        for address in self.bootstrap_servers.split(","):
            if (view := view_of(address)) is not None:
                return view
        raise BrokerError(f"no broker answers at {self.bootstrap_servers}")

    def _sleep_until(self, deadline: float, what: str) -> None:
        if time.monotonic() >= deadline:
            raise Timeout(f"timed out after {self._timeout_s:.0f} s waiting for {what}")
        time.sleep(_POLL_S)


TOPIC = "kafka-coord-dev-probe"


def write_and_read_back(bootstrap_servers: str, brokers: int, timeout_s: float = 60.0) -> None:
    """Writes a record through each of ``brokers`` brokers to a temporary topic, and reads it back.

    Raises :class:`DevClusterError` if a record is refused, or cannot be read back within ``timeout_s`` seconds.
    """
    topics = TopicAdmin(bootstrap_servers, timeout_s=timeout_s)
    with contextlib.suppress(RequestRefused):  # the topic exists only if an earlier probe was killed
        topics.delete(TOPIC)
    topics.create(TOPIC, partitions=brokers)  # Kafka gives each broker one
    try:
        token = uuid.uuid4().bytes
        _write(bootstrap_servers, token, brokers, timeout_s)
        _read(bootstrap_servers, token, brokers, timeout_s)
    finally:
        topics.delete(TOPIC)


def _write(bootstrap_servers: str, token: bytes, partitions: int, timeout_s: float) -> None:
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "message.timeout.ms": int(timeout_s * 1000), "log_level": 0}
    )
    for partition in range(partitions):
        producer.produce(TOPIC, token, partition=partition, on_delivery=delivered)
    left = producer.flush(timeout_s)
    if left or failures:
        raise DevClusterError(
            f"the brokers did not accept all test records: {failures[0] if failures else 'no answer'}"
        )


def _read(bootstrap_servers: str, token: bytes, partitions: int, timeout_s: float) -> None:
    # Even without a subscription, librdkafka looks for its group's coordinator, and Kafka then creates
    # __consumer_offsets. An empty group name would avoid that, but makes librdkafka crash in close().
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": TOPIC, "enable.auto.commit": False, "log_level": 0}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(partitions)])
        awaited = set(range(partitions))
        deadline = time.monotonic() + timeout_s
        while awaited:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None and message.value() == token:
                awaited.discard(message.partition())
            elif time.monotonic() >= deadline:
                raise DevClusterError(f"test records were written, but could not be read within {timeout_s:.0f} s")
    except KafkaException as error:
        raise DevClusterError(f"test records cannot be read: {error}") from error
    finally:
        consumer.close()
