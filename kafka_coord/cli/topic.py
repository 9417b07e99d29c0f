"""Creates a topic if it does not exist."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, RequestRefused, SettingsError, Timeout

_TIMEOUT_S = 30.0
_BROKERS_OWN = -1


def ensure_topic(
    bootstrap: str, properties: Mapping[str, str], topic: str, partitions: int | None, replication: int | None
) -> str:
    """Creates the topic if it does not exist, and waits until every partition has a leader. Returns a message that
    describes the result.

    Raises :class:`RequestRefused` if the topic exists with a different number of partitions, or if Kafka refuses to
    create it. Also raises :class:`BrokerError` and :class:`Timeout`.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    try:
        admin = AdminClient({"log_level": 0, **properties, "bootstrap.servers": bootstrap})
    except KafkaException as error:
        raise SettingsError(f"librdkafka rejected the broker settings: {error}") from None
    new_topic = NewTopic(
        topic, num_partitions=partitions or _BROKERS_OWN, replication_factor=replication or _BROKERS_OWN
    )
    led = _led_partitions(admin, topic)
    created = not led and _create(admin, new_topic)
    deadline = time.monotonic() + _TIMEOUT_S
    while not led or (created and partitions not in {None, led}):
        if time.monotonic() >= deadline:
            raise Timeout(f"topic {topic} exists, but some partitions did not get a leader within {_TIMEOUT_S:g} s")
        time.sleep(0.1)
        led = _led_partitions(admin, topic)
    if partitions not in {None, led}:
        raise RequestRefused(
            f"topic {topic} exists with {counted(led, 'partition')}, not {partitions}; nothing was changed"
        )
    return f"topic {topic} {'created' if created else 'exists'}, with {counted(led, 'partition')}"


def _create(admin: Any, wanted: Any) -> bool:
    """Creates the topic. Returns false if it already exists: the broker that listed the topics may not have known
    about it yet."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        admin.create_topics([wanted], operation_timeout=_TIMEOUT_S)[wanted.topic].result(_TIMEOUT_S + 5)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise RequestRefused(f"cannot create topic {wanted.topic}: {error.args[0].str()}") from None
    return True


def _led_partitions(admin: Any, topic: str) -> int:
    """Returns the number of partitions that have a leader, or 0 if the topic does not exist."""
    from confluent_kafka import KafkaException

    try:
        # This requests all topics, because a request for one topic could make the brokers create it.
        metadata = admin.list_topics(timeout=10.0)
    except KafkaException as error:
        raise BrokerError(f"no broker responded: {error.args[0].str()}") from None
    described = metadata.topics.get(topic)
    if described is None or described.error is not None:
        return 0
    return sum(partition.leader >= 0 for partition in described.partitions.values())
