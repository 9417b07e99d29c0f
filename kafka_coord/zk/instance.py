"""What instances tell each other in ZooKeeper: that they run (each, elected or not, has an ephemeral znode
``/consumers/coordinators/<brokerId>``), whom a resigning coordinator names as its successor
(``/consumers/successor``), and how long the offsets of unused groups are kept (``/consumers/retention``). And how the
tree was restored that they run on (``/consumers/restored``)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from kafka_coord.errors import BadVersion, MalformedValue, NodeExists, NoNode, SettingsError, StoreUnavailable
from kafka_coord.model.codec import JsonObject, Number
from kafka_coord.model.json_fields import dump, load
from kafka_coord.model.offsets import Retention
from kafka_coord.model.operations import CoordinatorInfo, Process, Restored
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, GetData, Node, Op, ReadResult, SessionState, SetData, Store, WatchEvent

log = logging.getLogger(__name__)

_TOLD = ("ready", "waiting_for", "endpoints")
"""The fields that :meth:`InstanceRegistration.tell` changes."""
_TIMEOUT_FIELD, _TIMESTAMP = "session_timeout_ms", "timestamp"
_GRACE_SHARE = 0.25
"""An allowance, as a share of the session timeout, because servers end a session up to a tick late and learn of
heartbeats up to half a tick late."""
_SAY_AGAIN_S = 5


class _Told(NamedTuple):
    """What an instance says about itself."""

    ready: bool = True
    waiting_for: str = ""
    withdrawn: frozenset[str] = frozenset()


class InstanceRegistration:
    """Registers one broker id, unless another live instance holds it. A znode from this instance's own earlier session
    does not count."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        endpoints: Mapping[str, str],
        wake: Callable[[], None],
        process: Process | None = None,
        metadata: str = "auto",
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._broker_id = broker_id
        self._endpoints = dict(endpoints)
        self._process = process
        self._wake = wake
        self._path = layout.instance(broker_id)
        self._registered_in = 0
        self._watched_in = 0
        self._namesake_since: float | None = None
        self._written = b""
        self._telling = self._said = _Told()
        """What was told last, and what the value in ``_written`` says of it."""

    def is_registered(self) -> bool:
        """Returns whether the znode is known to exist in the current session."""
        return self._registered_in != 0 and self._registered_in == self._store.session.session_id

    def register(self) -> None:
        """Creates the znode unless this session already owns it. Safe to repeat. Raises :class:`NodeExists` while an
        existing znode may belong to an earlier session of this instance; the caller must then retry. Once that is ruled
        out, another instance must have taken the broker id, so this raises :class:`SettingsError`. After a
        :class:`StoreUnavailable`, the next call determines the outcome."""
        session_id = self._store.session.session_id
        try:
            try:
                self._written = self._value()
                self._store.create(self._path, self._written, ephemeral=True)
            except NodeExists:
                self._look_at_holder(session_id)
        except StoreUnavailable:
            self._namesake_since = None
            raise
        self._registered_in = session_id
        self._namesake_since = None
        self._watch(session_id)

    def _watch(self, session_id: int) -> None:
        if self._watched_in != session_id:
            self._watched_in = session_id
            try:
                stat = self._store.exists(self._path, self._on_event)
            except StoreUnavailable:
                self._watched_in = 0
                raise
            if stat is None:
                self._registered_in = 0

    def _on_event(self, _event: WatchEvent) -> None:
        """Called on one of the store's threads after the znode was deleted or written, or the connection changed."""
        self._registered_in = self._watched_in = 0
        # a new leader of the ZooKeeper ensemble restarts the timeout of every session, even of a dead one
        self._namesake_since = None
        self._wake()

    def _look_at_holder(self, session_id: int) -> None:
        try:
            node = self._store.get(self._path, self._on_event)
        except NoNode:
            raise NodeExists(f"{self._path} has just vanished; registering again", self._path) from None
        if node.stat.ephemeral_owner == session_id:
            if not self._is_mine(node, _TIMESTAMP):
                if not self._is_mine(node, _TIMESTAMP, *_TOLD):
                    log.warning("rewrote this instance's znode, which someone had changed path=%s", self._path)
                self._store.set(self._path, self._written)
            return
        if node.stat.ephemeral_owner == 0:
            raise SettingsError(
                f"{self._path} is not ephemeral, so no running instance owns it; delete it, then start again"
            )
        now = self._store.clock.monotonic()
        since = self._namesake_since
        if since is None:
            since = self._namesake_since = now
        patience_s = self._timeout_s(node) * (1 + _GRACE_SHARE)
        left_s = since + patience_s - now
        taken = f"broker id {self._broker_id} is taken by {_described(node)}"
        if left_s <= 0:
            raise SettingsError(
                f"{taken}; it is still running after {patience_s:.0f} s. Stop it, or use another broker id here"
            )
        # rounded, so that the message changes only once every _SAY_AGAIN_S
        shown_s = min(math.ceil(left_s / _SAY_AGAIN_S) * _SAY_AGAIN_S, patience_s)
        raise NodeExists(f"{taken}; waiting up to {shown_s:.0f} s for its session to end", self._path)

    def _is_mine(self, node: Node, *ignored: str) -> bool:
        """Returns whether the znode holds this instance's own description, from this session or an earlier one, except
        for the ``ignored`` fields."""
        try:
            found, own = json.loads(node.data), json.loads(self._written)
            return bool(found | dict.fromkeys(ignored) == own | dict.fromkeys(ignored))
        except (ValueError, TypeError, RecursionError):
            return False

    def tell(self, *, ready: bool, waiting_for: str, withdrawn: Collection[str] = ()) -> None:
        """Publishes whether the instance is ready, what a rolling restart must wait for, and its endpoints without
        those that are ``withdrawn``, because nobody can connect to them for now. Before the registration, only
        remembers it. Call this often: another thread may be registering, with what was true before. Raises
        :class:`StoreUnavailable`."""
        self._telling = told = _Told(ready, waiting_for, frozenset(withdrawn))
        if told == self._said or not self.is_registered():
            return
        before = self._said
        try:
            node = self._store.get(self._path)
            if node.stat.ephemeral_owner == self._store.session.session_id:
                self._written = self._value()
                self._store.set(self._path, self._written, node.stat.version)
        except (NoNode, BadVersion):
            self._said = before
        except StoreUnavailable:
            self._said = before
            raise

    def unregister(self) -> None:
        """Deletes the znode if it belongs to this session."""
        self._registered_in = self._watched_in = 0
        try:
            node = self._store.get(self._path)
            if node.stat.ephemeral_owner == self._store.session.session_id:
                self._store.delete(self._path, node.stat.version)
        except (NoNode, BadVersion):
            return

    def _value(self) -> bytes:
        now_ms = str(int(self._store.clock.time() * 1000))
        self._said = said = self._telling
        endpoints = {name: address for name, address in self._endpoints.items() if name not in said.withdrawn}
        info = CoordinatorInfo(
            *(self._broker_id, 0, now_ms, endpoints, self._process, said.ready, said.waiting_for), self._metadata
        )
        value = info.to_json() | {_TIMEOUT_FIELD: self._store.session.timeout_ms}
        return dump(value)

    def _timeout_s(self, node: Node) -> float:
        """Returns the session timeout in the holder's znode, or else this instance's own timeout."""
        try:
            stored_ms = json.loads(node.data).get(_TIMEOUT_FIELD)
        except (ValueError, AttributeError, RecursionError):
            stored_ms = None
        usable = isinstance(stored_ms, int) and 0 < stored_ms <= 3_600_000
        return (stored_ms if usable else self._store.session.timeout_ms) / 1000


def _described(node: Node) -> str:
    since = datetime.fromtimestamp(node.stat.ctime_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    try:
        process = CoordinatorInfo.from_bytes(node.data, "").process
    except MalformedValue:
        process = None
    who = f"on host {process.host}, pid {process.pid}" if process else f"with session {node.stat.ephemeral_owner:#x}"
    return f"an instance {who}, since {since}"


HOLD_BACK_S = 3.0
"""How long all other instances wait for the named successor to be elected, in seconds on each instance's own clock. A
healthy successor is elected within milliseconds. Even if it fails, the delay is shorter than a failover after a crash,
which takes a session timeout."""


class Successor(JsonObject, frozen=True, tag_field="version", tag=1):
    """The named successor. ``broker_id`` is to succeed the coordinator of ``epoch``, and has no precedence after
    that."""

    broker_id: Number
    epoch: Number

    @classmethod
    def read(cls, found: ReadResult) -> Successor | None:
        """Returns the named successor, or ``None`` if no successor is named or the znode cannot be read; all instances
        then stand for election."""
        if not isinstance(found, Node):
            return None
        where = layout.SUCCESSOR
        try:
            return cls.from_bytes(found.data, where)
        except MalformedValue:
            return None


def name_op(store: Store, successor: Successor) -> Op:
    """Returns the write that names the successor. Only the elected coordinator writes it, under its fence."""
    data = successor.to_bytes()
    is_there = store.exists(layout.SUCCESSOR) is not None
    return SetData(layout.SUCCESSOR, data) if is_there else Create(layout.SUCCESSOR, data)


def read_successor(store: Store) -> Successor | None:
    """Returns the most recently named successor."""
    try:
        return Successor.read(store.get(layout.SUCCESSOR))
    except NoNode:
        return None


_ATTEMPTS = 5


def read_restored(store: Store) -> Restored | None:
    """Returns what is known of the restore that made this tree, or ``None``. Raises :class:`MalformedValue`."""
    (node,) = store.read_many([GetData(layout.RESTORED)])
    if not isinstance(node, Node):
        return None
    return Restored.from_json(load(node.data, layout.RESTORED), layout.RESTORED)


def read_retention(store: Store) -> Retention:
    """Returns the retention in force, which is Kafka's default until an instance has written another. Raises
    :class:`StoreError`, and :class:`MalformedValue` if the znode cannot be read."""
    with suppress(NoNode):
        return _read(store)[0]
    return Retention()


def share_retention(store: Store, broker_id: int, retention_ms: int | None, now_ms: int) -> Retention:
    """Tells the other instances the broker's retention, in ms (``None`` if the broker does not tell it). Returns the
    retention that is in force. Raises :class:`StoreError`, and :class:`MalformedValue` if the znode cannot be read."""
    if store.session.state is not SessionState.CONNECTED:
        raise StoreUnavailable("the session is not connected")  # do not wait until it is
    for _ in range(_ATTEMPTS):
        before, version = Retention(), -1
        with suppress(NoNode):
            before, version = _read(store)
        after = before.told(broker_id, retention_ms, now_ms)
        if after == before:
            return before
        value = after.to_bytes()
        try:
            if version < 0:
                store.create(layout.RETENTION, value)
            else:
                store.set(layout.RETENTION, value, version)
        except (BadVersion, NodeExists, NoNode):
            continue  # another instance was faster
        if (after.in_force_ms, after.since_ms) != (before.in_force_ms, before.since_ms):
            log.info(
                "offsets of unused groups are now kept for another time before_ms=%d retention_ms=%d",
                *(before.in_force_ms, after.in_force_ms),
                extra={"event": "retention_changed"},
            )
        return after
    raise BadVersion(f"{layout.RETENTION} changed on every attempt", layout.RETENTION)


def _read(store: Store) -> tuple[Retention, int]:
    node = store.get(layout.RETENTION)
    return decode_retention(layout.RETENTION, node), node.stat.version


def decode_retention(where: str, node: Node) -> Retention:
    """Raises :class:`MalformedValue`."""
    return Retention.from_bytes(node.data, where)
