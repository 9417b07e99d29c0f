"""Makes a managed group of an empty client-assigned one: its offsets are copied into ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.channel.operations import chunks, offset_op
from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.model import TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def adopt(store: Store, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Makes the group with these offsets. Offsets that exist already stay, so it may be repeated after a failure.
    Raises :class:`StoreError`."""
    ensure_group(store, group)
    for topic in sorted({tp.topic for tp in offsets}):
        store.ensure_path(layout.topic_offsets(group, topic))
    found = store.exists_many([layout.offset(group, tp.topic, tp.partition) for tp in offsets])
    missing = [tp for tp, stat in zip(offsets, found, strict=True) if stat is None]
    ops = (offset_op(group, tp, offsets[tp], exists=False) for tp in missing)
    for request in chunks(ops, (), (), store.acl_bytes) if missing else ():
        store.multi(request)
