"""Executes plans by writing units in order, each as a multi that first checks the epoch."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from kafka_coord.coordinator.decide import Decided
from kafka_coord.coordinator.tolerant_reads import tree_below
from kafka_coord.coordinator.translate import Translation, in_parts
from kafka_coord.errors import MultiFailed, NotEmpty
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import fits_one, write_fenced
from kafka_coord.zk.store import Check, Create, Delete, Op, Store

log = logging.getLogger(__name__)

_LEAVES = {("ids", 2), ("owners", 2), ("channel", 3), ("offsets", 3)}
"""The znodes of a group that never have children, as pairs of name and depth."""


Units = tuple[Sequence[Op], ...]
"""A plan as units of operations, which must be written in order."""
NewCommands = tuple[str, ...]
"""The paths of the command znodes that a write created."""


class Executor:
    """Writes plans during one period of leadership. A fence makes every write fail once another instance is elected."""

    def __init__(self, store: Store, fence: Check) -> None:
        self._store = store
        self._fence = fence

    def prepare(self, decided: Decided, missing: Collection[str] = (), after: Sequence[Op] = ()) -> Units:
        """Returns the plan's steps as units, followed by ``after`` (the history write). Reads any values that the steps
        need. ``missing`` contains the group's persistent znodes that do not exist yet."""
        return (*Translation(self._store, decided, missing).units(), *([after] if after else []))

    def write_prepared(self, units: Units) -> NewCommands:
        """Writes one plan. Returns the paths of the created commands.

        Raises :class:`Fenced` once another instance has been elected, :class:`MultiFailed` if something changed since
        the snapshot, and :class:`StoreUnavailable` if the outcome is unknown. After either of the last two, read the
        group again. The units already written are consistent even without the rest.
        """
        return _new_commands(units, self.write(units))

    def write_together(self, plans: Sequence[Units]) -> list[NewCommands] | None:
        """Writes several plans in a single all-or-nothing request. Returns ``None`` if they do not fit in one request.
        Raises the same errors as :meth:`write_prepared`. After :class:`Fenced` or :class:`MultiFailed`, nothing was
        written."""
        units = [unit for one in plans for unit in one]
        if not fits_one(self._store, units):
            return None
        results = self.write(units)
        created = []
        for one in plans:
            created.append(_new_commands(one, results[: len(one)]))
            results = results[len(one) :]
        return created

    def clear_below_leaf(self, refused: MultiFailed) -> None:
        """If ZooKeeper refused a write because someone created znodes below one of kafka-coord's leaves, removes those
        znodes. No pass reads them, so otherwise every pass would fail the same way."""
        _, _, below = refused.path.removeprefix(f"{layout.GROUPS}/").partition("/")
        kind = below.split("/")
        if isinstance(refused.cause, NotEmpty) and (kind[0], len(kind)) in _LEAVES:
            log.warning("removing foreign znodes below path=%s, because kafka-coord stores nothing there", refused.path)
            self.write(in_parts([Delete(found) for found in reversed(tree_below(self._store, refused.path))]))

    def write(self, units: Sequence[Sequence[Op]]) -> list[tuple[object, ...]]:
        """Writes units unchanged and returns their results. Raises the same errors as :meth:`write_prepared`."""
        return [tuple(results) for results in write_fenced(self._store, self._fence, units)] if units else []


def _new_commands(units: Units, results: Sequence[Sequence[object]]) -> NewCommands:
    return tuple(
        result
        for unit, unit_results in zip(units, results, strict=True)
        for op, result in zip(unit, unit_results, strict=True)
        if isinstance(op, Create) and op.sequence and isinstance(result, str)
    )
