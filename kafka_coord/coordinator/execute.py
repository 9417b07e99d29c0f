"""Carries out plans: units in order, every multi beginning with the epoch's check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_coord.coordinator.observe import Snapshot
from kafka_coord.coordinator.reading import tree_below
from kafka_coord.coordinator.steps import Plan
from kafka_coord.coordinator.translate import Translation, in_parts
from kafka_coord.model import Unreadable
from kafka_coord.zk.fenced import fits_one, write_fenced
from kafka_coord.zk.store import Check, Create, Delete, Op, Store


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan as units of operations, in the order in which they are to be written, and which offset znodes were found
    unreadable on the way (their partitions are not started)."""

    units: tuple[Sequence[Op], ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What an execution did: how many units, which command znodes it made, and which offset znodes it found
    unreadable (their partitions were not started)."""

    units: int
    commands: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


class Executor:
    """Writes under one leadership and none other."""

    def __init__(self, store: Store, fence: Check) -> None:
        self._store = store
        self._fence = fence

    def execute(self, plan: Plan, look: Snapshot, after: Sequence[Op] = ()) -> Written:
        """:meth:`prepare` and :meth:`write_prepared`."""
        return self.write_prepared(self.prepare(plan, look, after))

    def prepare(self, plan: Plan, look: Snapshot, after: Sequence[Op] = ()) -> Prepared:
        """The plan's steps in order, then ``after`` (the history) as one more unit; reads what they need."""
        translation = Translation(self._store, plan, look)
        units: list[Sequence[Op]] = list(translation.units())
        if after:
            units.append(after)
        return Prepared(tuple(units), tuple(translation.unreadable.values()))

    def write_prepared(self, prepared: Prepared) -> Written:
        """Writes one plan.

        Raises :class:`Fenced` once another instance was elected, :class:`MultiFailed` where the world changed since
        the look, :class:`StoreUnavailable` where the outcome is unknown. After the latter two: look again; whatever
        was written is consistent by itself.
        """
        return _written(prepared, self.write(prepared.units))

    def write_together(self, prepared: Sequence[Prepared]) -> list[Written] | None:
        """Writes several plans in one request, all of them or none; ``None`` where they do not fit in one. Raises as
        :meth:`write_prepared`, and then nothing was written unless the outcome is unknown."""
        units = [unit for one in prepared for unit in one.units]
        if not fits_one(self._store, units):
            return None
        results = self.write(units)
        found = []
        for one in prepared:
            found.append(_written(one, results[: len(one.units)]))
            results = results[len(one.units) :]
        return found

    def clear_below(self, path: str) -> None:
        """Removes what is below ``path``, a znode of ours below which nothing belongs."""
        self.write(in_parts([Delete(found) for found in reversed(tree_below(self._store, path))]))

    def write(self, units: Sequence[Sequence[Op]]) -> list[tuple[object, ...]]:
        """Writes units as they are; gives their results. Raises as :meth:`execute`."""
        return [tuple(results) for results in write_fenced(self._store, self._fence, units)] if units else []


def _written(prepared: Prepared, results: Sequence[Sequence[object]]) -> Written:
    made = [
        result
        for unit, unit_results in zip(prepared.units, results, strict=True)
        for op, result in zip(unit, unit_results, strict=True)
        if isinstance(op, Create) and op.sequence and isinstance(result, str)
    ]
    return Written(len(prepared.units), tuple(made), prepared.unreadable)
