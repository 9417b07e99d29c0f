"""Tells which stored offsets belong to topics that exist no longer, so that nobody is given them (ADR 42)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum, auto

from kafka_coord.errors import MalformedValue, NoAuth
from kafka_coord.model import TopicInfo, TopicOfOffsets, is_identity
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import topic_identity
from kafka_coord.zk.store import GetData, Node, ReadResult, Store


class Owner(Enum):
    """What has become of the topic that stored offsets belong to."""

    PRESENT = auto()
    """The topic exists, or nothing shows that it does not."""
    GONE = auto()
    """It is certain that no topic of this name exists."""
    REPLACED = auto()
    """The name has another id."""


def identity_reads(group: str, topics: Iterable[str]) -> list[GetData]:
    """Returns the reads of the identities that the group's offsets belong to. They must come before the reads of the
    offsets: a new identity is written together with the removal of the old offsets."""
    return [GetData(layout.topic_offsets(group, topic)) for topic in topics]


def replaced_topics(store: Store, topics: Iterable[str], stored: Iterable[ReadResult]) -> frozenset[str]:
    """Returns the topics whose stored offsets do not count: the topic does not exist, or the name has another id.
    ``stored`` are the results of :func:`identity_reads`. Raises :class:`StoreError`."""
    identities = dict(zip(topics, stored, strict=True))
    with_offsets = {topic: node for topic, node in identities.items() if isinstance(node, Node)}
    owners = owners_of_offsets(store, with_offsets)
    return frozenset(name for name, owner in owners.items() if owner is not Owner.PRESENT)


def owners_of_offsets(store: Store, stored: Mapping[str, ReadResult]) -> dict[str, Owner]:
    """Returns what has become of each topic. ``stored`` maps the topics to the results of :func:`identity_reads`. A
    topic that cannot be read counts as the same one. Raises :class:`StoreError`."""
    names = list(stored)
    unknown = dict.fromkeys(names, Owner.PRESENT)
    try:
        parent, *nodes = store.read_many(
            [GetData(layout.BROKER_TOPICS), *(GetData(layout.broker_topic(name)) for name in names)] if names else []
        ) or (None,)
    except NoAuth:
        if len(names) <= 1:
            return unknown
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        return {n: one for half in halves for n, one in owners_of_offsets(store, {n: stored[n] for n in half}).items()}
    if not isinstance(parent, Node):
        return unknown
    return {name: _owner(name, stored[name], topic) for name, topic in zip(names, nodes, strict=True)}


def _owner(name: str, stored: ReadResult, topic: ReadResult) -> Owner:
    if not isinstance(topic, Node):
        return Owner.GONE
    written = TopicOfOffsets.read(stored.data).identity if isinstance(stored, Node) else ""
    with suppress(MalformedValue):
        identity, former = topic_identity(fields.load_object(topic.data, layout.broker_topic(name)), topic)
        is_same = TopicInfo(name, frozenset(), identity, former_identity=former).is_same(written)
        return Owner.PRESENT if is_same or not is_identity(written) else Owner.REPLACED
    return Owner.PRESENT
