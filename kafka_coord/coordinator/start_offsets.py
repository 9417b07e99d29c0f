"""Reads the committed offsets of the partitions to start, and remembers which topics and partitions existed when a
group's subscription first covered them (ADR 41). Offsets left by an earlier topic of the same name are ignored.

A partition that starts at its end waits in ``unresolved`` until someone has listed that end. If no member could, the
instance tries with its own rights every second (:class:`FirstEnds`), also while nobody holds the partition, and stores
the end as the group's offset, unless there is one already.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafka_coord.channel.operations import decode_offset, offset_op
from kafka_coord.coordinator.tolerant_reads import read_each, tree_below
from kafka_coord.errors import Fenced, KafkaCoordError, MalformedValue, MultiFailed
from kafka_coord.model import (
    NO_OFFSET,
    Coverage,
    Member,
    PartitionSet,
    Subscription,
    TopicInfo,
    TopicOfOffsets,
    TopicPartition,
    Unreadable,
    is_identity,
)
from kafka_coord.model.member import awaited_partitions
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import decode_topic
from kafka_coord.zk.store import Create, Delete, GetChildren, GetData, Node, Op, SetData, Store

if TYPE_CHECKING:
    from kafka_coord.coordinator.execute import Executor

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""How often the awaited ends are listed, in seconds."""
ANSWER_S = 2.0
"""How long the lister waits for a broker, in seconds: one that does not answer delays the ends of all others."""
EndLister = Callable[[PartitionSet], Mapping[TopicPartition, int]]
"""Returns the ends that it could list. May wait for the brokers, and may raise :class:`KafkaCoordError`."""


@dataclass(frozen=True, slots=True)
class StartOffsets:
    """The start offset of each partition, and the writes that must accompany a start.

    ``parent`` creates the ``offsets`` znode, and records what the subscriptions cover. If there is nothing to
    record, ``covered`` is what the group remembers. For each topic, ``remove`` deletes the offsets left by an
    earlier topic of the same name, and ``prepare`` creates the ``offsets/<topic>`` znode or updates the topic
    identity in it. ``unreadable`` contains the partitions that must not be started, because a guessed offset could
    skip records: either the partition's offset znode is unreadable, or it is unclear which topic the offset belongs
    to. In the latter case, ``unclaimed`` lists the offset znodes by topic. ``later`` contains the partitions
    without an offset that came into being after the group's subscription first covered their topic.
    """

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    parent: tuple[Op, ...] = ()
    prepare: Mapping[str, tuple[Op, ...]] = field(default_factory=dict)
    remove: Mapping[str, tuple[Op, ...]] = field(default_factory=dict)
    unreadable: Mapping[TopicPartition, Unreadable] = field(default_factory=dict)
    unclaimed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    later: frozenset[TopicPartition] = frozenset()
    covered: Coverage | None = None


def unclaimed(written: str, identity: str) -> str:
    """Explains why no partition starts from the offsets below a znode that contains ``written``, and what to do about
    it."""
    value = TopicOfOffsets(identity, 0).data.decode()
    return (
        f"{written[:40]!r} is not a topic identity, so it is unclear which topic the offsets below it belong to, and"
        f" nothing is started; if they belong to the current topic, set it to {value!r}; otherwise, delete it"
        " and everything below it"
    )


def read_start_offsets(
    store: Store,
    group: str,
    wanted: PartitionSet,
    topics: Mapping[str, TopicInfo],
    members: Mapping[str, Member],
) -> StartOffsets:
    """Reads the committed offsets of ``wanted``, and finds out which of the partitions came later. The
    ``offsets/<topic>`` znode holds the identity of the topic that the offsets below it belong to."""
    names = wanted.topics
    partitions = tuple(wanted)
    *results, marks = read_each(
        store,
        [
            GetChildren(layout.offsets(group)),
            GetData(layout.offsets(group)),
            *(GetData(layout.topic_offsets(group, t)) for t in names),
            *(GetChildren(layout.topic_offsets(group, t)) for t in names),
            *(GetData(layout.offset(group, tp.topic, tp.partition)) for tp in partitions),
            GetChildren(layout.unresolved(group)),
        ],
    )
    awaited = awaited_partitions(sorted(_names(marks)))
    parents = results[2 : 2 + len(names)]
    children = results[2 + len(names) : 2 + 2 * len(names)]
    there = _names(results[0])
    about, parent, covered, known = covering(group, results[1], there, members, topics)
    if parent and known is not None:
        counted, first = _counted(store, group, there, members, topics, known)
        about, parent = {**about, **counted}, (*first, *parent)
    by_topic = {
        topic: _of_topic(
            layout.topic_offsets(group, topic),
            node,
            _names(listing),
            topics[topic],
            about.get(topic),
            [layout.awaited_end(group, *tp) for tp in awaited if tp.topic == topic],
            was_covered=known is None or known.covers(topic),
        )
        for topic, node, listing in zip(names, parents, children, strict=True)
    }
    offsets: dict[TopicPartition, int] = {}
    unreadable: dict[TopicPartition, Unreadable] = {}
    later = set()
    for tp, node in zip(partitions, results[2 + 2 * len(names) :], strict=True):
        topic = by_topic[tp.topic]
        begin = topic.unclaimed or _begin(node, layout.offset(group, tp.topic, tp.partition), stale=topic.stale)
        if isinstance(begin, Unreadable):
            unreadable[tp] = begin
        else:
            offsets[tp] = begin
            if begin == NO_OFFSET and tp.partition >= topic.first:
                later.add(tp)
    return StartOffsets(
        offsets=offsets,
        parent=parent,
        prepare={name: topic.prepare for name, topic in by_topic.items()},
        remove={name: topic.remove for name, topic in by_topic.items()},
        unreadable=unreadable,
        unclaimed={name: topic.below for name, topic in by_topic.items() if topic.unclaimed},
        later=frozenset(later),
        covered=None if parent else covered,
    )


def read_offsets_zxid(store: Store, group: str) -> int:
    """Returns the zxid of the latest write, creation or deletion of any of the group's offsets, or 0 if there has been
    none."""
    parent = layout.offsets(group)
    nodes = read_each(store, [GetData(path) for path in (parent, *tree_below(store, parent))])
    return max((max(one.stat.mzxid, one.stat.pzxid) for one in nodes if isinstance(one, Node)), default=0)


@dataclass(frozen=True, slots=True)
class _OfTopic:
    """The value of ``offsets/<topic>``; see :class:`StartOffsets`. Partitions from ``first`` on came later."""

    first: int
    prepare: tuple[Op, ...] = ()
    remove: tuple[Op, ...] = ()
    stale: bool = False
    unclaimed: Unreadable | None = None
    below: frozenset[str] = frozenset()


def _of_topic(
    path: str,
    node: object,
    below: frozenset[str],
    topic: TopicInfo,
    about: TopicOfOffsets | None,
    awaited: Sequence[str],
    *,
    was_covered: bool,
) -> _OfTopic:
    """``about`` is the value that the znode is about to get. ``awaited`` are the znodes of awaited ends: those of an
    earlier topic go with its offsets, or an instance would store ends of the new one. ``was_covered`` tells whether the
    group remembers a subscription to the topic. If it does, and how many partitions there were is lost, every partition
    without an offset counts as one that came later, so nothing is skipped."""
    if isinstance(node, Unreadable):
        return _OfTopic(0, unclaimed=node, below=below)
    if about is not None and about.first is not None:
        return _OfTopic(about.first)
    unknown = 0 if was_covered else len(topic.partitions)
    if not isinstance(node, Node):
        return _OfTopic(unknown, prepare=(Create(path, TopicOfOffsets(topic.identity, unknown).data),))
    found = TopicOfOffsets.read(node.data)
    is_known = not found.identity or is_identity(found.identity)
    first = unknown if found.first is None or not is_known else found.first
    now = TopicOfOffsets(topic.identity, first)
    if now == found:
        return _OfTopic(first)
    prepare = (SetData(path, now.data, node.stat.version),)
    # an empty value, which Kafka 0.8 writes, stands for the current topic
    if not found.identity or topic.is_same(found.identity):
        return _OfTopic(first, prepare)
    if not is_known:
        why = unclaimed(node.data.decode(errors="replace"), topic.identity)
        return _OfTopic(first, prepare, unclaimed=Unreadable(path, why), below=below)
    anew = (SetData(path, TopicOfOffsets(topic.identity, 0).data, node.stat.version),)
    earlier = *(f"{path}/{name}" for name in sorted(below)), *awaited
    return _OfTopic(0, anew, tuple(map(Delete, earlier)), stale=True)


def _begin(node: object, path: str, *, stale: bool) -> int | Unreadable:
    if isinstance(node, Unreadable):
        return node
    if stale or not isinstance(node, Node):
        return NO_OFFSET
    try:
        return decode_offset(node.data, path)
    except MalformedValue as error:
        return Unreadable(error.where, error.reason)


def _names(listing: object) -> frozenset[str]:
    return frozenset(listing) if isinstance(listing, tuple) else frozenset()


def write_ops(group: str, offsets: Mapping[TopicPartition, int], existing: Iterable[TopicPartition]) -> list[Op]:
    """Returns the writes that set ``offsets``. ``existing`` names the partitions whose offset znode already exists."""
    there = frozenset(existing)
    return [offset_op(group, tp, offset, exists=tp in there) for tp, offset in sorted(offsets.items())]


def _covered_since(topic: str, members: Mapping[str, Member]) -> float:
    """Returns the zxid of the first registration that covers the topic. Leaves out Kafka clients, whose instance may
    have changed the subscription since."""
    since = (one.incarnation for one in members.values() if one.protocol is None and one.subscription.wants(topic))
    return min(since, default=math.inf)


def _subscriptions(members: Mapping[str, Member]) -> tuple[Subscription, ...]:
    return tuple({id(one.subscription): one.subscription for one in members.values()}.values())


class Covering(NamedTuple):
    """What to write before the first start. ``topics`` contains the values of the znodes ``offsets/<topic>`` that
    ``ops`` write, and ``now`` is what the group remembers once ``ops`` are written. ``before`` is what it remembers
    until then, or ``None`` if that is damaged."""

    topics: Mapping[str, TopicOfOffsets]
    ops: tuple[Op, ...]
    now: Coverage
    before: Coverage | None


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
    subscriptions = _subscriptions(members)
    now = (known or Coverage()).with_also(subscriptions)
    if node is not None and not isinstance(node, Node):
        return Covering({}, (), now, known)  # an ACL forbids reading it
    if known == now and node is not None:
        by_name = frozenset(name for one in now.subscriptions for name in one.topics)
        if not any(one.is_wildcard for one in now.subscriptions) and by_name <= there:
            return Covering({}, (), now, known)
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
    return Covering(added, tuple(ops), now, known)


def _counted(
    store: Store,
    group: str,
    there: frozenset[str],
    members: Mapping[str, Member],
    topics: Mapping[str, TopicInfo],
    known: Coverage,
) -> tuple[dict[str, TopicOfOffsets], list[Op]]:
    """Counts the partitions of the topics that only the new subscriptions cover, and whose offsets, perhaps those of
    Kafka 0.8, are there already. Returns the counts, and what writes them: before the coverage, too."""
    subscriptions, names = _subscriptions(members), sorted(there & topics.keys())
    names = [name for name in names if not known.covers(name) and any(one.wants(name) for one in subscriptions)]
    paths = [layout.topic_offsets(group, name) for name in names]
    counted, ops = dict[str, TopicOfOffsets](), list[Op]()
    for name, path, node in zip(names, paths, read_each(store, [GetData(path) for path in paths]), strict=True):
        if not isinstance(node, Node):
            continue
        found, topic = TopicOfOffsets.read(node.data), topics[name]
        if found.first is None and (not found.identity or topic.is_same(found.identity)):
            counted[name] = TopicOfOffsets(topic.identity, len(topic.partitions))
            ops.append(SetData(path, counted[name].data, node.stat.version))
    return counted, ops


class FirstEnds:
    """Lists awaited ends during one term of the coordinator. ``awaited`` maps groups to partitions; another thread
    replaces its values. Without a ``lister``, the members alone list ends. One thread calls :meth:`step`."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        awaited: Mapping[str, Sequence[TopicPartition]],
        lister: EndLister | None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._awaited = awaited
        self._lister = lister
        self._complaint = ""

    def step(self) -> float:
        """Lists the awaited ends and stores those that it finds. Returns how many seconds to wait until the next step.
        Raises :class:`Fenced` once another instance is elected."""
        awaited = dict(self._awaited)
        if awaited and self._lister is not None:
            self._list(awaited, self._lister)
        return EVERY_S

    def _list(self, awaited: Mapping[str, Sequence[TopicPartition]], lister: EndLister) -> None:
        try:
            ends = lister(PartitionSet.of({tp for partitions in awaited.values() for tp in partitions}))
            for group, partitions in awaited.items():
                self._store_ends(group, partitions, ends)
        except Fenced:
            raise
        except KafkaCoordError as error:
            self._complain(f"could not list the ends that {len(awaited)} groups await: {error}")
        else:
            self._complaint = ""

    def _store_ends(self, group: str, partitions: Sequence[TopicPartition], ends: Mapping[TopicPartition, int]) -> None:
        reads = [
            read
            for tp in partitions
            for read in (
                GetData(layout.awaited_end(group, *tp)),
                GetData(layout.offset(group, *tp)),
                GetData(layout.topic_offsets(group, tp.topic)),
                GetData(layout.broker_topic(tp.topic)),
            )
        ]
        found = read_each(self._store, reads)
        for number, tp in enumerate(partitions):
            mark, offset, parent, topic = found[4 * number : 4 * number + 4]
            if not isinstance(mark, Node) or not isinstance(topic, Node):
                continue  # resolved already, or the topic is not seen now
            done = Delete(layout.awaited_end(group, *tp), mark.stat.version)
            if isinstance(offset, Node) or _created(tp.topic, topic) > mark.stat.czxid:
                self._write(group, tp, [done])  # someone has stored an offset, or this is a later topic of that name
                continue
            if not isinstance(parent, Node) or tp not in ends:
                continue
            if self._write(group, tp, [offset_op(group, tp, ends[tp], exists=False), done]):
                log.info(
                    "listed the first end of partition=%s offset=%d group=%s, which no member could list",
                    *(tp, ends[tp], group),
                    extra={"event": "first_end"},
                )

    def _write(self, group: str, partition: TopicPartition, ops: Sequence[Op]) -> bool:
        try:
            self._executor.write([ops])
        except MultiFailed as error:  # a member was faster; look again at the next step
            log.debug("did not store the first end of partition=%s group=%s: %s", partition, group, error)
            return False
        return True

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("%s", complaint)
        self._complaint = complaint


def _created(name: str, node: Node) -> int:
    """Returns when the topic was created, as a zxid, or 0 if its znode cannot be decoded."""
    try:
        return decode_topic(name, node, {}).czxid
    except MalformedValue:
        return 0
