"""Finds out which instance claimed a partition of the groups log last, as ZooKeeper says."""

from __future__ import annotations

import asyncio
import logging

from kafka_coord.errors import MalformedValue, NoNode, StoreError
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import SessionState, Store

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
