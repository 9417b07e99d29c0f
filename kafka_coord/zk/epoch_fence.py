"""Writes that take effect only under the coordinator epoch they were decided under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kafka_coord.errors import Fenced, MultiFailed
from kafka_coord.zk.sizes import op_size
from kafka_coord.zk.store import Check, Op, OpResult, Store

MAX_BYTES = 900_000
"""Below the 1,048,575 that a server accepts: the chroot lengthens paths, and the limit may be configured lower."""
MAX_OPS = 1_000
"""Longer multis are no faster, and delay all other writes."""


def write_fenced(store: Store, fence: Check, units: Iterable[Sequence[Op]]) -> list[tuple[OpResult, ...]]:
    """Writes units in order, as many to a multi as fit; each multi begins with ``fence``. Returns each unit's results.

    A unit is never split: all of it takes effect or nothing. Units already written stay written when a later one fails.

    Raises :class:`Fenced` if the fence failed (another instance was elected, or somebody wrote the epoch),
    :class:`MultiFailed` if an operation failed (``index`` counts within its multi, the fence being 0),
    :class:`RequestTooLarge` for a unit that fits no multi, :class:`StoreUnavailable` if the outcome is unknown.
    """
    results: list[tuple[OpResult, ...]] = []
    for batch in packed(units, store.acl_bytes):
        results += _write(store, fence, batch)
    return results


def fits_one(store: Store, units: Iterable[Sequence[Op]]) -> bool:
    """Whether :func:`write_fenced` would write all of it in one multi: everything, or nothing."""
    batches = packed(units, store.acl_bytes)
    next(batches, None)
    return next(batches, None) is None


def _write(store: Store, fence: Check, units: Sequence[Sequence[Op]]) -> Iterator[tuple[OpResult, ...]]:
    ops: list[Op] = [fence]
    for unit in units:
        ops += unit
    try:
        found = store.multi(ops)
    except MultiFailed as error:
        if error.index != 0:
            raise
        raise Fenced(
            f"deposed: {fence.path} is no longer at version {fence.version}, so another instance was elected or "
            "somebody wrote it; nothing was written",
            fence.path,
            0,
            error.cause,
        ) from error
    at = 1
    for unit in units:
        yield found[at : at + len(unit)]
        at += len(unit)


def packed(units: Iterable[Sequence[Op]], acl: int, max_bytes: int = MAX_BYTES) -> Iterator[list[Sequence[Op]]]:
    """Yields ``units`` in order, in batches that each fit one request. A larger unit is a batch by itself. ``acl`` is
    the size of a create's ACL in bytes."""
    batch: list[Sequence[Op]] = []
    size = count = 0
    for unit in units:
        unit_size = sum(op_size(op, acl=acl) for op in unit)
        if batch and (size + unit_size > max_bytes or count + len(unit) > MAX_OPS):
            yield batch
            batch, size, count = [], 0, 0
        batch.append(unit)
        size += unit_size
        count += len(unit)
    if batch:
        yield batch
