"""Carries out plans: units in order, every multi beginning with the epoch's check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_coord.coordinator.observe import Look
from kafka_coord.coordinator.reading import tree_below
from kafka_coord.coordinator.steps import Plan
from kafka_coord.coordinator.translate import Translation, in_parts
from kafka_coord.model import Unreadable
from kafka_coord.zk.fenced import write_fenced
from kafka_coord.zk.store import Check, Create, Delete, Op, Store


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

    def execute(self, plan: Plan, look: Look, after: Sequence[Op] = ()) -> Written:
        """Writes the plan's steps in order, then ``after`` (the history) as one more unit.

        Raises :class:`Fenced` once another instance was elected, :class:`MultiFailed` where the world changed since
        the look, :class:`StoreUnavailable` where the outcome is unknown. After the latter two: look again; whatever
        was written is consistent by itself.
        """
        translation = Translation(self._store, plan, look)
        units = translation.units()
        if after:
            units.append(list(after))
        made = [
            result
            for unit, results in zip(units, self.write(units), strict=True)
            for op, result in zip(unit, results, strict=True)
            if isinstance(op, Create) and op.sequence and isinstance(result, str)
        ]
        return Written(len(units), tuple(made), tuple(translation.unreadable.values()))

    def clear_below(self, path: str) -> None:
        """Removes what is below ``path``, a znode of ours below which nothing belongs."""
        self.write(in_parts([Delete(found) for found in reversed(tree_below(self._store, path))]))

    def write(self, units: Sequence[Sequence[Op]]) -> list[tuple[object, ...]]:
        """Writes units as they are; gives their results. Raises as :meth:`execute`."""
        return [tuple(results) for results in write_fenced(self._store, self._fence, units)] if units else []
