"""The original design's listeners. They record changes and set the affected groups' bits, but make no decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from kafka_coord.coordinator.memory import GroupRegistry, TopicCatalog
from kafka_coord.coordinator.pending_requests import PendingRequests
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.coordinator.tolerant_reads import Answer, read_each, report
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Request, TopicPartition, Unreadable
from kafka_coord.model.member import awaited_partitions
from kafka_coord.model.names import RULE, is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import DO_NOT_FINALISE, MIGRATING, Migration, decode_brokers, decode_topic
from kafka_coord.zk.store import GetData, Node, Read, SessionState, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)


class IllegalNames:
    """Logs one warning about new children with illegal names, which are ignored."""

    def __init__(self, kind: str, parent: str) -> None:
        self._kind = kind
        self._parent = parent
        self._reported: frozenset[str] = frozenset()

    def report(self, names: Iterable[str]) -> None:
        found = frozenset(name for name in names if not is_legal(name))
        new = sorted(found - self._reported)
        self._reported = found
        if new:
            shown = ", ".join(repr(name[:60]) for name in new[:5]) + (f" and {len(new) - 5} more" if new[5:] else "")
            log.warning("ignoring %s with illegal names below=%s: %s; use %s", self._kind, self._parent, shown, RULE)


@dataclass(eq=False)
class TopicPartitionChangeListener:
    """Watches ``/brokers/topics/<topic>``, whose *data* is the partition list (KAFKA-1075). ``held`` contains the
    topics read before :meth:`begin`, while the brokers' racks were still unknown; afterwards it is ``None``."""

    _catalog: TopicCatalog
    _registry: GroupRegistry
    _queue: RebalanceRequestQueue
    _racks: Mapping[int, str]
    held: dict[str, Node] | None = field(default_factory=dict)

    def begin(self) -> None:
        """Processes the topics in ``held``, now that the racks are known."""
        held, self.held = self.held or {}, None
        for topic, node in held.items():
            self.on_data(topic, node)

    def forget(self, topic: str) -> bool:
        """Removes a deleted topic. Returns whether it was known."""
        if self.held is not None:
            self.held.pop(topic, None)
        return self._catalog.drop(topic)

    def on_data(self, topic: str, node: Node | None) -> None:
        if node is None:
            return  # the parent's listener removes the topic
        if self.held is not None:
            self.held[topic] = node
            return
        try:
            info = decode_topic(topic, node, self._racks)
        except MalformedValue as error:
            report("cannot read", [Unreadable(error.where, error.reason)])
            return
        before = self._catalog.put(info)
        if before != info:
            request_interested(topic, self._registry, self._queue)


@dataclass(eq=False)
class TopicChangeListener:
    """Watches ``/brokers/topics`` for created and deleted topics."""

    _watches: Watches
    _registry: GroupRegistry
    _queue: RebalanceRequestQueue
    _partitions: TopicPartitionChangeListener
    _watched: set[str] = field(default_factory=set)
    _names: IllegalNames = field(default_factory=lambda: IllegalNames("topics", layout.BROKER_TOPICS))

    def on_children(self, topics: tuple[str, ...] | None) -> None:
        self._names.report(topics or ())
        present = {topic for topic in topics or () if is_legal(topic)}
        for topic in sorted(present - self._watched):
            self._watches.data(layout.broker_topic(topic), partial(self._partitions.on_data, topic))
        for topic in sorted(self._watched - present):
            self._watches.drop(layout.broker_topic(topic))
            if self._partitions.forget(topic):
                request_interested(topic, self._registry, self._queue)
        self._watched = present


class GroupMemberChangeListener:
    """Watches ``/consumers/groups/<group>/ids`` for members that register or leave. ``listed`` contains the members
    found at startup. It is ``None`` afterwards, when the handler lists the members."""

    def __init__(self, queue: RebalanceRequestQueue) -> None:
        self._queue = queue
        self.listed: dict[str, tuple[str, ...]] | None = {}

    def on_children(self, group: str, members: tuple[str, ...] | None) -> None:
        if self.listed is not None:
            self.listed[group] = members or ()
        self._queue.request(group)


class UnresolvedListener:
    """Watches ``/consumers/groups/<group>/unresolved`` for what members cannot resolve. ``awaited`` maps each group to
    the partitions whose first end nobody has listed yet. ``refusing`` contains the groups in which members may not read
    some topics."""

    def __init__(self, queue: RebalanceRequestQueue) -> None:
        self._queue = queue
        self.awaited: dict[str, tuple[TopicPartition, ...]] = {}
        self.refusing: set[str] = set()

    def on_children(self, group: str, names: tuple[str, ...] | None) -> None:
        awaited = awaited_partitions(names or ())
        if awaited:
            self.awaited[group] = awaited
        else:
            self.awaited.pop(group, None)
        refuses = any(is_legal(name) for name in names or ())
        if refuses or group in self.refusing:
            self._queue.request(group)
        (self.refusing.add if refuses else self.refusing.discard)(group)


class GroupChangeListener:
    """Watches ``/consumers/groups`` for created and removed groups."""

    def __init__(
        self,
        watches: Watches,
        queue: RebalanceRequestQueue,
        members: GroupMemberChangeListener,
        unresolved: UnresolvedListener,
    ) -> None:
        self._watches = watches
        self._queue = queue
        self._members = members
        self._unresolved = unresolved
        self._unwatched: set[str] = set()
        self._names = IllegalNames("groups", layout.GROUPS)
        self.groups: frozenset[str] = frozenset()

    def on_children(self, groups: tuple[str, ...] | None) -> None:
        self._names.report(groups or ())
        present = frozenset(group for group in groups or () if is_legal(group))
        for group in sorted(present - self.groups):
            self._watches.children(layout.ids(group), partial(self._members.on_children, group))
            self._unwatched.add(group)
            self._queue.request(group)
        for group in sorted(self.groups - present):
            self._watches.drop(layout.ids(group))
            self._unwatched.discard(group)
            self._watches.drop(layout.unresolved(group))
            self._unresolved.on_children(group, None)
            self._queue.request(group)
        self.groups = present

    def watch_unresolved(self) -> None:
        """Watches what the members of new groups cannot resolve. Called after the startup, because each request would
        delay the first decisions, which read it anyway."""
        for group in sorted(self._unwatched):
            self._watches.children(layout.unresolved(group), partial(self._unresolved.on_children, group))
        self._unwatched.clear()


class SessionExpirationListener:
    """Wakes the service when the state of this instance's own ZooKeeper session changes, and records when the session
    ends. Consumers' sessions are none of its business."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.expired = False

    def on_session(self, state: SessionState) -> None:
        if state in {SessionState.LOST, SessionState.CLOSED}:
            self.expired = True
        self._wake()


class RequestListener:
    """Watches ``/consumers/requests`` for operator requests. ``listed`` contains the requests found at startup;
    afterwards it is ``None``."""

    def __init__(self, requests: PendingRequests, queue: RebalanceRequestQueue) -> None:
        self._requests = requests
        self._queue = queue
        self.listed: tuple[str, ...] | None = ()

    def begin(self, nodes: Sequence[Answer]) -> None:
        """Processes the listed requests, whose znodes were read at startup."""
        listed, self.listed = self.listed or (), None
        self._enqueue(self._requests.take(frozenset(listed), listed, nodes))

    def on_children(self, names: tuple[str, ...] | None) -> None:
        if self.listed is not None:
            self.listed = names or ()
        else:
            self._enqueue(self._requests.load(names or ()))

    def _enqueue(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.group:
                self._queue.request(request.group)


class PauseListener:
    """Watches ``/consumers/paused`` and enqueues every group when the pause is set or lifted. If the pause was set and
    lifted before the listener noticed it, only the groups that a pass may have found paused (``perhaps_paused``) are
    enqueued.
    """

    def __init__(
        self, groups: GroupChangeListener, queue: RebalanceRequestQueue, perhaps_paused: Callable[[], Iterable[str]]
    ) -> None:
        self._groups = groups
        self._queue = queue
        self._perhaps_paused = perhaps_paused
        self._was_set: bool | None = None

    def on_data(self, node: Node | None) -> None:
        was_set, self._was_set = self._was_set, node is not None
        if was_set is None:
            return  # at startup, the group listener enqueues every group
        for group in sorted(self._groups.groups if was_set or node is not None else self._perhaps_paused()):
            self._queue.request(group)


def request_interested(topic: str, registry: GroupRegistry, queue: RebalanceRequestQueue) -> None:
    """Enqueues every group that subscribes to the topic, by name or by pattern."""
    for group in sorted(registry.groups_for_topic(topic)):
        queue.request(group)


class BrokerChangeListener:
    """Watches ``/brokers/ids`` for the brokers' racks. Changes apply only to topics read from then on: racks are just a
    preference, so it is not worth rereading topics. Also reads ``/controller`` whenever the brokers change, as they do
    in each phase of a migration to KRaft, and warns once about it. ``listed`` contains the brokers found at startup;
    afterwards it is ``None``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.listed: tuple[str, ...] | None = ()
        self.racks: dict[int, str] = {}
        self._has_warned = False

    def reads(self, brokers: Sequence[str]) -> list[Read]:
        """Returns the reads whose answers :meth:`take` takes."""
        return [GetData(layout.CONTROLLER), *(GetData(layout.broker(broker)) for broker in brokers)]

    def begin(self, answers: Sequence[Answer]) -> None:
        """Processes the listed brokers, whose znodes were read at startup."""
        listed, self.listed = self.listed or (), None
        self.take(listed, answers)

    def take(self, brokers: Sequence[str], answers: Sequence[Answer]) -> None:
        controller, *nodes = answers
        self.racks.update(_racks(brokers, nodes))
        is_migrating = Migration.of(controller, None) is Migration.RUNNING
        if is_migrating and not self._has_warned:
            log.warning("Kafka %s; %s", MIGRATING, DO_NOT_FINALISE)
        self._has_warned = is_migrating

    def on_children(self, brokers: tuple[str, ...] | None) -> None:
        ids = brokers or ()
        if self.listed is not None:
            self.listed = ids
        else:
            self.take(ids, read_each(self._store, self.reads(ids)))


def _racks(brokers: Sequence[str], nodes: Sequence[Answer]) -> dict[int, str]:
    """Returns a map from broker id to rack, for the brokers that have a rack."""
    found = decode_brokers(brokers, nodes)
    report("cannot read", found.unreadable)
    return {broker.broker_id: broker.rack for broker in found.live if broker.rack is not None}
