"""What ZooKeeper says about the partitions of the groups log: who claimed them, and which right an instance lacks. Also
decides when an instance has claimed enough of them to be ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Set
from contextlib import suppress

from kafka_coord.errors import Fenced, MalformedValue, NodeExists, NoNode, StoreError, StoreUnavailable
from kafka_coord.grouplog.manager import Claimed
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import multi_fenced
from kafka_coord.zk.store import Check, SessionState, Store

log = logging.getLogger(__name__)

_FRESH_FOR_S = 0.05
WITHIN_S = 1.0
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
        cannot be found out soon. The answer is at most :data:`_FRESH_FOR_S` older than the call."""
        now = asyncio.get_running_loop().time()
        began, task = self._reads.get(partition, (now, None))
        if task is None or now - began > _FRESH_FOR_S:
            task = asyncio.create_task(self._read(partition))
            self._reads[partition] = now, task
        await asyncio.wait([task], timeout=WITHIN_S)
        return task.result() if task.done() and not task.cancelled() else None

    async def _read(self, partition: int) -> int | None:
        try:
            return await asyncio.to_thread(read_claimant, self._store, partition)
        except (StoreError, MalformedValue) as error:
            log.debug("cannot read who claimed a partition partition=%d: %s", partition, error)
            return None


def read_claimant(store: Store, partition: int) -> int | None:
    """Returns the broker id of the instance that claimed the partition last, or ``None`` if nobody has. Raises
    :class:`StoreError` and :class:`MalformedValue`."""
    if store.session.state is not SessionState.CONNECTED:
        return None  # do not wait until it is
    path = layout.log_partition(partition)
    try:
        data = store.get(path).data
    except NoNode:
        return None
    return fields.number(fields.load_object(data, path), "broker", path) if data else None


def is_current_term(store: Store, partition: int, claimed: Claimed) -> bool:
    """Returns whether the partition's znode is still as it was claimed, as ZooKeeper's leader knows it: a multi is
    ordered with all writes, and a plain read is not. A znode that was deleted and created again can have the same
    version, but not the same czxid. The read after the multi sees at least what the multi saw. Raises
    :class:`StoreError` if that cannot be found out."""
    if store.session.state is not SessionState.CONNECTED:
        raise StoreUnavailable("the session is not connected")  # do not wait until it is
    path = layout.log_partition(partition)
    try:
        multi_fenced(store, Check(path, claimed.term), ())
    except Fenced:
        return False
    stat = store.exists(path)
    return stat is not None and Claimed(stat.version, stat.czxid) == claimed


def claim_term(store: Store, partition: int, broker_id: int, managed_groups: str | None = None) -> Claimed:
    """Claims a term by compare-and-set on the partition's znode. The znode's new version is the term, and its value
    names the broker and the instance's ``managed_groups``. Raises :class:`BadVersion` if another instance was faster,
    and :class:`StoreUnavailable`."""
    path = layout.log_partition(partition)
    value: dict[str, object] = {"version": fields.VERSION, "broker": broker_id}
    data = fields.dump(value | ({"managed_groups": managed_groups} if managed_groups else {}))
    try:
        version = store.get(path).stat.version
    except NoNode:
        store.ensure_path(path.rpartition("/")[0])
        with suppress(NodeExists):
            store.create(path, b"")
        version = store.get(path).stat.version
    stat = store.set(path, data, version)
    return Claimed(stat.version, stat.czxid)


def report_right(store: Store, broker_id: int, error: str) -> None:
    """Writes the broker's ``error`` to the instance's znode, or deletes the znode if there is none. The znode is
    ephemeral, so it does not outlive the instance. Safe to repeat. Raises :class:`StoreUnavailable`."""
    path = layout.missing_right(broker_id)
    if not error:
        with suppress(NoNode):
            store.delete(path, -1)
        return
    store.ensure_path(layout.MISSING_RIGHTS)
    with suppress(NodeExists):
        store.create(path, fields.dump({"version": fields.VERSION, "error": error}), ephemeral=True)


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
