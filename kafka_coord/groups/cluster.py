"""Reads the cluster's state from ZooKeeper: the coordinator, the instances, the brokers and the topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from kafka_coord.coordinator.tolerant_reads import Decoding, read_each
from kafka_coord.errors import MalformedValue, NoNode
from kafka_coord.groups.group import Document, PauseDocument, Time
from kafka_coord.model import CoordinatorInfo, Pause, TopicInfo, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import ClusterHistory
from kafka_coord.model.sequences import grouped
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import decode_topic, numbers
from kafka_coord.zk.election import decode_epoch
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, ReadResult, Store


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The names of the groups, as of zxid ``pzxid``. ``unreadable`` lists the names that are not legal."""

    pzxid: int = 0
    legal: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A view of the cluster, with only the names of its groups.

    ``initialised`` says whether ``/consumers/groups`` exists. ``instances`` maps broker ids to running instances,
    elected or not. ``since_ms`` is the time when the coordinator was elected. ``undecided`` says why no instance makes
    decisions, even if one is elected; otherwise it is empty. ``topics_changed_ms`` maps each topic to the time of the
    last write to its znode.
    """

    initialised: bool
    coordinator: CoordinatorInfo | None
    undecided: str
    since_ms: int | None
    instances: Mapping[int, CoordinatorInfo]
    brokers: tuple[int, ...]
    topics: Mapping[str, TopicInfo]
    topics_changed_ms: Mapping[str, int]
    pause: Pause | None
    names: GroupNames
    unreadable: tuple[Unreadable, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        return self.names.legal

    def lacks(self, topic: str) -> bool:
        """Returns whether the topic certainly does not exist: one that cannot be read is not gone."""
        unread = {one.path for one in self.unreadable}
        return topic not in self.topics and unread.isdisjoint({layout.BROKER_TOPICS, layout.broker_topic(topic)})

    @property
    def deciding_since_ms(self) -> int | None:
        """The time when the coordinator was elected, or ``None`` if no instance makes decisions."""
        return None if self.undecided else self.since_ms


class InstanceDocument(Document, frozen=True):
    broker_id: int
    elected: bool
    broker_up: bool
    ready: bool | None
    waiting_for: str | None
    """What a rolling restart must wait for before it restarts the next instance."""
    host: str | None
    pid: int | None
    release: str | None
    started: Time | None
    endpoints: dict[str, str]
    """Maps ``channel``, ``kafka``, ``http`` and ``https`` to ``host:port``."""

    @classmethod
    def of(cls, cluster: Cluster, broker_id: int, info: CoordinatorInfo) -> Self:
        return cls(
            broker_id=broker_id,
            elected=cluster.coordinator is not None and cluster.coordinator.broker_id == broker_id,
            broker_up=broker_id in cluster.brokers,
            ready=info.ready,
            waiting_for=info.waiting_for or None,
            host=info.process.host if info.process else None,
            pid=info.process.pid if info.process else None,
            release=info.process.release if info.process else None,
            started=Time.of(info.process.started_ms) if info.process else None,
            endpoints=dict(info.endpoints),
        )


class ClusterDocument(Document, frozen=True):
    """``kafka-coord coordinator status -o json``"""

    coordinator: int | None
    """The broker id of the elected instance."""
    epoch: int | None
    since: Time | None
    """When it was elected."""
    endpoints: dict[str, str]
    instances: list[InstanceDocument]
    brokers: list[int]
    groups: int
    topics: int
    paused: PauseDocument | None
    """Set while all groups are paused."""
    undecided: str | None
    """Why no instance makes decisions."""

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        elected = cluster.coordinator
        return cls(
            coordinator=elected.broker_id if elected else None,
            epoch=elected.epoch if elected else None,
            since=Time.of(cluster.since_ms),
            endpoints=dict(elected.endpoints) if elected else {},
            instances=[InstanceDocument.of(cluster, *one) for one in cluster.instances.items()],
            brokers=list(cluster.brokers),
            groups=len(cluster.groups),
            topics=len(cluster.topics),
            paused=PauseDocument.of(cluster.pause) if cluster.pause else None,
            undecided=cluster.undecided or None,
        )


def read_cluster(store: Store, earlier: Cluster | None = None) -> Cluster:
    """Reads the cluster in two round trips, however many topics there are. Does not list the groups again if none has
    been created or deleted since ``earlier``."""
    reading = Reading(store)
    elected, epoch, paused, groups, instances, brokers, topics = reading.many(
        [
            GetData(layout.COORDINATOR),
            GetData(layout.COORDINATOR_EPOCH),
            GetData(layout.PAUSED),
            GetData(layout.GROUPS),
            GetChildren(layout.COORDINATORS),
            GetChildren(layout.BROKER_IDS),
            GetChildren(layout.BROKER_TOPICS),
        ]
    )
    # Read the zxid before the names. If the names are newer than the zxid, the next call reads them again, which is
    # harmless. If they were older, a change in between would never be noticed.
    pzxid = groups.stat.pzxid if isinstance(groups, Node) else 0
    names = earlier.names if earlier is not None and earlier.names.pzxid == pzxid else None
    listing = GetChildren(layout.GROUPS)
    instance_ids = numbers(instances)
    topic_names = topics if isinstance(topics, tuple) else ()
    found = reading.all(
        [
            *(GetData(layout.instance(number)) for number in instance_ids),
            *(GetData(layout.broker_topic(name)) for name in topic_names),
            *([listing] if pzxid and names is None else ()),
        ]
    )
    topic_nodes = {
        name: node for name in topic_names if isinstance(node := found[GetData(layout.broker_topic(name))], Node)
    }
    if names is None:
        of_names = Reading(store)
        legal = of_names.names(layout.GROUPS, found.get(listing))
        names = GroupNames(pzxid, legal, tuple(of_names.unreadable))
    coordinator = reading.decode(layout.COORDINATOR, elected, plainly(CoordinatorInfo.from_json))
    return Cluster(
        initialised=isinstance(groups, Node),
        coordinator=coordinator,
        undecided=_undecided(coordinator, elected, epoch),
        since_ms=elected.stat.ctime_ms if isinstance(elected, Node) else None,
        instances=decode_instances(reading, instance_ids, found),
        brokers=numbers(brokers),
        topics=_topics(reading, topic_nodes),
        topics_changed_ms={name: node.stat.mtime_ms for name, node in topic_nodes.items()},
        pause=reading.decode(layout.PAUSED, paused, plainly(Pause.from_json), Pause()),
        names=names,
        unreadable=(*names.unreadable, *reading.unreadable),
    )


def read_coordinator(store: Store) -> CoordinatorInfo | None:
    """Returns the coordinator, or ``None`` if none is elected or its znode cannot be read."""
    reading = Reading(store)
    (elected,) = reading.many([GetData(layout.COORDINATOR)])
    return reading.decode(layout.COORDINATOR, elected, plainly(CoordinatorInfo.from_json))


def _undecided(coordinator: CoordinatorInfo | None, elected: ReadResult, epoch: ReadResult) -> str:
    where = layout.COORDINATOR_EPOCH
    stored = decode_epoch(epoch.data) if isinstance(epoch, Node) else None
    if isinstance(epoch, Node) and stored is None:
        held = epoch.data[:20].decode("utf-8", "replace")
        return f"{where} holds {held!r}, which is not an epoch, so no instance can be elected or write anything"
    if isinstance(elected, Node) and not elected.stat.ephemeral_owner:
        return f"{layout.COORDINATOR} is not ephemeral, so it never disappears, and no instance can be elected"
    if coordinator is None:
        return "" if isinstance(elected, Node) else "no coordinator is elected"
    if stored != coordinator.epoch:
        held = "does not exist" if stored is None else f"says {stored}"
        return f"{where} {held}, but broker {coordinator.broker_id} was elected with epoch {coordinator.epoch}"
    return ""


def decode_instances(
    reading: Reading, ids: Iterable[int], found: Mapping[Read, ReadResult]
) -> dict[int, CoordinatorInfo]:
    """Decodes the znodes of the running instances."""
    decoded = {
        number: reading.decode(path, found[GetData(path)], plainly(CoordinatorInfo.from_json))
        for number in ids
        for path in [layout.instance(number)]
    }
    return {number: info for number, info in decoded.items() if info is not None}


def _topics(reading: Reading, nodes: Mapping[str, Node]) -> dict[str, TopicInfo]:
    topics = {}
    for name, node in nodes.items():
        try:
            topics[name] = decode_topic(name, node, {})
        except MalformedValue as error:
            reading.refuse(error.where, error.reason)
    return topics


def read_cluster_history(store: Store) -> ClusterHistory:
    """Returns the history of the cluster, which is empty until a coordinator writes it. Raises
    :class:`MalformedValue`."""
    try:
        node = store.get(layout.HISTORY)
    except NoNode:
        return ClusterHistory()
    return ClusterHistory.from_bytes(node.data, layout.HISTORY)


T = TypeVar("T")

Decoder = Callable[[str, Node], T]
"""Decodes a (path, znode) into a value. Raises :class:`MalformedValue`."""


def plainly(from_json: Callable[[fields.Json, str], T]) -> Decoder[T]:
    """Returns a decoder that ignores the znode's stat."""
    return lambda where, node: from_json(fields.load(node.data, where), where)


class Reading(Decoding):
    """Reads many znodes per round trip and decodes them. ``unreadable`` collects the unreadable ones, with reasons."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def many(self, reads: Iterable[Read]) -> tuple[ReadResult, ...]:
        """Sends all reads at once and returns their results in order. If the ACL forbids a read, its result is
        ``None``, and the znode is noted as unreadable."""
        results: list[ReadResult] = []
        for result in read_each(self.store, tuple(reads)):
            if isinstance(result, Unreadable):
                self.unreadable.append(result)
            results.append(None if isinstance(result, Unreadable) else result)
        return tuple(results)

    def all(self, reads: Iterable[Read]) -> Mapping[Read, ReadResult]:
        """Sends all reads like :meth:`many` and maps each read to its result."""
        wanted = tuple(reads)
        return dict(zip(wanted, self.many(wanted), strict=True))

    def refuse(self, path: str, reason: str) -> None:
        self.unreadable.append(Unreadable(path, reason))

    def by_group(self) -> dict[str, list[Unreadable]]:
        """Returns the unreadable znodes by group."""
        return grouped(self.unreadable, lambda one: group_of(one.path))


def group_of(path: str) -> str:
    """Returns the group that a path below :data:`layout.GROUPS` belongs to."""
    return path.removeprefix(f"{layout.GROUPS}/").partition("/")[0]
