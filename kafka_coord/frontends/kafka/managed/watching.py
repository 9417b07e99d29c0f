"""What the thread of the managed groups' terms watches in ZooKeeper: the targets of groups whose members wait for their
shares, operators' requests to convert groups, and the identities of the topics that groups commit offsets of.
What a mirror lacks of these, the brokers are asked for before anybody is told that it does not exist."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from kafka_coord.coordinator.image import decode_assignment
from kafka_coord.coordinator.pending_requests import answer_op
from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import BrokerError, Fenced, MalformedValue, MultiFailed, StoreError
from kafka_coord.frontends.kafka.instances import Together
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.topics import LogTopics
from kafka_coord.model import PartitionSet, Request, RequestType, TopicInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import decode_topic
from kafka_coord.zk.fencing import write_fenced
from kafka_coord.zk.root import reads_mirror
from kafka_coord.zk.store import Check, GetData, Node, SessionState, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

Target = Mapping[str, PartitionSet]
"""Maps each consumer to its share."""


class Targets:
    """Watches the targets of groups. Calls ``tell`` with a group's target when it is first read, and after each change.
    Not thread-safe."""

    def __init__(self, store: Store, wake: Callable[[], None], tell: Callable[[str, Target], None]) -> None:
        self._watches, self._tell = Watches(store, wake), tell
        self._followed: set[str] = set()

    def step(self, wanted: set[str]) -> None:
        """Watches the targets of the given groups, and of no others. Raises :class:`StoreUnavailable`."""
        for group in self._followed - wanted:
            self._watches.drop(layout.assignment(group))
        for group in wanted - self._followed:
            self._watches.data(layout.assignment(group), partial(self._changed, group))
        self._followed = wanted
        self._watches.step()

    def _changed(self, group: str, node: Node | None) -> None:
        path = layout.assignment(group)
        target: Target = {}
        if node is not None:
            try:
                target = decode_assignment(path, node).members
            except MalformedValue as error:
                log.warning("cannot read the target of group=%s: %s", group, error)
        self._tell(group, target)

    def close(self) -> None:
        self._watches.close()


class ConversionRequests:
    """Watches for unanswered requests to convert groups. Only :meth:`answer` is thread-safe.

    Passes each request to ``carry_out`` once in every term in which this instance serves the request's group.
    """

    def __init__(self, store: Store, watches: Watches, carry_out: Callable[[Request], None]) -> None:
        self._store, self._carry_out = store, carry_out
        self._known: dict[str, Request | None] = {}
        """The requests by znode name. ``None`` stands for a request that is unreadable, answered or of another type."""
        self._passed_on: dict[str, int] = {}
        watches.children(layout.REQUESTS, self._listed)

    def _listed(self, names: tuple[str, ...] | None) -> None:
        listed = names or ()
        self._known = {name: self._known[name] for name in listed if name in self._known}
        self._passed_on = {name: term for name, term in self._passed_on.items() if name in self._known}
        fresh = [name for name in listed if name not in self._known]
        nodes = self._store.read_many([GetData(layout.request(one)) for one in fresh]) if fresh else ()
        for name, node in zip(fresh, nodes, strict=True):
            self._known[name] = _conversion(name, node) if isinstance(node, Node) else None

    def pass_on(self, term_of: Callable[[int], int | None]) -> None:
        """Passes on the requests that can be carried out. ``term_of`` returns this instance's term for a partition of
        the groups log, or ``None`` if this instance does not serve the partition."""
        for name, request in self._known.items():
            term = None if request is None else term_of(partition_of(request.group))
            if request is not None and term is not None and self._passed_on.get(name) != term:
                self._passed_on[name] = term
                self._carry_out(request)

    def answer(self, request: Request, term: int, result: str, message: str) -> None:
        """Answers the request. Does nothing if the term is over, or if the request was withdrawn or has already been
        answered. Raises :class:`StoreError`."""
        fence = Check(layout.log_partition(partition_of(request.group)), term)
        with suppress(Fenced, MultiFailed):
            write_fenced(self._store, fence, [(answer_op(request, result, message),)])


def _conversion(name: str, node: Node) -> Request | None:
    where = layout.request(name)
    try:
        value = fields.load_object(node.data, where)
        if value.get("type") != RequestType.CONVERT_GROUP:
            return None
        request = Request.from_json(value, where, znode_version=node.stat.version)
    except MalformedValue:
        return None  # the elected coordinator reports it
    return None if request.answered else request


LookUp = Callable[[Collection[str]], Awaitable[Mapping[str, TopicInfo | None]]]
"""Returns what a broker says of the topics: ``None`` if it knows none of that name. Leaves out those of which it says
nothing. May raise :class:`BrokerError`."""


class ZooKeeperTopics(LogTopics):
    """The topics as ZooKeeper has them. ``watch`` makes another thread call back once now and after each change of a
    topic's znode. A topic is gone only if its znode is missing in a readable tree; a znode that cannot be read says
    nothing. A mirror is younger than its topics, so those that it lacks are ``looked_up``: one that a broker knows is
    seen as that says, and ``told`` is called, so that the mirror gets it.

    :meth:`learn` sees every change that was made before the call. While ZooKeeper cannot be reached, what was known
    stays known.
    """

    def __init__(
        self,
        store: Store,
        watch: Callable[[str, Callable[[], None]], None],
        looked_up: LookUp,
        told: Callable[[], None],
    ) -> None:
        super().__init__()
        self._store, self._watch, self._looked_up, self._told = store, watch, looked_up, told
        self._reading, self._noting = threading.Lock(), threading.Lock()
        self._lacking: set[str] = set()
        """The topics that the mirror did not have when it was last read."""
        self._read_together = Together(self._read_and_look_up)

    async def learn(self, topics: Iterable[str], *, follow: bool = False) -> None:
        names = sorted({topic for topic in topics if is_legal(topic)})
        if not names or self._store.session.state is not SessionState.CONNECTED:
            return
        await self._read_together(names)
        for topic in [one for one in names if follow and one not in self.followed and self.identity(one)]:
            self.followed.add(topic)
            self._watch(topic, lambda topic=topic: self._changed(topic))  # type: ignore[misc]

    def is_followed(self, topic: str) -> bool:
        return super().is_followed(topic) and topic not in self._lacking

    async def unseen(self, partitions: Collection[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        await self.learn({topic for topic, _ in partitions})
        missing = {one for one in partitions if self.identity(one[0]) and not self._shows(*one)}
        try:
            found = await self._looked_up({topic for topic, _ in missing}) if missing else {}
        except BrokerError:
            return frozenset(missing)  # that is for the caller to find out again
        known = {(topic, number) for topic, one in found.items() if one is not None for number in one.partitions}
        if missing & known:
            self._told()
        return frozenset(missing & known)

    def _shows(self, topic: str, partition: int) -> bool:
        seen = self._known.get(topic)
        return topic not in self._lacking and seen is not None and partition in seen.partitions

    async def _read_and_look_up(self, topics: Collection[str]) -> None:
        try:
            lacking = await asyncio.to_thread(self._read, sorted(topics))
        except StoreError as error:
            log.info("cannot find out the ids of topics, so those known before are used: %s", error)
            return
        if not lacking:
            return
        try:
            found = await self._looked_up(lacking)
        except BrokerError as error:
            log.info("cannot find out whether topics exist that the mirror lacks: %s", error)
            return
        with self._noting:
            for topic in self._lacking.intersection(found):  # the mirror may have got others meanwhile
                self.note(topic, found[topic])
        if any(found.values()):
            self._told()

    def _changed(self, topic: str) -> None:
        self._read([topic], latest=False)

    def _read(self, names: Sequence[str], *, latest: bool = True) -> list[str]:
        """Reads the topics' znodes, one read after another, so that an older state never replaces a newer one. If
        ``latest`` is set, the server catches up first. Returns those that a mirror lacks. Raises
        :class:`StoreError`."""
        paths = [layout.broker_topic(topic) for topic in names]
        with self._reading:
            if latest:
                self._store.sync(layout.BROKER_TOPICS)
            parent, *nodes = read_each(self._store, [GetData(layout.BROKER_TOPICS), *map(GetData, paths)])
            missing = [name for name, node in zip(names, nodes, strict=True) if node is None]
            lacking = missing if missing and isinstance(parent, Node) and reads_mirror(self._store) else []
            with self._noting:
                self._lacking = self._lacking.difference(names).union(lacking)
                for topic, node in zip(names, nodes, strict=True):
                    if isinstance(node, Node):
                        self._see(topic, node)
                    elif node is None and isinstance(parent, Node) and not lacking:
                        self.note(topic, None)
        return lacking

    def _see(self, topic: str, node: Node) -> None:
        try:
            self.note(topic, decode_topic(topic, node, {}))
        except MalformedValue as error:
            log.info("cannot read the topic's znode: %s", error)
