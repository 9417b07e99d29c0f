"""Answers requests for the cluster metadata that every instance serves: Kafka's brokers, the instances and the
coordinator. A request waits until ZooKeeper has responded, or until another coordinator has been elected.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from kafka_coord.channel.messages import ClusterMetadata, Coordinator, MetadataQuestion
from kafka_coord.errors import MalformedValue
from kafka_coord.frontends.socket.connection import Connection
from kafka_coord.model import CoordinatorInfo, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import decode_brokers, numbers
from kafka_coord.zk.store import GetChildren, GetData, Node, ReadResult, Store

log = logging.getLogger(__name__)


class MetadataDirectory:
    """Caches the metadata for ``age_s`` seconds, however many clients ask. Not thread-safe."""

    def __init__(self, store: Store, instance: int, age_s: float) -> None:
        self._store = store
        self._instance = instance
        self._age_s = age_s
        self._read_at = float("-inf")
        self._metadata: ClusterMetadata | None = None
        self._reported: frozenset[Unreadable] = frozenset()

    def forget(self) -> None:
        """Drops the cached metadata, so that the next :meth:`read` reads from ZooKeeper again."""
        self._read_at = float("-inf")

    def known_coordinator(self) -> Coordinator | None:
        """Returns the coordinator that the last read found, or ``None``. Does not ask ZooKeeper."""
        return self._metadata.coordinator if self._metadata is not None else None

    def read(self) -> ClusterMetadata:
        """Returns the metadata, from the cache if that is recent enough. Raises :class:`StoreUnavailable`."""
        now = self._store.clock.monotonic()
        if self._metadata is None or now - self._read_at >= self._age_s:
            self._metadata = self._read_now()
            self._read_at = now
        return self._metadata

    def _read_now(self) -> ClusterMetadata:
        brokers, instances, coordinator = self._store.read_many(
            [GetChildren(layout.BROKER_IDS), GetChildren(layout.COORDINATORS), GetData(layout.COORDINATOR)]
        )
        names, instance_ids = brokers if isinstance(brokers, tuple) else (), numbers(instances)
        nodes = self._store.read_many(
            [GetData(layout.broker(name)) for name in names]
            + [GetData(layout.instance(number)) for number in instance_ids]
        )
        registered = decode_brokers(names, nodes[: len(names)])
        for broker in registered.unreadable:
            if broker not in self._reported:
                log.warning("skipped a broker path=%s reason=%s", broker.path, broker.reason)
        self._reported = frozenset(registered.unreadable)
        return ClusterMetadata(
            instance=self._instance,
            brokers={one.broker_id: tuple(listener.endpoint for listener in one.listeners) for one in registered.live},
            protocols={listener.name: listener.protocol for one in registered.live for listener in one.listeners},
            instances=[
                endpoint
                for node in nodes[len(names) :]
                if (endpoint := _endpoints(node, layout.COORDINATORS).get("channel")) is not None
            ],
            coordinator=_coordinator(coordinator),
        )


def _endpoints(node: ReadResult, where: str) -> dict[str, str]:
    if not isinstance(node, Node):
        return {}
    try:
        found = fields.mapping(fields.load(node.data, where), "endpoints", where, {})
    except MalformedValue:
        return {}
    return {name: endpoint for name, endpoint in found.items() if isinstance(endpoint, str)}


def _coordinator(node: ReadResult) -> Coordinator | None:
    if not isinstance(node, Node):
        return None
    try:
        info = CoordinatorInfo.from_bytes(node.data, layout.COORDINATOR)
    except MalformedValue as error:
        log.warning("cannot determine which instance is the coordinator: %s", error)
        return None
    return Coordinator(info.broker_id, info.epoch, info.endpoints.get("channel"))


MAX_WAITING = 10_000
_LONGEST_WAIT_S = 5.0
"""How long a request may wait, in seconds. Shorter than the time limit for a client to register."""


class _Question(NamedTuple):
    """A request that must be answered by ``until``, in monotonic seconds."""

    connection: Connection
    request: int
    question: MetadataQuestion
    until: float


class Questions:
    """The waiting requests. Not thread-safe."""

    def __init__(self, directory: MetadataDirectory, look_every_s: float) -> None:
        self._directory = directory
        self._look_every_s = look_every_s
        self._asking: list[_Question] = []
        self._waiting: list[_Question] = []
        self._waiting_due = float("inf")

    def ask(self, connection: Connection, request: int, question: MetadataQuestion, now: float) -> bool:
        """Queues a request. Returns false if too many requests are already queued."""
        if len(self._asking) + len(self._waiting) >= MAX_WAITING:
            return False
        until = now + min(question.wait_ms / 1000, _LONGEST_WAIT_S)
        self._asking.append(_Question(connection, request, question, until))
        return True

    def look_at_once(self) -> None:
        """Makes the next step check the waiting requests, because a term has begun on this instance."""
        self._directory.forget()
        self._waiting_due = 0.0 if self._waiting else float("inf")

    def step(self, now: float) -> float:
        """Answers new requests and, at intervals, those that are waiting; whatever cannot be answered yet waits.
        Returns when to call this method again, in monotonic seconds. Raises :class:`StoreUnavailable`."""
        if now < self._waiting_due and not self._asking:
            return self._waiting_due
        metadata = self._directory.read()
        response = metadata.to_json()
        asking, self._asking = self._asking, []
        if now >= self._waiting_due:
            asking += self._waiting
            self._waiting, self._waiting_due = [], float("inf")
        for asked in asking:
            if asked.connection.ended:
                continue
            if now < asked.until and not asked.question.wants(metadata.coordinator):
                self._waiting.append(asked)
            else:
                asked.connection.answer(asked.request, response)
        if self._waiting:
            self._waiting_due = min(self._waiting_due, now + self._look_every_s)
        return self._waiting_due
