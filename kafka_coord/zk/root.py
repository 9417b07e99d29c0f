"""Reads ``/consumers/cluster``, the record of the whole coordination tree: which tree it is (ADR 57), and where Kafka's
brokers and topics are read, in Kafka's own znodes or in the mirror that the elected coordinator keeps (ADR 56).

This is the only reader of that znode. Every store has a :class:`RootFollower` and asks it for the place of each znode
that it reads, so all other code names ``/brokers/...`` and is moved together with its watches. Each instance has an
:class:`OwnTree`, which makes the tree where it may be made, and finds out that it is no longer the one to serve.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import ClassVar

from msgspec import structs

from kafka_coord.errors import (
    BadVersion,
    MalformedValue,
    NodeExists,
    NoNode,
    RequestRefused,
    StoreError,
    StoreUnavailable,
    TreeRefused,
    TreeUnfinished,
    UnknownVersion,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import JsonObject, Number, Positive
from kafka_coord.zk import layout
from kafka_coord.zk.layout import Root
from kafka_coord.zk.store import GetData, Node, Read, SetData, Store, Watcher, WatchEvent, WatchType


class Source(StrEnum):
    ZOOKEEPER = "zookeeper"
    BROKERS = "brokers"


class ClusterRecord(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """The value of ``/consumers/cluster``. Its version is the format of the whole tree.

    ``tree`` is the tree's random id, and ``generation`` counts the trees that one Kafka cluster (``kafka`` is its id,
    ``None`` if it is unknown) has had: the highest may serve. ``by`` is what led to the source: a sign of a migration,
    a setting or an operator; "" if nothing has changed it. ``making`` names the command that is still making the tree,
    which nobody serves until then. ``superseded_by`` names a newer tree, once an instance has found it in the groups
    log."""

    tree: str
    generation: Positive
    source: Source
    since_ms: Number
    by: str = ""
    kafka: str | None = None
    making: str = ""
    superseded_by: str = ""

    @classmethod
    def new(cls, store: Store, generation: int, *, kafka: str | None = None, making: str = "") -> ClusterRecord:
        """Returns the record of a new tree. ``kafka`` is the id that the brokers tell, if they were asked; otherwise it
        is read from Kafka's own znode. Raises :class:`StoreError`."""
        now_ms = round(store.clock.time() * 1000)
        kafka = kafka or read_kafka_id(store)
        return cls(secrets.token_hex(8), generation, Source.ZOOKEEPER, now_ms, kafka=kafka, making=making)

    @property
    def root(self) -> Root:
        return Root.MIRROR if self.source is Source.BROKERS else Root.KAFKA

    @property
    def name(self) -> str:
        """The tree as an operator is told of it."""
        return f"tree {self.tree}, generation {self.generation}"

    @classmethod
    def from_znode(cls, data: bytes) -> ClusterRecord:
        """Raises :class:`MalformedValue`; :class:`UnknownVersion` if the tree has another format."""
        try:
            return cls.from_bytes(data, layout.CLUSTER)
        except UnknownVersion as error:
            reason = f"the tree has another format ({error.reason}), so nothing was done; use the release that made it"
            raise UnknownVersion(layout.CLUSTER, reason) from None


class MirrorTrouble(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """What the elected coordinator says is wrong with the mirror. ``since_ms`` is when the mirror was last complete.
    ``held`` are the topics that seem to be gone and stay, until an operator lets them go; ``zxid`` is when this was
    written."""

    reason: str
    since_ms: Number
    held: tuple[str, ...] = ()
    zxid: Number = 0
    of_znode: ClassVar[tuple[str, ...]] = ("zxid",)


def read_cluster_record(store: Store) -> ClusterRecord | None:
    """Returns the record, or ``None`` if there is none. Raises :class:`StoreError` and :class:`MalformedValue`."""
    (node,) = store.read_many([GetData(layout.CLUSTER)])
    return ClusterRecord.from_znode(node.data) if isinstance(node, Node) else None


def reads_mirror(store: Store) -> bool:
    """Returns whether brokers and topics are read in the mirror, which has what is new a little later than the brokers
    themselves. Raises :class:`StoreError`, and :class:`MalformedValue`."""
    record = read_cluster_record(store)
    return record is not None and record.root is Root.MIRROR


def check_format(record: Node) -> None:
    """Raises :class:`UnknownVersion` if the tree has another format. Ignores a record that cannot be read at all."""
    try:
        ClusterRecord.from_znode(record.data)
    except UnknownVersion:
        raise
    except MalformedValue:
        return


def read_kafka_id(store: Store) -> str | None:
    """Returns the id of Kafka's cluster in Kafka's own znode, or ``None`` if there is none. Raises
    :class:`StoreError`."""
    (node,) = store.read_many([GetData(layout.KAFKA_ID)])
    with suppress(MalformedValue):
        if isinstance(node, Node):
            return fields.text(fields.load_object(node.data, layout.KAFKA_ID), "id", layout.KAFKA_ID)
    return None


def make_tree(store: Store, record: ClusterRecord) -> None:
    """Begins a tree. Raises :class:`RequestRefused` if there is one, and :class:`StoreError`."""
    store.ensure_path(layout.CONSUMERS)
    try:
        store.create(layout.CLUSTER, record.to_bytes())
    except NodeExists:
        found = read_cluster_record(store)
        raise RequestRefused(f"there is a tree already: {found.name if found is not None else 'look again'}") from None


def change_op(store: Store, change: Callable[[ClusterRecord], ClusterRecord]) -> SetData:
    """Returns the write that changes the tree's record as it is now. Raises :class:`StoreError`, :class:`NoNode` if
    there is none, and :class:`MalformedValue`."""
    node = store.get(layout.CLUSTER)
    return SetData(layout.CLUSTER, change(ClusterRecord.from_znode(node.data)).to_bytes(), node.stat.version)


def change_record(store: Store, change: Callable[[ClusterRecord], ClusterRecord]) -> None:
    """Changes the tree's record. Raises the same errors as :func:`change_op`."""
    while True:
        op = change_op(store, change)
        with suppress(BadVersion):
            store.set(op.path, op.data, op.version)
            return


def finish_tree(store: Store, record: ClusterRecord) -> None:
    """Lets instances serve the tree that was begun with ``record``. Raises :class:`StoreError`, and
    :class:`RequestRefused` if there is another one now."""

    def finished(found: ClusterRecord) -> ClusterRecord:
        if found.tree != record.tree:
            raise RequestRefused(f"there is another tree now: {found.name}")
        return structs.replace(found, making="")

    change_record(store, finished)


class OwnTree:
    """The tree that this process serves: the same from :meth:`join` on. ``make`` returns the record of the tree that is
    made if there is none, or raises :class:`TreeRefused`. Thread-safe."""

    def __init__(
        self,
        store: Store,
        make: Callable[[Store], ClusterRecord] | None = None,
        record: ClusterRecord | None = None,
    ) -> None:
        self._store, self._make, self._own = store, make, record

    @property
    def record(self) -> ClusterRecord:
        """What was found when this process joined the tree. Only after :meth:`join`."""
        if self._own is None:
            raise TreeRefused("this process has not joined a tree yet")
        return self._own

    def join(self) -> None:
        """Reads the record, and makes the tree if there is none. Does nothing once that has succeeded. Raises
        :class:`TreeRefused`, :class:`TreeUnfinished` while a command still makes the tree, :class:`StoreError`, and
        :class:`MalformedValue`."""
        if self._own is not None:
            return
        found = read_cluster_record(self._store)
        if found is None:
            self._store.sync(layout.CLUSTER)  # this server may not have it yet
            found = read_cluster_record(self._store)
        if found is None:
            made = self._make(self._store) if self._make else ClusterRecord.new(self._store, 1)
            with suppress(RequestRefused):  # another instance was faster
                make_tree(self._store, made)
            found = read_cluster_record(self._store)
        if found is None:
            raise StoreUnavailable(f"{layout.CLUSTER} is not on this server yet; trying again", layout.CLUSTER)
        if found.making:
            raise TreeUnfinished(
                f"{found.name} is still being made; if kafka-coord {found.making} no longer runs, run it again"
            )
        self._judge(found, found)
        self._own = found

    def check(self, found: Node | None) -> None:
        """Finds out from the record, as it was just read, whether this process may still serve. Raises
        :class:`TreeRefused` if not (:class:`UnknownVersion` if the tree's format has changed), and :class:`StoreError`
        if the record cannot be read."""
        own = self.record
        if found is None:
            raise TreeRefused(
                f"{layout.CLUSTER} is gone, and with it {own.name}: stop all instances and run kafka-coord restore, or,"
                f" to begin anew without its groups, kafka-coord init --replace {own.tree}"
            )
        try:
            self._judge(own, ClusterRecord.from_znode(found.data))
        except UnknownVersion:
            raise
        except MalformedValue as error:
            raise StoreError(str(error), layout.CLUSTER) from error

    def read(self) -> int:
        """Reads the record, and checks it like :meth:`check`. Returns its version."""
        try:
            node = self._store.get(layout.CLUSTER)
        except NoNode:
            self.check(None)
            raise
        self.check(node)
        return node.stat.version

    @staticmethod
    def _judge(own: ClusterRecord, found: ClusterRecord) -> None:
        if (found.tree, found.generation) != (own.tree, own.generation):
            raise TreeRefused(f"this instance served {own.name}, but here is {found.name} now: start it again")
        if found.superseded_by:
            raise TreeRefused(
                f"{own.name}, is superseded by {found.superseded_by}: stop the instances of this one, and give them"
                " that one's --zookeeper"
            )

    def superseded(self, by: str) -> None:
        """Tells all instances of this tree that there is a newer one. Raises :class:`StoreError`."""
        own = self.record

        with suppress(NoNode):
            change_record(
                self._store,
                lambda found: structs.replace(found, superseded_by=by) if found.tree == own.tree else found,
            )


def read_mirror_trouble(store: Store) -> MirrorTrouble | None:
    """Raises :class:`StoreError`."""
    (node,) = store.read_many([GetData(layout.MIRROR_TROUBLE)])
    if not isinstance(node, Node):
        return None
    try:
        return MirrorTrouble.from_bytes(node.data, layout.MIRROR_TROUBLE, zxid=node.stat.mzxid)
    except MalformedValue as error:
        return MirrorTrouble(str(error), node.stat.mtime_ms)


def read_asked_listeners(store: Store) -> tuple[str, ...] | None:
    """Returns the names of the listeners on which the brokers answer the elected instance, or ``None`` if there is no
    mirror. Raises :class:`StoreError`."""
    (node,) = store.read_many([GetData(layout.MIRRORED_BROKERS)])
    if not isinstance(node, Node):
        return None
    try:
        found = fields.load_object(node.data, layout.MIRRORED_BROKERS).get("listeners")
    except MalformedValue:
        found = None
    return tuple(map(str, found)) if isinstance(found, list) else ()


def tell_changed(store: Store) -> None:
    """Makes the elected instance ask the brokers for their topics now. Does nothing if there is no mirror. Raises
    :class:`StoreError`."""
    with suppress(NoNode):
        store.set(layout.CHANGED, b"")


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
