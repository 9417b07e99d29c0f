"""Follows ``/consumers/cluster``, which says where Kafka's brokers and topics are read: in Kafka's own znodes, or in
the mirror that the elected coordinator keeps (ADR 56).

This is the only reader of that znode. Every store has a :class:`RootFollower` and asks it for the place of each znode
that it reads, so all other code names ``/brokers/...`` and is moved together with its watches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum

from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import JsonObject, Number
from kafka_coord.zk import layout
from kafka_coord.zk.layout import Root
from kafka_coord.zk.store import GetData, Node, Read, Store, Watcher, WatchEvent, WatchType


class Source(StrEnum):
    ZOOKEEPER = "zookeeper"
    BROKERS = "brokers"


class ClusterRecord(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """The value of ``/consumers/cluster``. Its version is the format of the whole tree. ``by`` is what led to the
    source: a sign of a migration, a setting or an operator. ``tree`` and ``kafka`` have room for the ids of this tree
    and of Kafka's cluster."""

    source: Source
    since_ms: Number
    by: str = ""
    tree: str | None = None
    kafka: str | None = None

    @property
    def root(self) -> Root:
        return Root.MIRROR if self.source is Source.BROKERS else Root.KAFKA

    @classmethod
    def from_znode(cls, data: bytes) -> ClusterRecord:
        """Raises :class:`MalformedValue`."""
        return cls.from_json(fields.load(data, layout.CLUSTER), layout.CLUSTER)

    def to_bytes(self) -> bytes:
        return fields.dump(self.to_json())


class MirrorTrouble(JsonObject, frozen=True, tag_field="version", tag=1):
    """What the elected coordinator says is wrong with the mirror. ``since_ms`` is when the mirror was last complete."""

    reason: str
    since_ms: Number

    def to_bytes(self) -> bytes:
        return fields.dump(self.to_json())


def read_cluster_record(store: Store) -> ClusterRecord | None:
    """Returns the record, or ``None`` if there is none. Raises :class:`StoreError` and :class:`MalformedValue`."""
    (node,) = store.read_many([GetData(layout.CLUSTER)])
    return ClusterRecord.from_znode(node.data) if isinstance(node, Node) else None


def read_mirror_trouble(store: Store) -> MirrorTrouble | None:
    """Raises :class:`StoreError`."""
    (node,) = store.read_many([GetData(layout.MIRROR_TROUBLE)])
    if not isinstance(node, Node):
        return None
    try:
        return MirrorTrouble.from_json(fields.load(node.data, layout.MIRROR_TROUBLE), layout.MIRROR_TROUBLE)
    except MalformedValue as error:
        return MirrorTrouble(str(error), node.stat.mtime_ms)


class RootFollower:
    """Knows the root for one store, which it asks with ``read``: that returns ``/consumers/cluster`` and leaves a
    watch. Thread-safe.

    When the root may have changed, each watcher of a znode that depends on it is told that its watch is gone, so its
    owner reads again, at the new place.
    """

    def __init__(self, read: Callable[[Watcher], Node | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._root: Root | None = None
        self._changes = 0
        self._watchers: dict[Watcher, None] = {}

    def at(self, path: str, watcher: Watcher | None = None) -> str:
        """Returns where the znode ``path`` is. A ``watcher`` that is about to be set there must be given. Raises
        :class:`StoreError`."""
        if not path.startswith((layout.KAFKAS_OWN, layout.BROKERS)):
            return path
        if path.startswith(layout.KAFKAS_OWN):
            return path.removeprefix(layout.KAFKAS_OWN)
        if watcher is not None:  # first, so that no change falls between the root and the watch
            with self._lock:
                self._watchers[watcher] = None
        return self.root().at(path)

    def reads_at(self, reads: Sequence[Read]) -> Sequence[Read]:
        """Like :meth:`at`, for many reads."""
        if not any(read.path.startswith((layout.KAFKAS_OWN, layout.BROKERS)) for read in reads):
            return reads
        return [type(read)(self.at(read.path)) for read in reads]

    def root(self) -> Root:
        """Raises :class:`StoreError`, also if the record has a format that this version does not know."""
        with self._lock:
            known, changes = self._root, self._changes
        if known is not None:
            return known
        node = self._read(self._changed)
        try:
            found = ClusterRecord.from_znode(node.data).root if node is not None else Root.KAFKA
        except MalformedValue as error:
            raise StoreError(str(error), layout.CLUSTER) from error
        with self._lock:
            if changes == self._changes:
                self._root = found
        return found

    def _changed(self, _event: WatchEvent) -> None:
        with self._lock:
            self._changes += 1
            self._root = None
            watchers, self._watchers = list(self._watchers), {}
        for watcher in watchers:
            watcher(WatchEvent(WatchType.CONNECTION, layout.CLUSTER))
