"""Keeps a row for each group up to date while reading only the groups that changed.

For a group at rest (ADR 12), reading a few stats and small values is enough. A group's history records every decision
and every operator action, so a watch on the history fires when the group changes. While a group is rebalancing or has
outstanding commands, it is read in full every two seconds.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kafka_coord.coordinator.idle import spread
from kafka_coord.coordinator.image import Rest, decode_settled, read_rests
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.coordinator.tolerant_reads import Answer
from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.groups.cluster import Cluster, Reading, group_of
from kafka_coord.groups.group import GroupRow
from kafka_coord.groups.managed import group_row
from kafka_coord.groups.state import read_groups
from kafka_coord.model import GroupKind
from kafka_coord.model.member import Zxids
from kafka_coord.model.operations import DEFAULT_ASSIGNOR
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Node, Store, WatchEvent, WatchType

AT_ONCE = 100
"""The number of groups read in one step."""
_AGAIN_S = 2.0
_WHOLE_S, _EACH_S = 600.0, 0.5
"""Every group is reread after about 600 s, even without a watch event. With more than 1,200 groups, the interval grows
to 0.5 s times their number, because a read takes more than 1 ms of CPU time."""
RECENT_MS = 3_600_000
"""The period over which rebalances are counted."""


MAX_DECISIONS = 20_000


class GroupRows:
    """The rows by group name. Only one thread may call :meth:`step`. Calls ``wake``, on ZooKeeper's thread, when a
    group changes."""

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self.rows: dict[str, GroupRow] = {}
        self.decided_ms: deque[int] = deque(maxlen=MAX_DECISIONS)
        """The times of the latest rebalances (ms since 1970), in the order in which they were read."""
        self._store = store
        self._wake = wake
        self._lock = threading.Lock()
        self.version = 0
        """A number that changes whenever the rows change."""
        self._names: Sequence[str] | None = None
        self._due: dict[str, float] = {}
        """Group → the time of its next read (monotonic seconds)."""
        self._soonest = 0.0
        """No group is due before this time (monotonic seconds)."""
        self._watched: set[str] = set()
        """The groups with a watch that has not fired."""
        self._as_of: dict[str, tuple[int, Zxids]] = {}
        """Group at rest → the zxids that its row reflects: those of its ``settled`` znode and of its other znodes."""
        self._known_decisions: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """Whether the existing groups are known and have all been read."""
        return self._names is not None and not self.left

    @property
    def left(self) -> int:
        """The number of groups that have not been read yet."""
        return max(0, len(self._due) - len(self.rows))

    def is_at_rest(self, group: str) -> bool:
        return group in self._as_of

    def known(self, groups: Sequence[str]) -> None:
        """Sets the names of the existing groups."""
        if groups is self._names:
            return
        names, now = set(groups), time.monotonic()
        with self._lock:
            for gone in self._due.keys() - names:
                del self._due[gone]
                self._as_of.pop(gone, None)
                self._watched.discard(gone)
                self._forget(gone)
            new = names - self._due.keys()
            self._due |= dict.fromkeys(new, now)
            self._soonest = now if new else self._soonest
        self._names = groups

    def step(self, cluster: Cluster) -> int:
        """Reads some of the due groups and returns how many it read."""
        now = time.monotonic()
        with self._lock:
            if now < self._soonest:
                return 0
            due = [name for name, at in self._due.items() if at <= now]
            names = due[:AT_ONCE]
            whole_s = max(_WHOLE_S, _EACH_S * len(self._due))
            self._due |= {name: now + whole_s * spread(name) for name in names}
            self._soonest = now if len(due) > len(names) else min(self._due.values(), default=math.inf)
        if not names:
            return 0
        try:
            self._read(names, cluster, now)
        except StoreError:
            self.look_again(names, now)
            raise
        return len(names)

    def look_again(self, names: Iterable[str], at: float = 0.0) -> None:
        """Makes the named groups due at ``at`` (monotonic seconds), unless they are already due earlier."""
        with self._lock:
            for name in names:
                if name in self._due:
                    self._due[name] = min(self._due[name], at)
                    self._soonest = min(self._soonest, at)

    def _read(self, names: Sequence[str], cluster: Cluster, now: float) -> None:
        self._count(self._watch(names))
        busy = []
        for name, (rest, record) in zip(names, read_rests(self._store, names), strict=True):
            row = self._resting(name, rest, record, cluster)
            if row is None:
                busy.append(name)
            else:
                self._keep(row)
        found = read_groups(self._store, busy, cluster) if busy else {}
        for name in busy:
            self._as_of.pop(name, None)
            if name not in found:
                self._forget(name)
                continue
            row = group_row(found[name], cluster)
            self._keep(row)
            if row.state is GroupState.REBALANCING or row.pending:
                self.look_again([name], now + _AGAIN_S)

    def _watch(self, names: Sequence[str]) -> list[str]:
        """Watches the history of each group that is not watched yet, and returns the ones whose history changed
        recently."""
        names = [name for name in names if name not in self._watched]
        self._watched |= set(names)  # first, because a watch may fire before the call returns
        try:
            stats = self._store.exists_many([layout.history(name) for name in names], self._changed)
        except StoreError:
            self._watched -= set(names)
            raise
        since_ms = self._store.clock.time() * 1000 - RECENT_MS
        found = zip(names, stats, strict=True)
        return [name for name, stat in found if stat is not None and stat.mtime_ms > since_ms]

    def _resting(self, name: str, rest: Rest, record: Answer, cluster: Cluster) -> GroupRow | None:
        """Returns the row of a group at rest, or ``None`` if the group is not at rest or is paused."""
        if not isinstance(record, Node) or rest.zxids is None or rest.paused is not None or cluster.pause:
            return None
        as_of = record.stat.mzxid, rest.zxids
        if self._as_of.get(name) == as_of:
            return self.rows.get(name)
        row = _row(name, rest, record, cluster)
        if row is not None:
            self._as_of[name] = as_of
        return row

    def _keep(self, row: GroupRow) -> None:
        if self.rows.get(row.group) != row:
            self.rows[row.group] = row
            self.version += 1

    def _forget(self, name: str) -> None:
        if self.rows.pop(name, None) is not None:
            self.version += 1

    def _changed(self, event: WatchEvent) -> None:
        group = group_of(event.path)
        self._watched.discard(group)
        # A lost connection ends the watch, so read the group again a little later, when the connection may be back.
        self.look_again([group], time.monotonic() + _AGAIN_S if event.type is WatchType.CONNECTION else 0.0)
        self._wake()

    def _count(self, names: Sequence[str]) -> None:
        """Records the new rebalances in the histories of the named groups."""
        latest_ms = self._store.clock.time() * 1000 + RECENT_MS  # a later one is no time, and would hide all others
        nodes = Reading(self._store).many(GetData(layout.history(name)) for name in names)
        for name, node in zip(names, nodes, strict=True):
            if not isinstance(node, Node):
                continue
            try:
                written = json.loads(node.data)["decisions"]
                decided = [one["decided_at_ms"] for one in written if _is_dated(one, latest_ms)]
            except (ValueError, LookupError, TypeError, RecursionError):
                continue  # the group's page shows that its history is unreadable
            known = self._known_decisions.get(name, 0)
            self.decided_ms.extend(at for at in decided if at > known)
            self._known_decisions[name] = max([known, *decided])


def _is_dated(decision: Any, latest_ms: float) -> bool:
    at = decision.get("decided_at_ms") if isinstance(decision, dict) else None
    return isinstance(at, int) and at <= latest_ms


def _row(name: str, rest: Rest, record: Node, cluster: Cluster) -> GroupRow | None:
    """Returns the row of the group, or ``None`` if its at-rest record is no longer valid."""
    settled = decode_settled(name, record)
    if settled is None or settled.zxids != rest.zxids:
        return None
    try:
        assignment, settings = rest.decode(name)
    except MalformedValue:
        return None
    return GroupRow(
        group=name,
        kind=GroupKind.MANAGED,
        state=GroupState.STABLE if settled.members else GroupState.EMPTY,
        generation=assignment.generation if assignment else None,
        members=settled.members,
        partitions=sum(map(len, assignment.members.values())) if assignment and settled.members else 0,
        assignor=settings.assignor or (assignment.assignor if assignment else None) or DEFAULT_ASSIGNOR,
        pending=0,
        unreadable=0,
        coordinator=cluster.coordinator.broker_id if cluster.coordinator else None,
    )
