"""Reads and writes ZooKeeper to convert groups between client-assigned and managed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka_coord.channel.current_topics import Owner, identity_reads, owners_of_offsets
from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.coordinator.image import Wanted, read_images
from kafka_coord.errors import MultiFailed, NodeExists
from kafka_coord.model import Cause, Decision, TopicPartition, history_to_json
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import write_fenced
from kafka_coord.zk.store import Check, Create, Store


def begin_adoption(
    store: Store, group: str, partitions: Sequence[TopicPartition], reason: str, fence: Check
) -> frozenset[TopicPartition]:
    """Creates the group if it does not exist, with ``reason`` as the first entry in its history. Returns the partitions
    that have no stored offset although their topics exist. Raises :class:`Fenced` and :class:`StoreError`."""
    ensure_group(store, group)
    topics = sorted({tp.topic for tp in partitions})
    paths = [layout.broker_topic(topic) for topic in topics]
    paths += [layout.offset(group, tp.topic, tp.partition) for tp in partitions]
    stats = store.exists_many(paths)
    existing = {topic for topic, stat in zip(topics, stats, strict=False) if stat is not None}
    stored = zip(partitions, stats[len(topics) :], strict=True)
    missing = frozenset(tp for tp, stat in stored if stat is None and tp.topic in existing)
    now_ms = round(store.clock.time() * 1000)
    entry = Decision(0, 0, reason, "", now_ms, 0, len(missing), 0, settled_ms=0, causes=(Cause.TAKEN_OVER,))
    try:
        write_fenced(store, fence, [(Create(layout.history(group), fields.dump(history_to_json((entry,)))),)])
    except MultiFailed as error:
        if not isinstance(error.cause, NodeExists):
            raise
    return missing


class RegisteredProtocols(NamedTuple):
    """The members of a group. ``protocols`` maps each member to its protocol, or to ``None`` if the member is not a
    stock client or cannot be read. ``zxid`` is when the set of members last changed. ``is_decided`` says whether a
    coordinator is elected."""

    protocols: Mapping[str, str | None]
    zxid: int
    is_decided: bool


def read_registered(store: Store, group: str) -> RegisteredProtocols:
    """Reads the group's members from ZooKeeper. Raises :class:`StoreError`."""

    image = read_images(store, [Wanted(group, zxids=True)]).get(group)
    is_decided = store.exists(layout.COORDINATOR) is not None
    if image is None:
        return RegisteredProtocols({}, 0, is_decided)
    image.require_listings()
    members = {name: image.members.get(name) for name in sorted(image.registered)}
    protocols = {name: member.protocol if member is not None else None for name, member in members.items()}
    return RegisteredProtocols(protocols, image.zxids.ids if image.zxids is not None else 0, is_decided)


def topics_that_exist(store: Store, group: str, topics: Iterable[str]) -> frozenset[str]:
    """Returns the topics that exist, except those that have been deleted and recreated since the group's offsets were
    stored, because the offsets do not belong to the new topic. Raises :class:`StoreError`."""
    names = sorted(set(topics))
    stored = store.read_many(identity_reads(group, names)) if names else ()
    owners = owners_of_offsets(store, dict(zip(names, stored, strict=True)))
    return frozenset(name for name, owner in owners.items() if owner is Owner.PRESENT)
