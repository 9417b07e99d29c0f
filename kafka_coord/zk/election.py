"""Elects one of the running instances as coordinator.

An instance first watches ``/consumers/coordinator`` and then tries to create it (docs/design.md, section 5). It wins
with one multi, which creates that ephemeral znode and increments ``/consumers/coordinator_epoch`` by compare-and-set.
The resulting version of the epoch's znode fences every write by the winner. A loser reads which instance leads. After a
lost response, an instance never retries blindly: the next attempt reads first, and finds the znode if this session
created it. Epochs must never decrease, so an instance that cannot read the stored epoch does not stand for election.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kafka_coord.errors import BadVersion, MalformedValue, MultiFailed, NoAuth, NodeExists, NoNode, StoreUnavailable
from kafka_coord.model.json_fields import decimal, dump, load, number
from kafka_coord.model.operations import CoordinatorInfo
from kafka_coord.zk import layout
from kafka_coord.zk.instance import HOLD_BACK_S, Successor
from kafka_coord.zk.store import (
    Check,
    Create,
    Delete,
    GetData,
    Node,
    Op,
    SessionState,
    SetData,
    Stat,
    Store,
    WatchEvent,
)

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
"""How often, in seconds, the leader is read again without an event, in case a watch was lost."""
MAX_EPOCH = (1 << 31) - 1
COMPLAIN_AGAIN_S = 60.0
"""How often, in seconds, a lasting obstacle to elections is logged."""
_HINDERS_NO_ELECTION = frozenset({"leader", "successor"})


@dataclass(frozen=True, slots=True)
class Leadership:
    """A won election. ``fence`` begins every multi of this leader, and fails as soon as another instance is elected."""

    epoch: int
    fence: Check
    session_id: int


@dataclass(frozen=True, slots=True)
class _Complaint:
    """A logged problem. ``value`` is the faulty value. ``logged_at`` is in monotonic seconds."""

    text: str
    value: str
    logged_at: float


class ZkElection:
    """One instance's part in the election. It has no thread of its own: when there is work, it calls ``wake`` on one
    of the store's threads, and the owner then calls :meth:`step` and, if it wants to lead, :meth:`elect`. Methods that
    are not marked as safe to call from any thread belong to the owner's thread."""

    def __init__(self, store: Store, broker_id: int, endpoints: Mapping[str, str], wake: Callable[[], None]) -> None:
        self._store = store
        self._broker_id = broker_id
        self._endpoints = dict(endpoints)
        self._wake = wake
        self._leadership: Leadership | None = None
        self._lost = ""
        self._fired = True
        self._looked_at = 0.0
        self._seen: Node | None = None
        self._epoch_seen: Node | None = None
        """The stored epoch, as last read."""
        self.tree_seen: Node | None = None
        """The tree's record, as last read."""
        self._named: Successor | None = None
        """The named successor, as last read."""
        self._vacant_since: float | None = None
        self._epoch_is_new = False
        """Whether the last read found no leader, and this instance has not yet tried to be elected with the epoch that
        was read."""
        self._unresolved = False
        self._highest_epoch_seen = 0
        self._complaints: dict[str, _Complaint] = {}

    # --- watching ----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """If anything may have changed, watches ``/consumers/coordinator`` and reads the leader."""
        now = self._store.clock.monotonic()
        if not self._fired and now < self._looked_at + LOOK_AGAIN_S:
            return
        self._fired = False  # cleared before the read, so any later event causes another read
        try:
            self._seen = self._read_and_watch()
        except BaseException:
            self._fired = True
            raise
        self._looked_at = now
        if self._seen is not None:
            self._vacant_since = None
        elif self._vacant_since is None:
            self._vacant_since = now

    def _read_and_watch(self) -> Node | None:
        """Reads and watches in one request, to avoid a round trip that would delay the election. If something changes
        between the read and the watch, the watch fires immediately."""
        paths = [layout.COORDINATOR, layout.COORDINATOR_EPOCH]
        reads = [GetData(path) for path in (*paths, layout.CLUSTER, layout.SUCCESSOR)]
        try:
            coordinator, epoch, tree, named = self._store.arm((), paths, self._on_event, reads).answers
        except NoAuth as error:
            if error.path != layout.SUCCESSOR:
                raise
            self._complain("successor", f"cannot name a successor: {error}; see kafka-coord acl check")
            coordinator, epoch, tree = self._store.arm((), paths, self._on_event, reads[:-1]).answers
            named = None
        self.tree_seen = tree if isinstance(tree, Node) else None
        self._named = Successor.read(named)
        self._epoch_seen = epoch if isinstance(epoch, Node) else None
        self._epoch_is_new = coordinator is None
        return coordinator if isinstance(coordinator, Node) else None

    def _on_event(self, _event: WatchEvent) -> None:
        """Called on one of the store's threads."""
        self._fired = True
        self._wake()

    def leader(self) -> CoordinatorInfo | None:
        """Returns the coordinator as last read, or ``None`` if there is none. If its znode is unreadable, logs the
        reason and returns ``None``."""
        self.watch()
        if self._seen is None:
            return None
        if self._epoch_seen is not None:
            self._epoch_in(self._epoch_seen)
        try:
            leader = _decoded(self._seen)
        except MalformedValue as error:
            self._complain("leader", f"cannot tell which instance is the coordinator: {error}")
            return None
        self._highest_epoch_seen = max(self._highest_epoch_seen, leader.epoch)
        return leader

    def successor(self) -> int | None:
        """Returns the named successor as long as there is no coordinator and the successor still has time to be
        elected. Otherwise, returns ``None``."""
        named, epoch = self._named, self._epoch_seen
        if named is None or epoch is None or self._vacant_since is None or decode_epoch(epoch.data) != named.epoch:
            return None
        has_time = self._store.clock.monotonic() < self._vacant_since + HOLD_BACK_S
        return named.broker_id if has_time else None

    def step(self) -> None:
        """Checks whether this instance has lost its leadership. If this raises :class:`StoreUnavailable`, call it
        again."""
        self.watch()
        leadership = self._leadership
        if leadership is None:
            return
        lost = leadership.session_id != self._store.session.session_id or (
            self._seen is None
            or self._seen.stat.ephemeral_owner != leadership.session_id
            or self._epoch_seen is None
            or self._epoch_seen.stat.version != leadership.fence.version
        )
        if lost:
            self._lost = self._why_lost(leadership)
            log.warning(
                "lost leadership epoch=%d reason='%s'", leadership.epoch, self._lost, extra={"event": "leadership_lost"}
            )
            self._leadership = None

    def why_lost(self) -> str:
        """Returns why the last election that this instance won is no longer valid."""
        return self._why_lost(self._leadership) if self._leadership is not None else self._lost

    def _why_lost(self, leadership: Leadership) -> str:
        if leadership.session_id != self._store.session.session_id:
            return "its ZooKeeper session ended"
        if self._seen is None:
            return "someone deleted its znode"
        if self._seen.stat.ephemeral_owner != leadership.session_id:
            return "another instance is the coordinator"
        return f"someone wrote to or deleted {layout.COORDINATOR_EPOCH}, so this instance can no longer write"

    @property
    def leadership(self) -> Leadership | None:
        """This instance's leadership, as last observed. Safe to read from any thread."""
        return self._leadership

    def still_leads(self) -> bool:
        """Returns whether this instance may decide now. It must be elected and connected, in the session that won the
        election, and within that session's lease. Sends no request. Safe to call from any thread."""
        leadership, session = self._leadership, self._store.session
        return (
            leadership is not None
            and session.state is SessionState.CONNECTED
            and session.session_id == leadership.session_id
            and self._store.clock.monotonic() < session.lease_deadline()
        )

    def is_mine(self) -> bool:
        """Returns whether the election that this instance won is still valid, even if the instance cannot act right
        now."""
        leadership = self._leadership
        if leadership is None or leadership.session_id != self._store.session.session_id:
            return False
        self.watch()
        return self._seen is not None and self._seen.stat.ephemeral_owner == leadership.session_id

    # --- electing ----------------------------------------------------------------------------------------------------

    def elect(self) -> Leadership | None:
        """Watches, then tries to become the coordinator. Returns ``None`` if another instance leads or is the named
        successor, or if no one can be elected (the log says why). Raises :class:`StoreUnavailable` if the outcome is
        unknown; the next call resolves it. If this session has already won an election, returns the same leadership
        again."""
        if self._unresolved:
            self._store.sync(layout.COORDINATOR)  # another server might not have this instance's own write yet
            self._fired = True
            self._unresolved = False
        self.watch()
        session_id = self._store.session.session_id
        if self._seen is not None:
            owner = self._seen.stat.ephemeral_owner
            if owner:
                self._complaints.pop("znode", None)
            else:
                self._complain(
                    "znode",
                    f"cannot elect anyone: {layout.COORDINATOR} is not ephemeral, so it never disappears; delete it",
                )
                return None
            self._complaints.pop("znode", None)
            return self._own_election(self._seen, session_id) if owner == session_id else None
        if self.successor() not in {None, self._broker_id}:
            return None
        try:
            stored = self._stored_epoch()
            return self._try(*stored, session_id) if stored is not None else None
        except StoreUnavailable:
            self._unresolved = True
            raise

    def _try(self, epoch: int, version: int, session_id: int) -> Leadership | None:
        if epoch < self._highest_epoch_seen:
            log.warning(
                "continuing above the highest epoch seen=%d, because someone set %s back to %d",
                self._highest_epoch_seen,
                layout.COORDINATOR_EPOCH,
                epoch,
            )
            epoch = self._highest_epoch_seen
        info = CoordinatorInfo(self._broker_id, epoch + 1, str(int(self._store.clock.time() * 1000)), self._endpoints)
        self._fired = True
        try:
            _, stat = self._store.multi(
                [
                    Create(layout.COORDINATOR, dump(info.to_json()), ephemeral=True),
                    SetData(layout.COORDINATOR_EPOCH, str(epoch + 1).encode(), version),
                ]
            )
        except MultiFailed as error:
            if not isinstance(error.cause, NodeExists | BadVersion | NoNode):
                raise
            log.debug("lost the election epoch=%d reason=%s", epoch + 1, error.cause)
            self.watch()
            return None
        if not isinstance(stat, Stat):
            raise StoreUnavailable(
                "the response to the election's multi lacks a stat; reading the znode again", layout.COORDINATOR
            )
        return self._won(epoch + 1, stat.version, session_id)

    def _own_election(self, node: Node, session_id: int) -> Leadership | None:
        """Returns the leadership for ``node``, a ``/consumers/coordinator`` that this session created, perhaps without
        knowing it because the response was lost. If the epoch no longer matches, resigns and returns ``None``."""
        if self._leadership is not None and self._leadership.session_id == session_id:
            return self._leadership
        stored = self._stored_epoch()
        if stored is None:
            return None
        epoch, version = stored
        try:
            mine = _decoded(node)
        except MalformedValue:
            mine = None
        if mine is not None and mine.broker_id == self._broker_id and mine.epoch == epoch:
            return self._won(epoch, version, session_id)
        log.warning(
            "resigned, because someone has changed the epoch since this session won the election epoch=%d", epoch
        )
        self._delete_if_own()  # by now, the znode may belong to a successor
        return None

    def _won(self, epoch: int, version: int, session_id: int) -> Leadership:
        self._highest_epoch_seen = max(self._highest_epoch_seen, epoch)
        self._leadership = Leadership(epoch, Check(layout.COORDINATOR_EPOCH, version), session_id)
        self._complaints.clear()
        return self._leadership

    def _stored_epoch(self) -> tuple[int, int] | None:
        """Returns (epoch, znode version), or ``None`` if the znode does not hold an epoch. Creates the znode if it is
        missing."""
        read, self._epoch_is_new = self._epoch_seen if self._epoch_is_new else None, False
        try:
            node = read or self._store.get(layout.COORDINATOR_EPOCH)
        except NoNode:
            first = self._highest_epoch_written()
            self._store.ensure_path(layout.CONSUMERS)
            with suppress(NodeExists):
                self._store.create(layout.COORDINATOR_EPOCH, str(first).encode())
            node = self._store.get(layout.COORDINATOR_EPOCH)
        epoch = self._epoch_in(node)
        if epoch is None:
            return None
        self._highest_epoch_seen = max(self._highest_epoch_seen, epoch)
        return epoch, node.stat.version

    def _epoch_in(self, node: Node) -> int | None:
        """Returns the epoch in the znode. If there is none, logs the problem and returns ``None``: without an epoch, no
        instance can be elected or write."""
        epoch = decode_epoch(node.data)
        if epoch is not None:
            self._complaints.pop("epoch", None)
            return epoch
        written = node.data.decode("ascii", "replace").strip()
        if self._is_due("epoch", written):
            text = (
                f"cannot elect anyone: {layout.COORDINATOR_EPOCH} holds {written[:40]!r}, which is not a decimal epoch"
                f" below {MAX_EPOCH}. Repair it by setting it to the highest epoch ever used (the assignments written"
                f" so far name {self._highest_epoch_written()}), never to a lower one"
            )
            self._complain("epoch", text, written)
        return None

    def _highest_epoch_written(self) -> int:
        """Returns the epoch to continue from if the stored one was lost. Includes the highest epoch that this instance
        has seen, because an epoch in which nothing was decided is not written anywhere else."""
        return max(self._highest_epoch_seen, highest_epoch_written(self._store))

    def obstacle(self) -> str:
        """Returns why no instance can be elected, and the remedy, or an empty string. Safe to call from any thread."""
        return next(
            (found.text for about, found in list(self._complaints.items()) if about not in _HINDERS_NO_ELECTION), ""
        )

    def _complain(self, about: str, text: str, value: str = "") -> None:
        """Logs a problem as soon as it appears, and again every :data:`COMPLAIN_AGAIN_S` while it lasts. ``value`` is
        the faulty value."""
        if self._is_due(about, value or text):
            self._complaints[about] = _Complaint(text, value or text, self._store.clock.monotonic())
            log.error("%s", text, extra={"event": "election_obstructed"})

    def _is_due(self, about: str, value: str) -> bool:
        logged = self._complaints.get(about)
        if logged is None or logged.value != value:
            return True
        return self._store.clock.monotonic() >= logged.logged_at + COMPLAIN_AGAIN_S

    # --- stepping down -----------------------------------------------------------------------------------------------

    def resign(self, leadership: Leadership | None = None) -> None:
        """Deletes this session's ``/consumers/coordinator``, so that the next election begins immediately.
        Passing the current ``leadership`` saves a read that would delay the next election. Raises
        :class:`StoreUnavailable` if the outcome is unknown; even then, the znode disappears when the session ends."""
        self._leadership = None
        self._fired = True
        try:
            if leadership is None or not self._deleted_at_once(leadership):
                self._delete_if_own()
        except StoreUnavailable:
            # the request or its response was lost; deleting the instance's own znode again does no harm
            self._store.sync(layout.COORDINATOR)
            self._delete_if_own()

    def _deleted_at_once(self, leadership: Leadership) -> bool:
        """Deletes the znode without reading it, since the fence proves that it is still this instance's own. Returns
        whether it was deleted."""
        if leadership.session_id != self._store.session.session_id:
            return False
        try:
            self._store.multi([leadership.fence, Delete(layout.COORDINATOR)])
        except MultiFailed:
            return False
        return True

    def _delete_if_own(self) -> None:
        epoch, node = self._store.read_many([GetData(layout.COORDINATOR_EPOCH), GetData(layout.COORDINATOR)])
        session_id = self._store.session.session_id
        if isinstance(node, Node) and node.stat.ephemeral_owner == session_id and session_id:
            self._delete_own(node, epoch.stat.version if isinstance(epoch, Node) else None)

    def _delete_own(self, node: Node, epoch_version: int | None) -> None:
        """Deletes this instance's own znode. Checks the epoch as well, because if another instance has been elected
        since, its znode has the same version."""
        self._fired = True
        ops: list[Op] = [Delete(layout.COORDINATOR, node.stat.version)]
        if epoch_version is not None:
            ops.insert(0, Check(layout.COORDINATOR_EPOCH, epoch_version))
        try:
            self._store.multi(ops)
        except MultiFailed as error:
            if not isinstance(error.cause, NoNode | BadVersion):
                raise

    def forget(self) -> None:
        """Stops leading in this process only. Does not change anything in ZooKeeper."""
        self._leadership = None
        self._fired = True

    def close(self) -> None:
        """Stops leading, and never calls ``wake`` again."""
        self._leadership = None
        self._wake = _do_nothing


def _do_nothing() -> None:
    return


def decode_epoch(data: bytes) -> int | None:
    """Returns the epoch in ``/consumers/coordinator_epoch``, or ``None`` if the znode holds anything else."""
    return decimal(data.decode("ascii", "replace").strip(), MAX_EPOCH - 1)


def highest_epoch_written(store: Store) -> int:
    """Returns the highest epoch stored outside ``/consumers/coordinator_epoch``, that is, in the elected instance's
    znode and in each group's assignment, which names the epoch of the decision."""
    try:
        groups = store.children(layout.GROUPS)
    except NoNode:
        groups = ()
    paths = [layout.COORDINATOR, *(layout.assignment(group) for group in groups)]
    highest = 0
    for path, node in zip(paths, store.read_many([GetData(path) for path in paths]), strict=True):
        if isinstance(node, Node):
            with suppress(MalformedValue):
                highest = max(highest, number(load(node.data, path), "epoch", path, 0, at_least=0))
    return min(highest, MAX_EPOCH - 1)


def _decoded(node: Node) -> CoordinatorInfo:
    return CoordinatorInfo.from_bytes(node.data, layout.COORDINATOR)
