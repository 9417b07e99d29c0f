"""A librdkafka client that fetches exactly the wanted partitions. Changing them never blocks a thread.

Newer releases of confluent-kafka, such as 2.16, let one thread at a time into a client (``Handle_serialize_enter``),
but not fairly: a thread that polls in a loop locks out all others. So here, only the holder of the lock ``_inside``
calls the client, and it never waits for records for more than a few ms. A thread that wants a change sets a flag and,
if the lock is free, applies the change itself; otherwise, the holder applies it on releasing the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned

from kafka_coord.kafka.librdkafka import log_bounds
from kafka_coord.model import TopicPartition

log = logging.getLogger(__name__)

_SLICE_S = 0.005
_METADATA_TIMEOUT_S = 0.5
_SILENT_S = 10.0
"""How long librdkafka may deliver nothing of a partition that has a leader, in seconds, before another client tries:
neither a record nor that the end is reached. librdkafka keeps a topic's leader epochs by its name, and ignores the
leaders of a topic that was made anew until their epochs are as high."""

Key = tuple[str, int]
Wanted = Mapping[Key, tuple[int, int]]
"""Maps each partition to a serial number and a start offset. When the serial number changes, the client fetches again
from that offset."""


class AssignedClient:
    """Fetches the partitions that ``wanted`` returns. Calls ``wanted`` again after every :meth:`changed`. ``troubles``
    receives the partitions of topics that the brokers do not let the client describe. ``renew`` is called when another
    client should be used (:meth:`use`)."""

    def __init__(
        self,
        wanted: Callable[[], Wanted],
        troubles: Callable[[TopicPartition, KafkaError], None] = lambda _partition, _error: None,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self._wanted = wanted
        self._troubles = troubles
        self._renew = renew
        self._silent: dict[Key, float] = {}
        """The partitions of which nothing has arrived, each with the time since when."""
        self._patience_s = _SILENT_S
        self._inside = threading.Lock()
        self._changed = False
        self._client: KafkaConsumer | None = None
        self._next: KafkaConsumer | None = None
        self._closing = False
        self._assigned: dict[Key, int] = {}
        self._known: dict[str, int] = {}
        self._to_learn: set[str] = set()
        self._learn_at = 0.0
        self._learn_delay_s = 0.0

    # --- changes, on any thread and without waiting ------------------------------------------------------------------

    def changed(self) -> None:
        """Applies a change to the wanted partitions or offsets. Must be called after every such change."""
        self._changed = True
        self._carry_out()

    def use(self, client: KafkaConsumer) -> None:
        """Fetches with ``client`` from now on, and closes the previous client."""
        self._next = client
        self.changed()

    def close(self) -> None:
        """Closes the client and stops fetching."""
        self._closing = True
        self.changed()

    def learn(self, topic: str) -> None:
        """Makes the client request the topic's metadata soon. Called when a broker does not know one of the topic's
        partitions."""
        self._to_learn.add(topic)

    def _carry_out(self) -> None:
        # The lock's holder checks again when it releases the lock, so no change is lost.
        while self._changed and self._inside.acquire(blocking=False):
            try:
                self._reconcile()
            finally:
                self._inside.release()

    # --- fetching, on the application's thread -----------------------------------------------------------------------

    def fetch(self, timeout_s: float, limit: int, sink: Callable[[list[Any], Mapping[Key, int]], None]) -> bool:
        """Passes the messages that arrive within ``timeout_s`` (at most a few ms) to ``sink``, with the serials of
        their partitions. Returns whether it waited: without a client or partitions, it returns false immediately.
        """
        try:
            with self._inside:
                if self._changed:
                    self._reconcile()
                client = self._client
                if client is None or not self._assigned:
                    return False
                first = client.poll(min(timeout_s, _SLICE_S))
                if first is not None:
                    # With a timeout, consume() would wait until it has ``limit`` messages.
                    messages = [first, *client.consume(limit - 1, 0)] if limit > 1 else [first]
                    if self._silent:
                        self._heard(messages)
                    sink(messages, self._assigned)
                elif self._to_learn and time.monotonic() >= self._learn_at:
                    self._learn(client)
                elif self._silent and time.monotonic() >= min(self._silent.values()) + self._patience_s:
                    self._look_at_silent(client)
                return True
        finally:
            self._carry_out()

    def bounds_of(self, key: Key) -> tuple[int, int]:
        """Requests the log's first offset and its end from the broker. Raises :class:`KafkaException`."""
        try:
            with self._inside:
                if self._client is None:
                    raise KafkaException("no broker is known yet")
                return log_bounds(self._client, Assigned(*key), 5.0)
        finally:
            self._carry_out()

    # --- inside the lock ---------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        self._changed = False
        if self._next is not None:
            old, self._client, self._next = self._client, self._next, None
            self._assigned.clear()
            self._known.clear()
            self._silent.clear()
            if old is not None:
                old.close()
        client = self._client
        if client is None:
            return
        if self._closing:
            self._client = None
            self._assigned.clear()
            client.close()
            return
        wanted = self._wanted()
        gone = [key for key, serial in self._assigned.items() if key not in wanted or wanted[key][0] != serial]
        if gone:
            client.incremental_unassign([Assigned(*key) for key in gone])
            for key in gone:
                del self._assigned[key]
                self._silent.pop(key, None)
        new = [key for key in wanted if key not in self._assigned]
        if new:
            client.incremental_assign([Assigned(*key, wanted[key][1]) for key in new])
            for key in new:
                self._assigned[key] = wanted[key][0]
                self._silent[key] = time.monotonic()
                self._want_metadata(key)

    def _heard(self, messages: list[Any]) -> None:
        for message in messages:
            self._silent.pop((message.topic(), message.partition()), None)
        if not self._silent:
            self._patience_s = _SILENT_S

    def _look_at_silent(self, client: KafkaConsumer) -> None:
        """Has another client used if a partition has a leader, and nothing has arrived of it for long."""
        key = min(self._silent, key=self._silent.__getitem__)
        self._silent[key] = time.monotonic()
        topic, partition = key
        try:
            found = client.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic].partitions[partition]
        except (KafkaException, KeyError):
            return
        if found.error is None and found.leader >= 0:
            log.warning(
                "fetching with another client: nothing has arrived for %.0f s of partition=%s, which has a leader",
                *(self._patience_s, TopicPartition(*key)),
            )
            self._patience_s *= 2
            self._renew()

    def _want_metadata(self, key: Key) -> None:
        topic, partition = key
        if partition > self._known.get(topic, -1):
            self._to_learn.add(topic)
            self._learn_at = self._learn_delay_s = 0.0

    def _learn(self, client: KafkaConsumer) -> None:
        """Requests the metadata of topics with partitions that librdkafka might not know yet. On its own, librdkafka
        checks for new partitions of a known topic only every 10 s (librdkafka issue 2917).
        """
        self._learn_delay_s = min(5.0, 2 * self._learn_delay_s + 0.05)
        self._learn_at = time.monotonic() + self._learn_delay_s
        for topic in list(self._to_learn):
            try:
                metadata = client.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics.get(topic)
            except KafkaException as error:
                log.debug("got no metadata topic=%s: %s", topic, error)
                return
            problem = metadata.error if metadata is not None else None
            if problem is not None and problem.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._refuse(topic, problem)
            highest = max(metadata.partitions, default=-1) if metadata is not None and problem is None else -1
            self._known[topic] = highest
            if all(partition <= highest for name, partition in self._assigned if name == topic):
                self._to_learn.discard(topic)

    def _refuse(self, topic: str, error: KafkaError) -> None:
        """librdkafka reports no error for a partition with a known offset if its topic may not be described: it waits
        for a leader, and says nothing (``rd_kafka_topic_set_error``)."""
        for name, partition in list(self._assigned):
            if name == topic:
                self._troubles(TopicPartition(name, partition), error)
