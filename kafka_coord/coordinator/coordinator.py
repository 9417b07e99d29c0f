"""The consumer coordinator while it is elected: startup in the design's order, and all it keeps in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.catalog import TopicCatalog
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.handler import Leading, RebalanceRequestHandler
from kafka_coord.coordinator.listeners import (
    GroupChangeListener,
    GroupMemberChangeListener,
    PauseListener,
    RequestListener,
    TopicChangeListener,
    TopicPartitionChangeListener,
    broker_racks,
)
from kafka_coord.coordinator.observe import decode_member
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.coordinator.reading import read_each
from kafka_coord.coordinator.registry import GroupRegistry
from kafka_coord.coordinator.requests import PendingRequests, answer_op
from kafka_coord.errors import Fenced, MalformedValue, MultiFailed, NoAuth, StoreUnavailable
from kafka_coord.model import Member, Request
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.election import Leadership
from kafka_coord.zk.store import GetData, Node, Op, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)


class ConsumerCoordinator:
    """One term of office. Made when this instance is elected, thrown away when it no longer leads.

    :meth:`coordinator_startup` and :meth:`step` belong to the service's thread (listeners), ``handler.step`` to the
    handler's. ``consumer_groups_per_topic``, ``groups_with_wildcard_topics``, ``groups_being_rebalanced`` and
    ``rebalance_request_queue`` are the original design's fields.
    """

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        still_leads: Callable[[], bool],
        wake: Callable[[], None],
        assignors: Mapping[str, Assignor],
        options: CoordinatorOptions,
    ) -> None:
        self._store = store
        self._options = options
        self.leadership = leadership
        self.registry = GroupRegistry()
        self.catalog = TopicCatalog()
        self.queue = RebalanceRequestQueue(store.clock)
        self.requests = PendingRequests(store)
        self._watches = Watches(store, wake)
        self._executor = Executor(store, leadership.fence)
        self.handler = RebalanceRequestHandler(
            store,
            Leading(leadership.epoch, self._executor, still_leads),
            self.queue,
            self.registry,
            self.catalog,
            self.requests,
            assignors,
            options,
        )
        self._members = GroupMemberChangeListener(self.queue)
        self._groups = GroupChangeListener(self._watches, self.queue, self._members)
        self._racks: dict[int, str] = {}
        self._swept_ms = 0.0

    @property
    def groups(self) -> frozenset[str]:
        """The groups there are, as the group listener last saw them."""
        return self._groups.groups

    def coordinator_startup(self) -> None:
        """Topics and groups with their listeners, every group enqueued, then the interests of each group; the handler's
        thread comes last and is the service's to start. A listener is armed by the very read that tells it what there
        is, so nothing is missed in between; and what can be asked for together is, for whoever waits for a decision
        waits for every round trip of a startup. Raises :class:`StoreUnavailable`: resign or try again."""
        topics = TopicPartitionChangeListener(self.catalog, self.registry, self.queue, self._racks)
        self._watches.children(layout.BROKER_IDS, self._read_racks)
        self._watches.children(
            layout.BROKER_TOPICS,
            TopicChangeListener(self._watches, self.catalog, self.registry, self.queue, topics).on_children,
        )
        self._watches.children(layout.GROUPS, self._groups.on_children)
        self._watches.children(layout.REQUESTS, RequestListener(self.requests, self.queue).on_children)
        self._watches.data(layout.PAUSED, PauseListener(self._groups, self.queue, self.handler.perhaps_paused).on_data)
        self._watches.step()
        if self._watches.is_refused(layout.GROUPS):
            raise NoAuth("cannot tell which groups there are: grant the coordinator's user the right", layout.GROUPS)
        if not self._watches.told_all():  # a topic not read yet would be taken for one that does not exist
            raise StoreUnavailable("could not read all topics and groups", layout.CONSUMERS)
        self._read_members()
        log.info(
            "started as coordinator epoch=%d topics=%d groups=%d",
            self.leadership.epoch,
            len(self.catalog.names()),
            len(self.groups),
        )

    def step(self) -> None:
        """Re-arms what fired and runs its listeners; removes old answers now and then."""
        self._watches.step()
        now_ms = self._store.clock.time() * 1000
        if now_ms - self._swept_ms > self._options.answers_kept_ms / 10:
            self._swept_ms = now_ms
            self._store.ensure_prepared()  # a group that was removed
            for unit in self.requests.stale_answers(int(now_ms) - self._options.answers_kept_ms):
                self._remove_answer(unit)

    def _remove_answer(self, unit: Sequence[Op]) -> None:
        try:
            self._executor.write([unit])
        except Fenced:
            raise
        except MultiFailed as error:
            log.debug("left an old answer reason=%s", error)  # gone already, or not ours to delete: try the others

    def answer(self, request: Request, result: str, message: str) -> None:
        """Answers a request that is about no group."""
        self._executor.write([(answer_op(request, result, message),)])
        self.requests.answered(replace(request, result=result, message=message))

    def close(self) -> None:
        """Takes the listeners off, ends the handler, and clears everything."""
        self.handler.closed = True
        self._watches.close()
        self.queue.close()
        self.registry.clear()
        self.catalog.clear()
        self.requests.clear()

    def _read_racks(self, brokers: tuple[str, ...] | None) -> None:
        """Of the brokers there are, for topics read from now on; and makes sure of the znodes everything else is
        below."""
        roots, ids = layout.PERSISTENT_ROOTS, [name for name in brokers or () if name.isascii() and name.isdigit()]
        found = read_each(self._store, [GetData(path) for path in (*roots, *map(layout.broker, ids))])
        for path, node in zip(roots, found[: len(roots)], strict=True):
            if node is None:  # somebody deleted it since this instance registered
                self._store.ensure_path(path)
        self._store.ensure_prepared()
        self._racks.update(broker_racks(ids, found[len(roots) :]))

    def _read_members(self) -> None:
        """Fills the registry from who is registered in each group."""
        listed, self._members.listed = self._members.listed or {}, None
        groups = {group: [name for name in names if is_legal(name)] for group, names in listed.items()}
        consumers = [(group, name) for group, names in groups.items() for name in names]
        nodes = read_each(self._store, [GetData(layout.registration(*c)) for c in consumers])
        members: dict[str, list[Member]] = {group: [] for group in groups}
        decoded: dict[str, dict[str, tuple[int, object]]] = {group: {} for group in groups}
        for (group, name), node in zip(consumers, nodes, strict=True):
            if isinstance(node, Node):
                where = layout.registration(group, name)
                try:
                    found = decode_member(where, node)
                except MalformedValue:
                    continue  # the handler's look reports it
                members[group].append(found)
                decoded[group][where] = node.stat.mzxid, found
        for group, names in groups.items():
            self.registry.update(group, members[group])
            self.handler.remember(group, names, decoded[group])
