"""Fenced writes, which fail once the epoch (or term) in which they were decided is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from kafka_coord.errors import Fenced, MultiFailed
from kafka_coord.zk.store import Check, Op, OpResult, Store, op_size

MAX_BYTES = 900_000
"""The maximum size of a multi, in bytes. A server accepts 1,048,575 bytes, but the chroot lengthens paths, and the
limit may be configured lower."""
MAX_OPS = 1_000
"""The maximum number of operations in a multi. Longer multis are no faster, and delay all other writes."""


def multi_fenced(store: Store, fence: Check, ops: Sequence[Op], session_id: int | None = None) -> tuple[OpResult, ...]:
    """Writes ``ops`` in one multi that begins with ``fence`` and returns their results.

    Raises :class:`Fenced` if the fence failed: another instance has taken over, or someone has written to the fence's
    znode. Also if ``session_id`` is given and that session has ended, even if nobody has taken over yet. Raises
    :class:`MultiFailed` if an operation failed (``index`` counts within ``ops``), and :class:`StoreUnavailable` if the
    outcome is unknown.
    """
    if session_id not in {None, store.session.session_id}:
        raise Fenced("deposed: its ZooKeeper session ended; nothing was written", fence.path)
    try:
        return store.multi((fence, *ops))[1:]
    except MultiFailed as error:
        if error.index != 0:
            raise MultiFailed(str(error), error.path, error.index - 1, error.cause) from error
        raise Fenced(
            f"deposed: {fence.path} was changed or deleted (by an election or by hand) after version {fence.version};"
            " nothing was written",
            fence.path,
        ) from error


def unit_at_fault(units: Iterable[Sequence[Op]], index: int) -> int:
    """Returns the index of the unit that contains operation ``index`` of a failed multi."""
    for number, unit in enumerate(units):
        index -= len(unit)
        if index < 0:
            return number
    raise IndexError("ZooKeeper reported a failed operation that is not in the multi")


def write_fenced(
    store: Store, fence: Check, units: Iterable[Sequence[Op]], session_id: int | None = None
) -> list[tuple[OpResult, ...]]:
    """Writes units in order, as many per multi as fit. Each multi begins with ``fence``. Returns each unit's results. A
    unit is never split, so it takes effect completely or not at all. If a unit fails, the units already written remain.

    Raises the same errors as :func:`multi_fenced`, and :class:`RequestTooLarge` for a unit that is too large for any
    multi.
    """
    results: list[tuple[OpResult, ...]] = []
    for batch in packed(units, store.acl_bytes):
        remaining = iter(multi_fenced(store, fence, [op for unit in batch for op in unit], session_id))
        results += [tuple(islice(remaining, len(unit))) for unit in batch]
    return results


def fits_one(store: Store, units: Iterable[Sequence[Op]]) -> bool:
    """Returns whether :func:`write_fenced` would write all units in one multi, and thus all or none of them."""
    batches = packed(units, store.acl_bytes)
    next(batches, None)
    return next(batches, None) is None


def packed(units: Iterable[Sequence[Op]], acl: int, max_bytes: int = MAX_BYTES) -> Iterator[list[Sequence[Op]]]:
    """Yields ``units`` in order, in batches that each fit in one request. A unit that is too large to fit gets a batch
    of its own. ``acl`` is the size of a create's ACL in bytes."""
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
