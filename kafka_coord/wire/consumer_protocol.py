"""Encodes and decodes Kafka's ConsumerProtocol: the subscriptions in JoinGroup and the assignments in SyncGroup."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from kafka_coord.wire.messages import BadMessage, message

MAX_BYTES = 1 << 20
"""The maximum size of a subscription or an assignment, in bytes. Larger values are not decoded."""


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str]:
    """Returns the topics in the given subscriptions. Ignores subscriptions that cannot be decoded."""
    return frozenset(topic for data in metadata if (found := subscription(data)) for topic in found.topics)


def subscription(data: bytes) -> Any:
    """Decodes a member's subscription. Returns ``None`` if it cannot be decoded."""
    return _read("ConsumerProtocolSubscription", data)


def assignment(data: bytes) -> Any:
    """Decodes a member's assignment. Returns ``None`` if it cannot be decoded."""
    return _read("ConsumerProtocolAssignment", data)


def encoded_subscription(*topics: str) -> bytes:
    """Encodes a subscription to ``topics``, in a version that every client can read."""
    form = message("ConsumerProtocolSubscription")
    return bytes(form.encode(form(topics=topics), 0, bytearray(2)))


def encoded_assignment(partitions: Iterable[tuple[str, int]]) -> bytes:
    """Encodes an assignment of ``partitions``, each given as (topic, number), in a version that every client can
    read."""
    form = message("ConsumerProtocolAssignment")
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    of_topic = form.struct("TopicPartition")
    assigned = tuple(of_topic(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())
    return bytes(form.encode(form(assigned_partitions=assigned), 0, bytearray(2)))


def without_topics(data: bytes, topics: Collection[str]) -> bytes:
    """Returns the assignment without these topics. What cannot be decoded is returned unchanged."""
    found = assignment(data)
    if found is None or not any(part.topic in topics for part in found.assigned_partitions):
        return data
    kept = tuple(part for part in found.assigned_partitions if part.topic not in topics)
    form = message("ConsumerProtocolAssignment")
    version = min(int.from_bytes(data[:2], "big", signed=True), form.versions.last)
    return bytes(
        form.encode(form(assigned_partitions=kept, user_data=found.user_data), max(version, 0), bytearray(data[:2]))
    )


def _read(name: str, data: bytes) -> Any:
    """Decodes a subscription or an assignment. Decodes an unknown later version as if it were the newest known version,
    because new versions only add fields."""
    form = message(name)
    if not 2 <= len(data) <= MAX_BYTES:
        return None
    version = min(int.from_bytes(data[:2], "big", signed=True), form.versions.last)
    try:
        return form.decode(data, max(version, 0), 2)
    except BadMessage:
        return None
