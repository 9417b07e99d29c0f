"""Removes stored offsets that nobody needs any more, and finds groups in which nothing is left (ADR 42)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from kafka_coord.channel.offset_details import Owner, identity_reads, owners_of_offsets, with_details
from kafka_coord.channel.operations import decode_offset
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.execute import Executor, in_parts
from kafka_coord.coordinator.history import past_decisions
from kafka_coord.coordinator.idle import spread
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.start_offsets import read_start_offsets
from kafka_coord.coordinator.tolerant_reads import Answer, read_each
from kafka_coord.errors import MalformedValue, MultiFailed
from kafka_coord.model import (
    Cause,
    CommittedOffset,
    Observation,
    PartitionSet,
    TopicOfOffsets,
    is_gone_long_enough,
    is_identity,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.member import INTERNAL_TOPICS
from kafka_coord.model.names import is_legal
from kafka_coord.model.offsets import Retention
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.zk import layout
from kafka_coord.zk.instance import decode_retention
from kafka_coord.zk.store import Delete, GetChildren, GetData, Node, Op, SetData, Store

log = logging.getLogger(__name__)

_OF_ITSELF = frozenset(
    {"ids", "owners", "channel", "assignment", "offsets", "details", "unresolved", "history", "settled"}
)
"""The children of a group's znode that the project writes on its own account. Any other one was asked for."""


@dataclass(frozen=True, slots=True)
class Expiration:
    """For how long a group keeps its offsets. ``retention`` is ``None`` if it cannot be read; then, nothing expires.
    ``since_ms`` is when the group became empty (0 if it has members), or ``None`` if that is unknown; then, only
    offsets whose client has said so expire. All times are in ms since 1970."""

    now_ms: int
    retention: Retention | None
    since_ms: int | None

    def is_over(self, offset: CommittedOffset) -> bool:
        if self.retention is None or (self.since_ms is None and offset.expires_at_ms < 0):
            return False
        return offset.is_expired(self.now_ms, self.retention, self.since_ms or 0)


class OffsetExpiry:
    """Examines groups at rest, each as often as a group at rest is read as a whole. For use on the handler's thread."""

    def __init__(self, store: Store, executor: Executor, options: CoordinatorOptions) -> None:
        self._store = store
        self._executor = executor
        self._interval_ms = options.whole_look_interval_ms

    def is_due(self, memory: GroupMemory) -> bool:
        """Returns whether the group is to be examined now. The first pass over a group only starts the interval."""
        now, examined = self._store.clock.monotonic(), memory.offsets_examined
        if examined is not None and now < examined + self._interval_ms / 1000 * spread(memory.group):
            return False
        memory.offsets_examined = now
        return examined is not None

    def examine(self, memory: GroupMemory, observation: Observation) -> None:
        """Removes the group's offsets that have expired or belong to a topic that was deleted, and sets
        ``memory.nothing_kept`` if the group is to be removed. ``observation`` must be of a group at rest. Raises
        :class:`StoreError`."""
        group = observation.group
        (listing,) = read_each(self._store, [GetChildren(layout.offsets(group))])
        if listing is not None and not isinstance(listing, tuple):
            return  # its ACL forbids reading it
        names = [name for name in listing or () if is_legal(name)]
        _tell_left_out(memory, observation, names)
        ops, kept = self._examined(observation, names)
        if ops:
            log.info("removing or marking offsets that nobody needs group=%s writes=%d", group, len(ops))
            try:
                self._executor.write(in_parts(ops))
            except MultiFailed as error:  # it was committed again meanwhile
                log.info("could not remove expired offsets group=%s reason=%s", group, error)
                return
        memory.nothing_kept = not kept and self._is_bare(observation)

    def _examined(self, observation: Observation, names: Sequence[str]) -> tuple[list[Op], bool]:
        """Returns what to write, and whether any offset is left."""
        group, settings, target = observation.group, observation.settings, observation.assignment
        subscriptions = list({id(one.subscription): one.subscription for one in observation.members.values()}.values())
        subscribed = {name for name in names if any(not one.knows(name) or one.wants(name) for one in subscriptions)}
        asked = [name for name in names if name not in subscribed or name not in observation.topics]
        if not asked:
            return [], bool(names)
        stored = dict(zip(asked, self._store.read_many(identity_reads(group, asked)), strict=True))
        owners = owners_of_offsets(self._store, stored)
        offsets = read_kept(self._store, group, asked)
        since_ms = 0 if observation.members else (target.timestamp_ms if target is not None else None)
        now_ms = round(self._store.clock.time() * 1000)
        kept_for = settings.retention(retention_in(read_each(self._store, [GetData(layout.RETENTION)])))
        expiration = Expiration(now_ms, kept_for, since_ms)
        ops, kept = list[Op](), len(asked) < len(names)
        for name in asked:
            node = stored[name]
            if not isinstance(node, Node):
                continue
            if owners[name] is Owner.REPLACED:
                ops += self._of_another(observation, name)
                continue
            found, left = of_topic(
                group, name, node, owners[name], offsets[name], expiration, is_subscribed=name in subscribed
            )
            ops += found
            kept = kept or left
        return ops, kept

    def _of_another(self, observation: Observation, name: str) -> list[Op]:
        """Returns the writes that give the present topic what an earlier topic of the same name has left behind, as a
        start of the topic would."""
        if name not in observation.topics:
            return []
        wanted, topics = PartitionSet({name: observation.topics[name].partitions}), observation.topics
        start = read_start_offsets(self._store, observation.group, wanted, topics, observation.members)
        return [*start.remove.get(name, ()), *start.prepare.get(name, ())]

    def _is_bare(self, observation: Observation) -> bool:
        """Returns whether a group without offsets has been empty for long enough, and nothing in it was asked for: no
        settings, no pause, and no conversion, which records that the group is managed."""
        group, target = observation.group, observation.assignment
        if observation.members or observation.ledgers or observation.channels:
            return False
        node, children = self._store.read_many([GetData(layout.group(group)), GetChildren(layout.group(group))])
        if not isinstance(node, Node) or node.data or not isinstance(children, tuple):
            return False
        since_ms = node.stat.ctime_ms if target is None else target.timestamp_ms
        if self._store.clock.time() * 1000 < since_ms + self._interval_ms or not _OF_ITSELF.issuperset(children):
            return False
        return not any(Cause.TAKEN_OVER in one.causes for one in past_decisions(self._store, group))


def _tell_left_out(memory: GroupMemory, observation: Observation, names: Sequence[str]) -> None:
    """Logs once which internal topics the group has offsets of although its members' patterns leave them out."""
    before, subscriptions = memory.left_out, [one.subscription for one in observation.members.values()]
    memory.left_out = frozenset(
        name
        for name in INTERNAL_TOPICS.intersection(names)
        if any(one.leaves_out(name) for one in subscriptions) and not any(one.wants(name) for one in subscriptions)
    )
    for name in sorted(memory.left_out - before):
        log.warning(
            "the group has offsets of an internal topic, but patterns include internal topics only by name, so nobody"
            " reads it group=%s topic=%s; to go on reading it, add it to the pattern: ...|%s",
            *(observation.group, name, name),
            extra={"event": "internal_topic_left_out"},
        )


def of_topic(
    group: str,
    topic: str,
    node: Node,
    owner: Owner,
    offsets: Collection[StoredOffset],
    expiration: Expiration,
    *,
    is_subscribed: bool,
) -> tuple[list[Op], bool]:
    """Returns what to write about one topic that was not replaced, and whether any of its offsets is left. ``node`` is
    the znode ``offsets/<topic>``. No I/O."""
    path, about = layout.topic_offsets(group, topic), TopicOfOffsets.read(node.data)
    is_known = not about.identity or is_identity(about.identity)
    if owner is Owner.GONE and is_known:
        if about.gone_since_ms is None:
            gone = about._replace(gone_since_ms=expiration.now_ms)
            return [SetData(path, gone.data, node.stat.version)], bool(offsets)
        if is_gone_long_enough(about.gone_since_ms, expiration.now_ms):
            return [*_removals(offsets), Delete(path, node.stat.version)], False
    ops: list[Op] = []
    if owner is Owner.PRESENT and about.gone_since_ms is not None:
        ops.append(SetData(path, about._replace(gone_since_ms=None).data, node.stat.version))
    over = [one for one in offsets if not is_subscribed and expiration.is_over(one.value)]
    return [*ops, *_removals(over)], len(over) < len(offsets)


def _removals(offsets: Collection[StoredOffset]) -> list[Op]:
    return [op for one in offsets for op in one.removal]


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """An offset in ZooKeeper. ``version`` is that of its znode. ``details`` is the path of its details, if it has
    any."""

    path: str
    version: int
    value: CommittedOffset
    details: str | None = None

    @property
    def removal(self) -> list[Op]:
        return [Delete(self.path, self.version), *([Delete(self.details)] if self.details is not None else [])]


def read_kept(store: Store, group: str, topics: Sequence[str]) -> Mapping[str, list[StoredOffset]]:
    """Returns all offsets of the given topics, whether or not they belong to the present topics. Raises
    :class:`StoreError`."""
    listed = store.read_many([GetChildren(layout.topic_offsets(group, name)) for name in topics])
    found: dict[str, list[StoredOffset]] = {}
    for name, partitions in zip(topics, listed, strict=True):
        numbers = [
            number
            for text in (partitions if isinstance(partitions, tuple) else ())
            if (number := fields.decimal(text, MAX_PARTITION)) is not None
        ]
        nodes = store.read_many(
            [GetData(layout.offset(group, name, number)) for number in numbers]
            + [GetData(layout.offset_details(group, name, number)) for number in numbers]
        )
        found[name] = []
        for number, node, more in zip(numbers, nodes, nodes[len(numbers) :], strict=False):
            path = layout.offset(group, name, number)
            if isinstance(node, Node):
                where = layout.offset_details(group, name, number) if isinstance(more, Node) else None
                found[name].append(StoredOffset(path, node.stat.version, _value(path, node, more), where))
    return found


def outlives_retention(store: Store, group: str) -> bool:
    """Returns whether any of the group's offsets expires at a time that its client has set, and that has not come yet.
    Raises :class:`StoreError`."""
    (listing,) = store.read_many([GetChildren(layout.details(group))])
    kept = read_kept(store, group, listing) if isinstance(listing, tuple) else {}
    now_ms = store.clock.time() * 1000
    return any(one.value.expires_at_ms > now_ms for offsets in kept.values() for one in offsets)


def _value(path: str, node: Node, details: object) -> CommittedOffset:
    """Returns the stored offset. Of an unreadable one, only the time is known."""
    try:
        bare = CommittedOffset(decode_offset(node.data, path))
    except MalformedValue:
        bare = CommittedOffset(-1)
    return structs.replace(with_details(bare, node.stat.mzxid, details), committed_at_ms=node.stat.mtime_ms)


def retention_in(found: Sequence[Answer]) -> Retention | None:
    """Returns the brokers' retention, which is only read if a group may be empty, or ``None`` if it cannot be read."""
    node = found[0] if found else None
    if isinstance(node, Node):
        with suppress(MalformedValue):
            return decode_retention(layout.RETENTION, node)
    return Retention() if node is None else None
