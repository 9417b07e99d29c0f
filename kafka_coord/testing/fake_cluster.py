"""A fake ZooKeeper, Kafka and coordinator, for unit tests of applications.

The consumers are real, including their connector, fetchers and commit rules. Only librdkafka and the channel to the
coordinator are replaced by in-memory fakes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kafka_coord import AsyncConsumer, Consumer
from kafka_coord.consumer.absences import Look, Present
from kafka_coord.consumer.fetchers import FetchClients
from kafka_coord.consumer.settings import MemberSettings
from kafka_coord.consumer.transport import Endpoint
from kafka_coord.testing.fake_group import SESSION, FakeChannel, FakeGroups
from kafka_coord.testing.fake_log import FakeAdmin, FakeClient, FakeLogs, FakeMessage
from kafka_coord.zk.clock import SystemClock
from kafka_coord.zk.store import Clock, SessionListener, SessionState


class FakeCluster:
    """Topics and groups in memory. Leaving the ``with`` block closes the consumers that :meth:`consumer` has created.

    To make an application use the fake, replace the classes in its module with :attr:`Consumer` and
    :attr:`AsyncConsumer`: ``monkeypatch.setattr(app, "Consumer", cluster.Consumer)``. They ignore all addresses. The
    fake does not simulate expired sessions, transactions, permissions or ``mode="eager"``.
    """

    def __init__(self) -> None:
        self._logs = FakeLogs()
        self._groups = FakeGroups(self._logs)
        self._consumers: list[Consumer[Any, Any]] = []
        parts = {"_open_transport": staticmethod(self._transport), "_clients": _FakeClients(self._logs)}
        self.Consumer: type[Consumer[Any, Any]] = type("Consumer", (Consumer,), parts)
        self.AsyncConsumer: type[AsyncConsumer[Any, Any]] = type("AsyncConsumer", (AsyncConsumer,), parts)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Creates a topic, or adds partitions to it."""
        with self._logs.changed:
            logs = self._logs.topics.setdefault(name, [])
            logs += [[] for _ in range(partitions - len(logs))]
        for group in list(self._groups.members):
            self._groups.rebalance(group)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = 0,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Writes a record and returns its offset. Raises :class:`NotFound` if no one has created the topic, since the
        brokers of :class:`RealCluster` do not create it either."""
        when = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        written = {"value": value, "key": key, "headers": list(headers) or None, "timestamp_ms": when}
        return self._logs.append(topic, partition, written)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records before the offset ``before``, as retention does."""
        with self._logs.changed:
            self._logs.begins[topic, partition] = before

    def consumer(self, **arguments: Any) -> Consumer[Any, Any]:
        """Returns a consumer with the given arguments."""
        consumer = self.Consumer(**arguments)
        self._consumers.append(consumer)
        return consumer

    def async_consumer(self, **arguments: Any) -> AsyncConsumer[Any, Any]:
        """Returns a consumer for asyncio. Leaving the ``with`` block does not close it."""
        return self.AsyncConsumer(**arguments)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Returns the group's committed offsets, by partition."""
        with self._groups.lock:
            stored = self._groups.offsets.get(group, {})
            return {partition: offset for (name, partition), offset in sorted(stored.items()) if name == topic}

    def evict(self, consumer: Consumer[Any, Any] | AsyncConsumer[Any, Any]) -> None:
        """Ends the consumer's membership without notice, as a coordinator does when it evicts a slow consumer. The
        consumer registers again automatically."""
        with self._groups.lock:
            self._groups.remove(consumer.group, consumer.consumer_id)

    def _transport(
        self, endpoint: Endpoint, settings: MemberSettings, _reading: object, _wake: Callable[[], None]
    ) -> _FakeTransport:
        return _FakeTransport(
            FakeChannel(self._groups, settings.group, settings.member.consumer),
            endpoint.session_timeout(),
            lambda _subscription, _known: Present(frozenset(self._logs.topics), elected=True),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers:
            consumer.close()


class _FakeClients(FetchClients):
    message: type[Any] = FakeMessage

    def __init__(self, logs: FakeLogs) -> None:
        self._logs = logs

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        del settings
        return FakeClient(self._logs)

    def admin(self, settings: Mapping[str, Any]) -> Any:
        del settings
        return FakeAdmin(self._logs)


@dataclass(slots=True)
class _FakeSession:
    """A session that never ends, and that is also its own handle."""

    timeout_ms: int
    clock: Clock = field(default_factory=SystemClock)
    state: SessionState = SessionState.CONNECTED
    session_id: int = SESSION

    @property
    def session(self) -> Self:
        return self

    def lease_deadline(self) -> float:
        return math.inf

    def lease_began(self) -> float:
        return 0.0

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        del listener
        return lambda: None


class _FakeBrokers:
    addresses: tuple[str, ...] = ("fake:9092",)
    problem: str = ""

    def step(self) -> bool:
        return False

    def look_again(self) -> None:
        pass


class _FakeTransport:
    """Implements :class:`kafka_coord.consumer.transport.Transport`."""

    def __init__(self, channel: FakeChannel, timeout_ms: int, look: Look) -> None:
        self.look = look
        self.handle = _FakeSession(timeout_ms)
        self.channel = channel
        self.brokers = _FakeBrokers()

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass
