"""Remembers which topics and partitions existed when a group's subscription first covered them (ADR 41). No I/O."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Coverage, Member, TopicInfo, TopicOfOffsets
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Node, Op, SetData

log = logging.getLogger(__name__)


def _covered_since(topic: str, members: Mapping[str, Member]) -> float:
    """Returns the zxid of the first registration that covers the topic. Leaves out Kafka clients, whose instance may
    have changed the subscription since."""
    since = (one.incarnation for one in members.values() if one.protocol is None and one.subscription.wants(topic))
    return min(since, default=math.inf)


class Covering(NamedTuple):
    """What to write before the first start. ``topics`` contains the values of the znodes ``offsets/<topic>`` that
    ``ops`` create, and ``now`` is what the group remembers once ``ops`` are written."""

    topics: Mapping[str, TopicOfOffsets]
    ops: tuple[Op, ...]
    now: Coverage


def remembered(group: str, node: object) -> Coverage | None:
    """Returns what the group remembers, given its znode ``offsets``: nothing if an ACL forbids reading it, and ``None``
    if it is damaged."""
    path = layout.offsets(group)
    if not isinstance(node, Node):
        return Coverage()
    try:
        return Coverage.from_bytes(node.data, path)
    except MalformedValue as error:
        log.warning("replacing what the group remembers of its subscriptions path=%s reason=%s", path, error)
        return None


def covering(
    group: str,
    node: object,
    there: frozenset[str],
    members: Mapping[str, Member],
    topics: Mapping[str, TopicInfo],
) -> Covering:
    """Compares what the members subscribe to with what the group remembers. ``node`` is the znode ``offsets``, and
    ``there`` are its children.

    A topic without a znode came later if a remembered subscription covers it, or if it was created after a member that
    subscribes to it had registered. It existed already otherwise. The topics are written before the coverage: if only
    some of the writes succeed, the next start writes the rest. If the coverage is damaged, every topic without a znode
    counts as one that came later, so nothing is skipped. If an ACL forbids reading it, nothing is written, and each
    such topic counts as one that existed already.
    """
    path, known = layout.offsets(group), remembered(group, node)
    subscriptions = tuple({id(one.subscription): one.subscription for one in members.values()}.values())
    now = (known or Coverage()).with_also(subscriptions)
    if node is not None and not isinstance(node, Node):
        return Covering({}, (), now)  # an ACL forbids reading it
    if known == now:
        by_name = frozenset(name for one in now.subscriptions for name in one.topics)
        if not any(one.is_wildcard for one in now.subscriptions) and by_name <= there:
            return Covering({}, (), now)
    added = {}
    for name, topic in topics.items():
        if name not in there and any(one.wants(name) for one in subscriptions):
            is_later = known is None or known.covers(name) or topic.czxid > _covered_since(name, members)
            added[name] = TopicOfOffsets(topic.identity, 0 if is_later else len(topic.partitions))
    ops: list[Op] = [Create(layout.topic_offsets(group, name), value.data) for name, value in sorted(added.items())]
    if node is None:
        ops.insert(0, Create(path))
    if now != known:
        ops.append(SetData(path, now.to_bytes()))
    return Covering(added, tuple(ops), now)
