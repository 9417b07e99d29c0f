"""Lists the topics at the brokers, for consumers without ZooKeeper. The request runs on a thread of its own, because
librdkafka has no listing that does not wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_coord.consumer.absences import Present, missing_topics
from kafka_coord.model import Subscription

log = logging.getLogger(__name__)

_ASK_S = 10.0


class TopicListing:
    """A :class:`~kafka_coord.consumer.absences.Look` at the brokers. The topics are those that the client may describe.
    ``admin`` returns the client, or ``None`` until a broker is known. ``wake`` is called when the answer has come."""

    def __init__(self, admin: Callable[[], AdminClient | None], wake: Callable[[], None]) -> None:
        self._admin = admin
        self._wake = wake
        self._asking: threading.Thread | None = None
        self._topics: frozenset[str] | None = None

    def __call__(self, subscription: Subscription, known: frozenset[str]) -> Present | None:
        if not missing_topics(subscription, known):
            return Present(known, None)
        topics, self._topics = self._topics, None
        if topics is not None:
            return Present(topics | known, None)
        admin = self._admin()
        if admin is not None and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(admin,), name="kafka-coord-topics", daemon=True)
            self._asking.start()
        return None

    def _ask(self, admin: AdminClient) -> None:
        try:  # without a name, which might create the topic
            self._topics = frozenset(admin.list_topics(timeout=_ASK_S).topics)
        except KafkaException as error:
            log.debug("could not list the topics: %s", error)
        self._wake()
