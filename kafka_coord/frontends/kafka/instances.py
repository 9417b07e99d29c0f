"""Finds out which instance coordinates a group and how many partitions a topic has.

:class:`Instances` asks the broker beside this instance, whose listener advertises the instances' addresses unless
``--kafka-rewrite`` is set. No instance is named while it refuses clients or after its ZooKeeper session has ended: the
broker does not know whether the instance beside another broker is running. :class:`RegisteredInstances` does: an
instance that serves Kafka clients has a znode that names the endpoint ``kafka``, until its ZooKeeper session ends.

:class:`BrokerSettings` asks for the settings that the broker's own group coordinator would use. Where this instance has
a setting of its own, the broker's does not apply; while the broker does not tell its settings, Kafka's defaults do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from typing import Any, Generic, NamedTuple, TypeVar

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.errors import BrokerError, MalformedValue, NodeExists, NoNode, StoreError, StoreUnavailable
from kafka_coord.grouplog.term import BATCH_OVERHEAD_BYTES, PARTITIONS, TOPIC
from kafka_coord.grouplog.trees import read_claimant
from kafka_coord.kafka.cluster import create_topic_request, metadata_request
from kafka_coord.kafka.connection import RIGHTS, BrokerConnection, RightMissing, Versions, only
from kafka_coord.kafka.coordinators import Ask
from kafka_coord.model import CoordinatorInfo, TopicInfo, topic_id_from_bytes
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import partition_of
from kafka_coord.model.sequences import some
from kafka_coord.settings import host_and_port
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store, WatchEvent

log = logging.getLogger(__name__)

Address = tuple[str, int]
T = TypeVar("T")
READ_AGAIN_S = 5.0
"""How often to read the znodes even though no watch has fired, in seconds."""
_UNWATCHED_S = 0.5
"""How often to read them while there is no watch."""
_KNOWN_FOR_S = 30.0
_MOST_HIDDEN = 1_000
_MISSING_FOR_S = 0.2
"""How long to wait before asking about a missing partition again, in seconds. Its topic may be about to be created or
to grow."""
_BEYOND = 1 << 31
"""A partition that no topic has, so that the topic is asked for again as if one was missing."""
_DISAGREES_FOR_S = 5.0
"""For how long a move may keep the leader and the last claimant of a partition apart, in seconds."""
_MOST_REPLICAS = 3
_OFFSETS_TOPIC = "__consumer_offsets"
_LOG_SETTINGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": str(100 << 20),
    "unclean.leader.election.enable": "false",
}
SETTINGS_CHECK_S = 60.0
"""How often to ask the broker for its settings, in seconds."""
_DESCRIBE_CONFIGS = 0, 1
"""The versions of DescribeConfigs: Kafka 4 has no version 0, and Kafka before 1.1 no version 1."""
_NO_TOPIC = 3
"""The code of UNKNOWN_TOPIC_OR_PARTITION: the groups log has not been created yet."""
_OF_TOPIC, _OF_BROKER = 2, 4
"""The resource types of DescribeConfigs."""
_RETENTION = "offsets.retention.minutes"
_MS_PER_S = 1000
_LIMITS = {
    "group.min.session.timeout.ms": ("min_session_timeout_s", _MS_PER_S),
    "group.max.session.timeout.ms": ("max_session_timeout_s", _MS_PER_S),
    "group.max.size": ("max_size", 1),
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay_s", _MS_PER_S),
    "group.consumer.max.size": ("consumer_max_size", 1),
    "group.consumer.session.timeout.ms": ("consumer_session_timeout_s", _MS_PER_S),
    "offset.metadata.max.bytes": ("offset_metadata_chars", 1),
    "connections.max.idle.ms": ("idle_s", _MS_PER_S),
    "offsets.retention.check.interval.ms": ("expiry_check_s", _MS_PER_S),
}
"""The limit that each of the broker's settings determines, and the divisor between their units."""
_LARGEST_BATCH = "max.message.bytes"
"""The topic's setting. Unless it is set, the broker's ``message.max.bytes`` applies."""


class RegisteredInstances:
    """Keeps the addresses of the registered instances up to date. Use only on the event loop.

    While ZooKeeper does not answer, the last known addresses remain valid, because no session ends without ZooKeeper.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.addresses: Mapping[int, Address | None] = {}
        """The host and port where each instance serves Kafka clients, by broker id. ``None`` if the znode of a running
        instance cannot be read."""

    async def follow(self) -> None:
        """Reads the addresses whenever a registration begins, changes or ends. Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def changed(_event: WatchEvent) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(news.set)

        while True:
            news.clear()
            pause_s = READ_AGAIN_S
            try:
                found, is_watched = await asyncio.to_thread(read_addresses, self._store, changed)
                if not is_watched:
                    pause_s = _UNWATCHED_S
                self.addresses = found
            except StoreUnavailable as error:
                log.debug("cannot read which instances are registered: %s; retrying", error)
                pause_s = _UNWATCHED_S
            except Exception:
                log.exception("cannot read which instances are registered (this is a bug); retrying")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await news.wait()


def read_addresses(store: Store, changed: Callable[[WatchEvent], None]) -> tuple[dict[int, Address | None], bool]:
    """Returns the addresses where the registered instances serve Kafka clients, by broker id, and whether a watch is
    set, which calls ``changed`` when an instance is added, removed or written. Raises :class:`StoreUnavailable`."""
    try:
        names = store.children(layout.COORDINATORS, changed)
    except NoNode:
        return {}, False
    addresses: dict[int, Address | None] = {}
    for name in names:
        path = f"{layout.COORDINATORS}/{name}"
        try:
            info = CoordinatorInfo.from_bytes(store.get(path, changed).data, path)
            if "kafka" in info.endpoints:
                addresses[info.broker_id] = host_and_port(info.endpoints["kafka"])
        except NoNode:
            continue
        except (MalformedValue, ValueError):
            if name.isdecimal():
                addresses[int(name)] = None
    return addresses, True


Node = tuple[int, str, int]
"""Broker id, host, port."""

_METADATA, _CREATE_TOPICS = (4, 10), 2
"""The versions of Metadata and CreateTopics. Every broker from 0.11 on supports the oldest; from 10 on, Metadata tells
topics' ids."""
_FRESH_FOR_S, _FRESH_WITHIN_S = 0.05, 1.0
_TOPIC_EXISTS, _INVALID_REPLICATION = 36, 38


async def _unknown(_partition: int) -> None:
    return None


class _ToldTopic(NamedTuple):
    """What the broker has told of a topic: when, how many partitions it has, its id or "", and its error."""

    at: float = -math.inf
    partitions: int = 0
    topic_id: str = ""
    error: int = -1


class Together(Generic[T]):
    """Does ``work`` for many callers at once: those that call while it is under way share the next time, which begins
    after their calls."""

    def __init__(self, work: Callable[[Collection[T]], Awaitable[None]]) -> None:
        self._work = work
        self._wanted: set[T] = set()
        self._next: asyncio.Task[None] | None = None
        """The newest of its times, unless it has begun, so that it may miss what is wanted now."""
        self._under_way: asyncio.Task[None] | None = None

    async def __call__(self, wanted: Iterable[T]) -> None:
        """Raises what ``work`` raises."""
        self._wanted.update(wanted)
        if self._next is None:
            self._next = asyncio.create_task(self._do(self._under_way))
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._next)

    async def _do(self, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait({before})
        self._under_way, self._next = self._next, None
        wanted, self._wanted = self._wanted, set()
        await self._work(wanted)


class Instances:
    """Asks one broker about the cluster. Use only on the event loop. ``connect`` connects to the broker's listener for
    this instance. ``registered`` returns the addresses of the instances that serve Kafka clients, by broker id, where
    ``None`` stands for an unknown address. With ``rewrites`` (``--kafka-rewrite``), clients are given these addresses;
    otherwise, those that the brokers advertise. ``claimant`` returns which instance claimed a partition of the log
    last, or ``None`` if that is unknown."""

    def __init__(
        self,
        connect: Callable[[], BrokerConnection],
        broker_id: int,
        registered: Callable[[], Mapping[int, Address | None]],
        *,
        rewrites: bool = False,
        claimant: Callable[[int], Awaitable[int | None]] = _unknown,
    ) -> None:
        self._connect, self._registered, self._rewrites = connect, registered, rewrites
        self._claimant = claimant
        self._connection: BrokerConnection | None = None
        self.broker_id = broker_id
        self.is_stopping = False
        """Whether this instance is about to stop, so that it names itself no more, and coordinates no group."""
        self.is_refusing = False
        """Whether nobody listens at the broker's address, so that this instance refuses clients, too."""
        self.is_known = False
        """Whether the broker beside this instance has answered, and lists itself among the running brokers."""
        self._advertised: dict[int, Node] = {}
        """The running brokers, with the addresses that they advertise."""
        self.leaders: dict[int, int] = {}
        """The id of the broker that leads each partition of the log."""
        self._not_led: set[int] = set()
        """The partitions that the broker beside this instance does not lead, although its Metadata says so."""
        self._seen: dict[int, tuple[tuple[int | None, int | None], float]] = {}
        """The leader and the last claimant of each partition, and since when they have been the same two."""
        self._leaders_at = -_FRESH_FOR_S
        self._asking = asyncio.Lock()
        """Held while clients wait for the leaders, so that they share one request."""
        self.cluster_id: str | None = None
        """The id of the broker's cluster, once it has told it."""
        self.lagging_replicas = 0
        """The number of replicas of the log that are not in sync with their leader."""
        self._told: dict[str, _ToldTopic] = {}
        self._learn_together = Together(self._learn)
        self.hidden: set[str] = set()
        """The topics that the broker does not let this instance describe, among those that clients commit offsets of.
        The client may have the right: then nothing is said about the topic."""

    def running(self) -> set[int]:
        """Returns the broker ids of the registered instances."""
        return set(self._registered())

    def to_broker(self) -> BrokerConnection:
        """Returns another connection to the broker beside this instance."""
        return self._connect()

    async def ask(self, name: str, version: int | Versions, value: Any) -> Any:
        """Asks the broker beside this instance. Raises :class:`BrokerError`."""
        if self._connection is None:
            self._connection = self._connect()
        return await self._connection.ask(name, version, value)

    async def newest_version(self, name: str, spoken: Versions) -> int:
        """Returns the newest version of a request that the broker beside this instance supports among those in
        ``spoken``. Raises :class:`BrokerError` (:class:`~kafka_coord.kafka.connection.NoCommonVersion`)."""
        if self._connection is None:
            self._connection = self._connect()
        return await self._connection.newest_version(name, spoken)

    async def native_coordinator(self, group: str) -> Node | None:
        """Returns the instance beside the broker that coordinates the group if it is native, or ``None`` if the brokers
        have never coordinated any group. Asks in a way that creates no topic. Raises :class:`BrokerError`."""
        topic = only((await self._metadata([_OFFSETS_TOPIC])).topics, "topics")
        if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        leaders = {one.partition_index: one.leader_id for one in topic.partitions}
        leader = leaders.get(partition_of(group, len(leaders) or 1), -1)
        node = self._advertised.get(leader)
        beside = None if node is None else self.node(*node)
        if beside is None:
            what = f": {named(topic.error_code)}" if topic.error_code else ""
            raise BrokerError(f"no instance runs beside the group's own coordinator, broker {leader}{what}")
        return beside

    async def _metadata(self, topics: Iterable[str]) -> Any:
        answer = await self.ask("Metadata", _METADATA, metadata_request(topics))
        self._advertised = {node.node_id: (node.node_id, node.host, node.port) for node in answer.brokers}
        self.is_known, self.cluster_id = self.broker_id in self._advertised, answer.cluster_id
        now = time.monotonic()
        for topic in answer.topics:
            count = 0 if topic.error_code else len(topic.partitions)
            topic_id = topic_id_from_bytes(topic.topic_id) if any(topic.topic_id) else ""
            self._told[topic.name] = _ToldTopic(now, count, topic_id, topic.error_code)
        self._note_hidden(answer.topics)
        return answer

    def _note_hidden(self, topics: Iterable[Any]) -> None:
        """Reports once that the broker hides topics from this instance, and once that it does so no longer."""
        before = bool(self.hidden)
        for topic in topics:
            if topic.error_code not in RIGHTS:
                self.hidden.discard(topic.name)
            elif topic.name != TOPIC and len(self.hidden) < _MOST_HIDDEN:
                self.hidden.add(topic.name)
        if self.hidden and not before:
            log.error(
                "the broker does not let this instance describe topics, so commits for them get"
                " COORDINATOR_NOT_AVAILABLE: %s; give the instance's user DESCRIBE on all topics",
                some(sorted(self.hidden), 5),
                extra={"event": "right_missing"},
            )
        elif before and not self.hidden:
            log.info("the broker lets this instance describe all topics that clients commit offsets of")

    def node(self, broker_id: int, host: str, port: int) -> Node | None:
        """Returns the address of the instance that runs beside the broker, which advertises ``host:port``, or ``None``
        if that instance is not running. Without ``rewrites``, this instance knows its own address before it is
        registered."""
        if broker_id == self.broker_id and (self._is_away or not self._rewrites):
            return None if self._is_away else (broker_id, host, port)
        registered = self._registered()
        if not self._rewrites:
            return (broker_id, host, port) if broker_id in registered else None
        address = registered.get(broker_id)
        return None if address is None else (broker_id, *address)

    @property
    def _is_away(self) -> bool:
        return self.is_stopping or self.is_refusing

    def addresses(self) -> Mapping[int, Address] | None:
        """Returns the addresses to put into the broker's answers, by broker id, or ``None`` if those answers are right
        as they are: every running broker has an instance, at the address that the broker advertises. They also stay as
        they are until the registrations have been read."""
        if self._rewrites:
            return {
                broker_id: address
                for broker_id, address in self._registered().items()
                if address is not None and not (broker_id == self.broker_id and self._is_away)
            }
        nodes = {broker_id: self.node(*node) for broker_id, node in self._advertised.items()}
        if not self._registered() or None not in nodes.values():
            return None
        return {broker_id: node[1:] for broker_id, node in nodes.items() if node is not None}

    async def find_leaders(self) -> None:
        """Finds the leaders of the log's partitions. If there are none yet, creates the topic, unless that is another
        instance's task. Raises :class:`BrokerError` (:class:`RightMissing` if the broker denies the right)."""
        answer = await self._metadata([TOPIC])
        self._leaders_at = time.monotonic()
        topic = only(answer.topics, "topics")
        if topic.error_code in RIGHTS:
            raise RightMissing(f"cannot describe topic {TOPIC}", topic.error_code)
        ours = [one for one in topic.partitions if 0 <= one.partition_index < PARTITIONS]  # the topic may have grown
        self.leaders = {one.partition_index: one.leader_id for one in ours if one.leader_id >= 0}
        self._not_led = {one for one in self._not_led if self.leaders.get(one) == self.broker_id}
        self.lagging_replicas = sum(len(one.replica_nodes) - len(one.isr_nodes) for one in topic.partitions)
        if not topic.partitions and not self.leaders:
            await self._make_topic(answer.controller_id)

    async def _make_topic(self, controller: int) -> None:
        """Creates the topic if this instance's broker is the controller. A group's instance is, if possible, the one
        beside the brokers' own coordinator of it, so that a move gives its members no other coordinator."""
        if controller != self.broker_id:
            return
        theirs = only((await self._metadata([_OFFSETS_TOPIC])).topics, "topics").partitions
        replicas = min(_MOST_REPLICAS, len(self._advertised))
        settings = _LOG_SETTINGS | ({"min.insync.replicas": "2"} if replicas == _MOST_REPLICAS else {})
        placed = {one.partition_index: one.replica_nodes[:replicas] for one in theirs}
        may = all(len(ids) == replicas and self._advertised.keys() >= {*ids} for ids in placed.values())
        placed = placed if may and placed.keys() == set(range(PARTITIONS)) else {}
        request = create_topic_request(TOPIC, PARTITIONS, replicas, settings, placed, timeout_s=15.0)
        answer = await self.ask("CreateTopics", _CREATE_TOPICS, request)
        error = only(answer.topics, "topics").error_code
        if error in RIGHTS:
            raise RightMissing(f"cannot create topic {TOPIC}", error)
        if error not in {0, _TOPIC_EXISTS, _INVALID_REPLICATION}:
            raise BrokerError(f"cannot create topic {TOPIC}: {named(error)}")

    async def coordinator_of(self, partition: int) -> Node | None:
        """Returns the instance beside the broker that leads the given partition of the log, if it is running, and if it
        claimed the partition last: in a move, the brokers' Metadata names the old leader or the new one too long or too
        early, and each client that is sent to an instance without a claim logs a warning. Clients ask when their group
        may have just moved, so the leaders must be at most :data:`_FRESH_FOR_S` old, unless the broker does not say
        them soon. Raises :class:`BrokerError` if the partition's leader was never known."""
        try:
            async with asyncio.timeout(_FRESH_WITHIN_S), self._asking:
                if time.monotonic() - self._leaders_at > _FRESH_FOR_S or partition not in self.leaders:
                    await self.find_leaders()
        except (BrokerError, TimeoutError) as error:
            if partition not in self.leaders:
                raise BrokerError(f"the leader of partition {partition} is unknown: {error}") from error
        node = self.named(partition)
        if node is None or node[0] == self.broker_id:  # here, requests wait for the claim
            return node
        return node if await self._claimed_by(partition) in {None, node[0]} else None

    async def claimed_last(self, partition: int) -> bool:
        """Returns whether this instance claimed the partition last, so that no other can serve its groups yet."""
        return await self._claimed_by(partition) == self.broker_id

    async def _claimed_by(self, partition: int) -> int | None:
        """Returns which instance claimed the partition last, or ``None`` if that is unknown. Believes the Metadata once
        the two have disagreed for :data:`_DISAGREES_FOR_S`: an instance may have claimed in vain."""
        claimant = await self._claimant(partition)
        leader = None if partition in self._not_led else self.leaders.get(partition)
        now = asyncio.get_running_loop().time()
        seen, since = self._seen.get(partition, (None, now))
        if seen != (leader, claimant):
            since = now
            self._seen[partition] = (leader, claimant), since
        return claimant if claimant == leader or now - since < _DISAGREES_FOR_S else None

    def named(self, partition: int) -> Node | None:
        """Like :meth:`coordinator_of`, from what is known."""
        node = None if partition in self._not_led else self._advertised.get(self.leaders.get(partition, -1))
        return None if node is None else self.node(*node)

    def tried_to_lead(self, partition: int, *, leads: bool) -> None:
        """The broker beside this instance, whose Metadata names itself as the leader, has said whether it leads the
        partition. In a move, it hears from the controller of its own partitions earlier than of all others."""
        (self._not_led.discard if leads else self._not_led.add)(partition)

    async def may_lead(self, partition: int) -> bool:
        """Returns whether the broker beside this instance leads the partition now, as far as it says so soon."""
        try:
            node = await self.coordinator_of(partition)
        except BrokerError:
            return False
        return node is not None and node[0] == self.broker_id

    async def learn(self, highest: Mapping[str, int]) -> None:
        """Refreshes cached partition counts that are too old. ``highest`` maps each topic to the highest
        partition in a client's request. If the cached count does not include that partition, the topic may have grown,
        so the count is refreshed much sooner."""
        if self._stale(highest.items()):
            await self._learn_together(highest.items())

    def _stale(self, wanted: Iterable[tuple[str, int]]) -> list[str]:
        now, never = time.monotonic(), _ToldTopic()
        told = ((topic, partition, self._told.get(topic, never)) for topic, partition in wanted)
        return [
            topic
            for topic, partition, one in told
            if now - one.at >= (_KNOWN_FOR_S if partition < one.partitions else _MISSING_FOR_S)
        ]

    async def _learn(self, wanted: Collection[tuple[str, int]]) -> None:
        if stale := self._stale(wanted):  # the last request, which this one has waited for, may have told it
            await self._metadata(set(stale))

    async def look_up(self, topics: Iterable[str]) -> dict[str, TopicInfo | None]:
        """Returns what the broker says of the topics now: ``None`` if it knows none of that name. Leaves out those of
        which it says nothing, or no id. Raises :class:`BrokerError`."""
        names = list(topics)
        await self.learn(dict.fromkeys(names, _BEYOND))
        told = {name: self._told[name] for name in names if name in self._told}
        return {
            name: TopicInfo(name, frozenset(range(one.partitions)), one.topic_id) if one.partitions else None
            for name, one in told.items()
            if one.error == Error.UNKNOWN_TOPIC_OR_PARTITION or (one.partitions and one.topic_id)
        }

    def partitions_of(self, topic: str) -> int:
        """Returns how many partitions the topic has, or 0 if that is unknown."""
        return self._told.get(topic, _ToldTopic()).partitions

    def close(self) -> None:
        """Closes the connection to the broker. The next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# --- what ZooKeeper says of claims, and readiness --------------------------------------------------------------------

_FRESH_CLAIM_S = 0.05
CLAIMANT_WITHIN_S = 1.0
"""How long to wait for ZooKeeper, in seconds."""
WITHOUT_BROKER_S = 30.0
"""How long the listener waits for its broker before it counts as ready without it, in seconds."""


class Claimants:
    """Reads the claims of partitions, for all clients together. Use only on the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads: dict[int, tuple[float, asyncio.Task[int | None]]] = {}
        """The last read of each partition, and when it began."""

    async def last(self, partition: int) -> int | None:
        """Returns the broker id of the instance that claimed the partition last, or ``None`` if nobody has, or if that
        cannot be found out soon. The answer is at most :data:`_FRESH_CLAIM_S` older than the call."""
        now = asyncio.get_running_loop().time()
        began, task = self._reads.get(partition, (now, None))
        if task is None or now - began > _FRESH_CLAIM_S:
            task = asyncio.create_task(self._read(partition))
            self._reads[partition] = now, task
        await asyncio.wait([task], timeout=CLAIMANT_WITHIN_S)
        return task.result() if task.done() and not task.cancelled() else None

    async def _read(self, partition: int) -> int | None:
        try:
            return await asyncio.to_thread(read_claimant, self._store, partition)
        except (StoreError, MalformedValue) as error:
            log.debug("cannot read who claimed a partition partition=%d: %s", partition, error)
            return None


def report_right(store: Store, broker_id: int, error: str, about: Mapping[str, str]) -> None:
    """Writes the broker's ``error`` to the instance's znode, or deletes the znode if there is none. ``about`` has the
    ``topics``, or a ``group``, that the instance may not describe; if it is empty, the error is about the groups log.
    The znode is ephemeral, so it does not outlive the instance. Safe to repeat. Raises :class:`StoreUnavailable`."""
    path = layout.missing_right(broker_id)
    if not error:
        with contextlib.suppress(NoNode):
            store.delete(path, -1)
        return
    store.ensure_path(layout.MISSING_RIGHTS)
    value = fields.dump({"version": fields.VERSION, "error": error, **about})
    try:
        store.create(path, value, ephemeral=True)
    except NodeExists:  # written for another right, or by this instance's former session
        with contextlib.suppress(NoNode):
            store.set(path, value)


class Readiness:
    """The listener is ready once it serves every partition of the groups log that its broker leads at that moment, even
    if that is none, or once its broker could not be reached for :data:`WITHOUT_BROKER_S` seconds. It then stays ready:
    a partition that moves here later is loaded while its clients wait, as in Kafka.

    ``clock`` returns seconds. May be read on any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._without_broker_since: float | None = clock()
        self._is_ready = False
        self.reason = "its broker, which has not answered yet"
        """What the listener waits for, or what was wrong when it became ready; empty if nothing was."""

    @property
    def is_ready(self) -> bool:
        since = self._without_broker_since
        if not self._is_ready and since is not None and self._clock() - since >= WITHOUT_BROKER_S:
            self._is_ready = True
        return self._is_ready

    def broker_failed(self, why: str) -> None:
        """Called when the broker could not be asked which partitions it leads."""
        if self._without_broker_since is None:
            self._without_broker_since = self._clock()
        self.reason = f"its broker, which cannot be reached: {why}"

    def loaded(self, served: Set[int], led: Set[int]) -> None:
        """Called when the broker has answered: it leads the partitions ``led``, and ``served`` are loaded."""
        self._without_broker_since = None
        self._is_ready = self._is_ready or led <= served
        missing = len(led - served)
        self.reason = f"{missing} of {len(led)} partitions of the groups log to be loaded" if missing else ""


class BrokerSettings:
    """Keeps ``limits`` up to date. ``own`` contains the limits that this instance has set itself, by field. Use only on
    the event loop."""

    def __init__(self, own: Mapping[str, float]) -> None:
        self.limits, self._own = GroupLimits(), own
        for name, value in own.items():
            setattr(self.limits, name, value)
        self.retention_ms: int | None = None
        """The broker's ``offsets.retention.minutes``, in ms. ``None`` if the broker does not tell it."""
        self.is_answered = self.is_complete = False
        """Whether the broker has ever answered, even with a refusal, and whether its last answer included the topic:
        it may not exist yet."""
        self._denied: dict[str, int] = {}

    async def ask(self, ask: Ask, broker_id: int) -> None:
        """Asks the broker. Raises :class:`BrokerError` if it does not answer."""
        form = message("DescribeConfigsRequest")
        resource = form.struct("DescribeConfigsResource")
        of_broker = resource(
            resource_type=_OF_BROKER, resource_name=str(broker_id), configuration_keys=(*_LIMITS, _RETENTION)
        )
        of_topic = resource(resource_type=_OF_TOPIC, resource_name=TOPIC, configuration_keys=(_LARGEST_BATCH,))
        answer = await ask("DescribeConfigs", _DESCRIBE_CONFIGS, form(resources=(of_broker, of_topic)))
        self.is_answered = True
        self.is_complete = all(result.error_code != _NO_TOPIC for result in answer.results)
        told: dict[str, int] = {}
        for result in answer.results:
            self._note(result)
            if result.error_code == 0:
                told |= numbers({one.name: one.value for one in result.configs})
        minutes = told.get(_RETENTION)
        self.retention_ms = None if minutes is None else minutes * 60_000
        for name, value in limits_of(told).items():
            if name not in self._own and getattr(self.limits, name) != value:
                log.info("applying the broker's setting limit=%s value=%s", name, value)
                setattr(self.limits, name, value)

    def _note(self, result: Any) -> None:
        """Reports once that the broker does not tell its own or the topic's settings."""
        what = f"topic {TOPIC}" if result.resource_type == _OF_TOPIC else "the cluster"
        if result.error_code == _NO_TOPIC:
            return
        if result.error_code and self._denied.get(what) != result.error_code:
            log.warning(
                "the broker does not tell its settings: %s; Kafka's defaults apply; give the instance's user"
                " DESCRIBE_CONFIGS on %s",
                *(named(result.error_code), what),
                extra={"event": "settings_unknown"},
            )
        self._denied[what] = result.error_code


def numbers(settings: Mapping[str, str | None]) -> dict[str, int]:
    """Returns the settings that are numbers from 0 on."""
    most = (1 << 63) - 1
    read = {name: fields.decimal(value, most) for name, value in settings.items() if value is not None}
    return {name: value for name, value in read.items() if value is not None}


def limits_of(told: Mapping[str, int]) -> dict[str, float]:
    """Returns the limits that follow from a broker's settings, by the name of the field in :class:`GroupLimits`."""
    limits: dict[str, float] = {}
    for name, (limit, divisor) in _LIMITS.items():
        if name in told:
            limits[limit] = told[name] if divisor == 1 else told[name] / divisor
    if _LARGEST_BATCH in told:
        limits["append_bytes"] = max(1, told[_LARGEST_BATCH] - BATCH_OVERHEAD_BYTES)
    return limits
