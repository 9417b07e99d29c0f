"""The elected coordinator: its startup (in the order given in docs/design.md) and its in-memory state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.decision_writer import ActiveLeadership
from kafka_coord.coordinator.execute import Executor, TermThread
from kafka_coord.coordinator.handler import RebalanceRequestHandler
from kafka_coord.coordinator.history import ClusterHistoryWriter
from kafka_coord.coordinator.image import known_in, reads_of_registrations, reads_of_settled, settled_in
from kafka_coord.coordinator.listeners import (
    BrokerChangeListener,
    GroupChangeListener,
    GroupMemberChangeListener,
    PauseListener,
    RequestListener,
    TopicChangeListener,
    TopicPartitionChangeListener,
    UnresolvedListener,
)
from kafka_coord.coordinator.memory import GroupRegistry, TopicCatalog
from kafka_coord.coordinator.mirroring import MetadataMirror, MetadataOptions
from kafka_coord.coordinator.pending_requests import PendingRequests, answer_op
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.coordinator.start_offsets import EndLister, FirstEnds
from kafka_coord.coordinator.tolerant_reads import Answer, read_each
from kafka_coord.errors import MultiFailed, NoAuth, StoreUnavailable
from kafka_coord.model import Action, Process, Request
from kafka_coord.model.histories import Election
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.election import Leadership
from kafka_coord.zk.store import GetData, Op, Read, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

_FEW_CONSUMERS = 1_000
"""The most registrations that startup reads in one request without first checking which of them it needs."""


class ConsumerCoordinator:
    """Holds the state of one period of leadership: created when this instance is elected, and dropped when the instance
    no longer leads.

    :meth:`coordinator_startup` and :meth:`step` belong to the service's thread, and ``handler.step`` belongs to the
    handler's thread. The original design's ``consumer_groups_per_topic`` and ``groups_with_wildcard_topics`` are in
    ``registry``, and its ``groups_being_rebalanced`` and ``rebalance_request_queue`` in ``queue``.
    """

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        still_leads: Callable[[], bool],
        wake: Callable[[], None],
        assignors: Mapping[str, Assignor],
        options: CoordinatorOptions,
        broker_id: int | None = None,
        process: Process | None = None,
        lister: EndLister | None = None,
        metadata: MetadataOptions | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._wake = wake
        self.leadership = leadership
        self.registry = GroupRegistry()
        self.catalog = TopicCatalog()
        self.queue = RebalanceRequestQueue(store.clock)
        self.requests = PendingRequests(store)
        self._watches = Watches(store, wake)
        self._executor = Executor(store, leadership.fence, leadership.session_id)
        self.handler = RebalanceRequestHandler(
            store,
            ActiveLeadership(leadership.epoch, self._executor, lambda: still_leads() and self._watches.is_current()),
            self.queue,
            self.registry,
            self.catalog,
            self.requests,
            assignors,
            options,
        )
        self._members = GroupMemberChangeListener(self.queue)
        self._unresolved = UnresolvedListener(self.queue)
        self._groups = GroupChangeListener(self._watches, self.queue, self._members, self._unresolved)
        self.first_ends = FirstEnds(store, self._executor, self._unresolved.awaited, lister)
        self.mirror: MetadataMirror | None = None
        """``None`` if the metadata is only read from Kafka's own znodes."""
        if metadata is not None:
            self.mirror = MetadataMirror(store, self._executor, metadata, self.registry.topics_by_name)
        self.threads = tuple(
            thread
            for thread in (
                TermThread("first-ends", self.first_ends.step) if lister is not None else None,
                self.mirror.thread if self.mirror is not None else None,
            )
            if thread is not None
        )
        self._brokers = BrokerChangeListener(store)
        self._partitions = TopicPartitionChangeListener(self.catalog, self.registry, self.queue, self._brokers.racks)
        self._asked = RequestListener(self.requests, self.queue)
        self._swept_ms = 0.0
        self.history: ClusterHistoryWriter | None = None
        """``None`` if ``broker_id`` or ``process`` is not given, in which case nothing is recorded."""
        if broker_id is not None and process is not None:
            own = Election(broker_id, process.host, leadership.epoch, int(store.clock.time() * 1000))
            self.history = ClusterHistoryWriter(store, self._executor, own)
            self.handler.on_removal = self.record

    @property
    def groups(self) -> frozenset[str]:
        """The existing groups, as the group listener last saw them."""
        return self._groups.groups

    def coordinator_startup(self) -> None:
        """Arms the listeners for topics and groups, enqueues every group, and reads each group's subscriptions. The
        service starts the handler's thread afterwards.

        Znodes are read and watched together, so no change can slip in between. Reads are batched wherever possible,
        because every round trip delays the first decision. After a :class:`StoreUnavailable`, the caller must resign or
        try again.
        """
        topics = TopicChangeListener(self._watches, self.registry, self.queue, self._partitions)
        self._watches.children(layout.BROKER_IDS, self._brokers.on_children)
        self._watches.children(layout.BROKER_TOPICS, topics.on_children)
        self._watches.children(layout.GROUPS, self._groups.on_children)
        self._watches.children(layout.REQUESTS, self._asked.on_children)
        self._watches.data(layout.PAUSED, PauseListener(self._groups, self.queue, self.handler.perhaps_paused).on_data)
        self._watches.step()
        if self._watches.is_refused(layout.GROUPS):
            raise NoAuth("cannot list the groups: grant READ to the coordinator's user", layout.GROUPS)
        if not self._watches.told_all():  # an unread topic would count as missing
            raise StoreUnavailable("could not read all topics and groups", layout.CONSUMERS)
        self._read_what_is_listed()
        log.info(
            "started as coordinator epoch=%d topics=%d groups=%d",
            self.leadership.epoch,
            len(self.catalog.names()),
            len(self.groups),
            extra={"event": "started"},
        )

    def record(self, action: Action) -> None:
        """Records an operator action in the cluster history. Safe to call from any thread."""
        if self.history is not None:
            self.history.add(action)
            self._wake()

    def step(self) -> None:
        """Re-arms watches that fired, runs their listeners, writes the history, and periodically removes old
        responses."""
        self._groups.watch_unresolved()
        self._watches.step()
        if self.history is not None:
            self.history.step()
        now_ms = self._store.clock.time() * 1000
        if now_ms - self._swept_ms > self._options.answers_kept_ms / 10:
            self._swept_ms = now_ms
            self._store.ensure_prepared()  # someone may have deleted these znodes since startup
            for unit in self.requests.stale_answers(int(now_ms) - self._options.answers_kept_ms):
                self._remove_answer(unit)

    def _remove_answer(self, unit: Sequence[Op]) -> None:
        try:
            self._executor.write([unit])
        except MultiFailed as error:
            # the response is gone, or its ACL forbids deleting it
            log.debug("could not remove an old response reason=%s", error)

    def answer(self, request: Request, result: str, message: str, also: Sequence[Op] = ()) -> bool:
        """Writes the response to a request that does not concern a managed group, and applies ``also`` in the same
        multi.

        Returns whether the request now has this response. That can be true even if the write fails: an earlier attempt
        may have succeeded although ZooKeeper's reply was lost.
        """
        answered = replace(request, result=result, message=message)
        try:
            self._executor.write([(answer_op(request, result, message), *also)])
        except MultiFailed as error:
            if error.path != layout.request(request.request_id):
                raise
            self.requests.refused(error)
            current = self.requests.get(request.request_id)
            return current is not None and (current.result, current.message) == (result, message)
        self.requests.record_answer(answered)
        return True

    def close(self) -> None:
        """Removes the listeners, stops the handler, and clears all state."""
        self.handler.closed = True
        for thread in self.threads:
            thread.close()
        self._watches.close()
        self.queue.close()
        self.registry.clear()
        self.catalog.clear()
        self.requests.clear()

    def _read_what_is_listed(self) -> None:
        """Reads the znodes that the listeners listed (brokers, requests and registrations), and fills the registry. A
        group that was at rest before the election is taken over from its record alone. Also creates any missing
        persistent roots."""
        brokers, requests = self._brokers.listed or (), self._asked.listed or ()
        listed, self._members.listed = self._members.listed or {}, None
        groups = {group: [name for name in names if is_legal(name)] for group, names in listed.items()}
        few = sum(map(len, groups.values())) <= _FEW_CONSUMERS
        consumers = [(group, name) for group, names in groups.items() for name in names]
        reads: list[Sequence[Read]] = [
            [GetData(path) for path in layout.PERSISTENT_ROOTS],
            self._brokers.reads(brokers),
            [GetData(layout.request(name)) for name in requests],
            reads_of_settled(groups),
            reads_of_registrations(consumers) if few else (),
        ]
        results = iter(read_each(self._store, [read for some in reads for read in some]))
        roots, of_brokers, of_requests, of_groups, registrations = ([*islice(results, len(some))] for some in reads)
        idle = self._take_settled(groups, of_groups)
        if not few:
            consumers = [(group, name) for group, name in consumers if group not in idle]
            registrations = [*read_each(self._store, reads_of_registrations(consumers))]
        for path, root in zip(layout.PERSISTENT_ROOTS, roots, strict=True):
            if root is None:  # someone deleted it after this instance registered
                self._store.ensure_path(path)
        self._store.ensure_prepared()
        self._brokers.begin(of_brokers)
        self._partitions.begin()
        self._asked.begin(of_requests)
        self._take_members({g: names for g, names in groups.items() if g not in idle}, consumers, registrations)
        self.queue.calm(idle)

    def _take_settled(self, groups: Iterable[str], answers: Sequence[Answer]) -> frozenset[str]:
        """Adopts and returns the groups that are recorded as at rest and whose members have not changed since."""
        idle, found = set(), settled_in(groups, answers) if self._options.settled_after_ms else {}
        for group, record in zip(groups, answers[::2], strict=True):
            settled = found.get(group)
            if settled is not None:
                self.registry.put(group, settled.subscriptions)
                self.handler.idle.begin(self.handler.memories.of(group), settled)
                idle.add(group)
            elif record is not None:
                self.handler.memories.of(group).settled_exists = True
        return frozenset(idle)

    def _take_members(
        self, groups: Mapping[str, Sequence[str]], consumers: Sequence[tuple[str, str]], nodes: Sequence[Answer]
    ) -> None:
        found = dict(zip(consumers, nodes, strict=True))
        for group, names in groups.items():
            known = known_in(group, {name: found[group, name] for name in names})  # the handler reports what it misses
            self.registry.update(group, known.members)
            self.handler.memories.of(group).known = known
