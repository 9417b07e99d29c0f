"""Makes a managed group of an empty client-assigned one: chooses the offsets to copy into ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.model import TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def begin_adoption(store: Store, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Creates the group if it does not exist. Returns the offsets that it lacks, without those of topics that are gone.
    Raises :class:`StoreError`."""
    ensure_group(store, group)
    topics = sorted({tp.topic for tp in offsets})
    paths = [layout.broker_topic(topic) for topic in topics]
    paths += [layout.offset(group, tp.topic, tp.partition) for tp in offsets]
    found = store.exists_many(paths)
    there = {topic for topic, stat in zip(topics, found, strict=False) if stat is not None}
    stored = zip(offsets, found[len(topics) :], strict=True)
    return {tp: offsets[tp] for tp, stat in stored if stat is None and tp.topic in there}
