"""Compares groups' offsets in two stores, writes the differences, and reads them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.model import TopicPartition
from kafka_coord.model.sequences import parts, some
from kafka_coord.monitor.copies.coordinators import CopyPosition, GroupPositions, Positions
from kafka_coord.monitor.copies.offset_stores import OffsetStore

_AT_ONCE = 500
"""The number of groups that are read or written between two progress reports."""

OnProgress = Callable[[str], None]


class CopyVerdict(StrEnum):
    """The decision about one partition's offset."""

    COPY = "copy"
    SAME = "same"
    AHEAD = "target is ahead"
    """The target's offset is later, so a copy would make the group read records again."""
    GONE = "no such partition"


@dataclass(frozen=True, slots=True)
class Row:
    """One partition, with its offsets at the source and at the target."""

    partition: TopicPartition
    source: CopyPosition
    target: CopyPosition | None
    verdict: CopyVerdict


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """The planned copy of one group. ``problem`` says why its offsets will not be written. ``warning`` is for the
    operator."""

    group: str
    rows: tuple[Row, ...] = ()
    problem: str = ""
    warning: str = ""

    def wanted(self) -> Positions:
        return {row.partition: row.source for row in self.rows if row.verdict is CopyVerdict.COPY and not self.problem}


def compare(
    source: OffsetStore,
    target: OffsetStore,
    groups: Sequence[str],
    existing: AbstractSet[TopicPartition],
    on_progress: OnProgress,
    *,
    overwrite: bool = False,
) -> tuple[GroupCopy, ...]:
    """Returns the planned copy of each group. With ``overwrite``, the plan also replaces later offsets at the
    target."""
    found: list[GroupCopy] = []
    for part in parts(groups, _AT_ONCE):
        here, there = source.read(part), target.read(part)
        found += [
            _compare_group(group, source, target, here[group], there[group], existing, overwrite) for group in part
        ]
        if len(groups) > _AT_ONCE:
            on_progress(f"compared {len(found):,} of {len(groups):,} groups")
    return tuple(found)


def _compare_group(
    group: str,
    source: OffsetStore,
    target: OffsetStore,
    here: GroupPositions,
    there: GroupPositions,
    existing: AbstractSet[TopicPartition],
    overwrite: bool,
) -> GroupCopy:
    for place, seen in ((source, here), (target, there)):
        if seen.problem:
            return GroupCopy(group, problem=f"{place.name}: {seen.problem}")
    rows = tuple(
        Row(tp, position, there.positions.get(tp), _verdict(tp, position, there.positions.get(tp), existing, overwrite))
        for tp, position in sorted(here.positions.items())
    )
    if there.members:
        problem = f"{target.name}: it has members ({some(there.members, 3)}); stop them first"
        return GroupCopy(group, rows, problem)
    warning = ""
    if here.members:
        warning = f"{source.name}: its members ({some(here.members, 3)}) may commit more; stop them and copy again"
    return GroupCopy(group, rows, warning=warning)


def _verdict(
    tp: TopicPartition,
    source: CopyPosition,
    target: CopyPosition | None,
    existing: AbstractSet[TopicPartition],
    overwrite: bool,
) -> CopyVerdict:
    if tp not in existing:
        return CopyVerdict.GONE
    if target is not None and target.offset == source.offset:
        return CopyVerdict.SAME
    if target is not None and target.offset > source.offset and not overwrite:
        return CopyVerdict.AHEAD
    return CopyVerdict.COPY


def copy(target: OffsetStore, found: Sequence[GroupCopy], on_progress: OnProgress) -> dict[str, str]:
    """Writes the planned offsets and reads them back from the target. Returns problems by group. Safe to repeat."""
    due = [one for one in found if one.wanted()]
    problems: dict[str, str] = {}
    done = 0
    for part in parts(due, _AT_ONCE):
        problems |= target.write({one.group: one.wanted() for one in part})
        there = target.read([one.group for one in part])
        done += len(part)
        for one in part:
            if one.group not in problems and (wrong := _unequal(one, there[one.group])):
                problems[one.group] = f"{target.name}: after the write, {wrong}"
        on_progress(f"copied and read back {done:,} of {len(due):,} groups")
    return problems


def _unequal(one: GroupCopy, seen: GroupPositions) -> str:
    if seen.problem:
        return f"it cannot be read back: {seen.problem}"
    for tp, position in one.wanted().items():
        there = seen.positions.get(tp)
        if there is None or there.offset != position.offset:
            return f"{tp} has offset {there.offset if there else 'none'} instead of {position.offset}"
    return ""
