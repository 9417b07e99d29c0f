"""Deliberate defects of conversions with members. The simulator must find each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kafka_coord.coordinator import group_reader
from kafka_coord.frontends.kafka.conversions import Conversions
from kafka_coord.frontends.kafka.managed.administration import RegisteredMembers
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.frontends.kafka.native import Kinds
from kafka_coord.model import GroupKind
from tests.simulation.groups.planted import Patch, patched

Patches = tuple[Patch, ...]


def _acts_before_the_record() -> Patches:
    return ((group_reader, "_recorded", lambda *_: ({}, frozenset())),)


def _offsets_read_early() -> Patches:
    original, copied = Conversions.converted, Conversions._copy

    async def converted(self: Any, asked: Any) -> Any:
        self.read_early = (await self._managed.stored(asked.group))[1]
        await asyncio.sleep(1.5)
        return await original(self, asked)

    async def copy(self: Any, name: str, _offsets: Any) -> Any:
        return await copied(self, name, self.read_early)

    return (Conversions, "converted", converted), (Conversions, "_copy", copy)


def _left_behind() -> Patches:
    return ((Conversions, "begin", lambda *_: None),)


def _members_stay() -> Patches:
    return ((RegisteredMembers, "leaving", lambda *_: []),)


def _outcome_guessed() -> Patches:
    async def recorded(self: Any, group: str, kind: Any, expected: Any, _becomes: Any, ops: Any = ()) -> None:
        await self.record(group, kind, expected, ops)

    return ((Kinds, "record_surely", recorded),)


def _not_looked_for() -> Patches:
    return ((ManagedTerms, "look", lambda *_: None),)


PLANTED: dict[str, tuple[Callable[[], Patches], GroupKind, str]] = {
    "the coordinator acts before the record": (_acts_before_the_record, GroupKind.MANAGED, "lost"),
    "an unknown outcome counts as a failure": (_outcome_guessed, GroupKind.MANAGED, "lost"),
    "nobody looks for the members that were registered": (_not_looked_for, GroupKind.MANAGED, ""),
    "offsets are read before the members wait": (_offsets_read_early, GroupKind.CLIENT_ASSIGNED, ""),
    "the members stay registered": (_members_stay, GroupKind.CLIENT_ASSIGNED, "kill"),
    "a later term leaves what an earlier one has left": (_left_behind, GroupKind.CLIENT_ASSIGNED, "kill"),
}
"""Each defect, and the direction and the fault that reveal it. Every step of the conversion is tried."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants the defect until the end of the block."""
    with ExitStack() as stack:
        for patch in PLANTED[name][0]():
            stack.enter_context(patched(patch))
        yield
