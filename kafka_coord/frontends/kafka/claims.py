"""What ZooKeeper says about the partitions of the groups log: who claimed them, and which right an instance lacks."""

from __future__ import annotations

import asyncio
import logging
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
