"""Tells which stored offsets belong to topics that exist no longer, so that nobody is given them (ADR 42)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from kafka_coord.errors import MalformedValue, NoAuth
from kafka_coord.model import TopicInfo, TopicOfOffsets, is_identity
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Node, ReadResult, Store
from kafka_coord.zk.topic_identity import topic_identity


def identity_reads(group: str, topics: Iterable[str]) -> list[GetData]:
    """Returns the reads of the identities that the group's offsets belong to. They must come before the reads of the
    offsets: a new identity is written together with the removal of the old offsets."""
    return [GetData(layout.topic_offsets(group, topic)) for topic in topics]


def replaced_topics(store: Store, topics: Iterable[str], stored: Iterable[ReadResult]) -> frozenset[str]:
    """Returns the topics whose stored offsets do not count: the topic does not exist, or the name has another id.
    ``stored`` are the results of :func:`identity_reads`. A topic that cannot be read counts as the same one. Raises
    :class:`StoreError`."""
    identities = dict(zip(topics, stored, strict=True))
    names = [topic for topic, node in identities.items() if isinstance(node, Node)]
    try:
        parent, *nodes = store.read_many(
            [GetData(layout.BROKER_TOPICS), *(GetData(layout.broker_topic(name)) for name in names)] if names else []
        ) or (None,)
    except NoAuth:
        return frozenset()
    if not isinstance(parent, Node):
        return frozenset()
    present: Mapping[str, ReadResult] = dict(zip(names, nodes, strict=True))
    return frozenset(name for name in names if not _is_same(name, identities[name], present[name]))


def _is_same(name: str, stored: ReadResult, topic: ReadResult) -> bool:
    if not isinstance(topic, Node):
        return False
    written = TopicOfOffsets.read(stored.data).identity if isinstance(stored, Node) else ""
    with suppress(MalformedValue):
        identity, former = topic_identity(fields.load_object(topic.data, layout.broker_topic(name)), topic)
        is_same = TopicInfo(name, frozenset(), identity, former_identity=former).is_same(written)
        return is_same or not is_identity(written)
    return True
