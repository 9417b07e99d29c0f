"""Decides which deadlines have passed: grace, overdue commands, channel retirement and the retention of offsets.

Pure. The caller passes the time (``now`` in monotonic seconds, ``wall_ms`` in ms since 1970), and the timers remember
when each thing was first seen. ``plan`` gets the results, so it needs no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafka_coord.coordinator.offsets_retention import offsets_expire_at_ms
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.timers import GroupTimers
from kafka_coord.model import Assignment, Channel, GroupSettings, Ledger, Member

SLOW_COMMAND_MS = 2_000
"""A consumer that has not acknowledged a command for this many ms may be unable to read it."""


@dataclass(frozen=True, slots=True)
class DeadlineInputs:
    """The part of an observation that deadlines need. ``registered`` are all consumers with a registration, even an
    unreadable one. If the settings are unreadable, ``settings`` is ``None``."""

    members: Mapping[str, Member]
    registered: Collection[str]
    ledgers: Mapping[str, Ledger]
    channels: Mapping[str, Channel]
    target: Assignment | None
    settings: GroupSettings | None


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The state of all deadlines. ``in_grace`` are consumers that are gone, but keep their place. ``overdue`` are
    consumers that have not acknowledged a command within the rebalance timeout. ``retired`` are consumers that have
    been gone for so long that their channel may be removed. ``retention_passed`` tells whether the group's offsets have
    expired."""

    in_grace: frozenset[str]
    overdue: frozenset[str]
    retired: frozenset[str]
    retention_passed: bool


def deadlines(
    inputs: DeadlineInputs, timers: GroupTimers, options: CoordinatorOptions, now: float, wall_ms: float
) -> Deadlines:
    """Evaluates all deadlines, and sets ``timers.next_due`` to the moment at which the next one passes."""
    timers.begin()
    expire_ms = offsets_expire_at_ms(inputs.registered, inputs.ledgers, inputs.target, inputs.settings)
    return Deadlines(
        in_grace=_in_grace(inputs, timers, now),
        overdue=_overdue(inputs, timers, now),
        retired=_retired(inputs, timers, options, now),
        retention_passed=expire_ms is not None and timers.passed(now, expire_ms - wall_ms, now),
    )


def _in_grace(inputs: DeadlineInputs, timers: GroupTimers, now: float) -> frozenset[str]:
    """Returns the consumers in grace. A consumer that returns and leaves again between two passes keeps its first
    timer, because no pass saw the incarnation in between."""
    places = {c: led.place for c, led in inputs.ledgers.items() if led.place is not None and c not in inputs.registered}
    timers.gone.update(places, now)
    return frozenset(
        c for c, place in places.items() if not timers.passed(timers.gone.since(c), place.rejoin_grace_ms, now)
    )


def _overdue(inputs: DeadlineInputs, timers: GroupTimers, now: float) -> frozenset[str]:
    settings = inputs.settings or GroupSettings()
    outstanding = {
        (c, inputs.members[c].incarnation, command.name): command.type
        for c, channel in inputs.channels.items()
        if c in inputs.members
        for command in channel.commands
    }
    timers.commands.update(outstanding, now)
    for key in outstanding:  # wakes the handler to check whether a slow command can be read
        timers.passed(timers.commands.since(key), SLOW_COMMAND_MS, now)
    return frozenset(
        key[0]
        for key, kind in outstanding.items()
        if timers.passed(timers.commands.since(key), settings.rebalance_timeout_for(inputs.members[key[0]], kind), now)
    )


def slow_commands(timers: GroupTimers, now: float) -> list[tuple[str, str]]:
    """Returns (consumer, name) of each command that was outstanding at the last pass and is :data:`SLOW_COMMAND_MS`
    old."""
    return [(consumer, name) for consumer, _, name in timers.commands.before(now - SLOW_COMMAND_MS / 1000)]


def _retired(inputs: DeadlineInputs, timers: GroupTimers, options: CoordinatorOptions, now: float) -> frozenset[str]:
    left = [c for c in inputs.channels if c not in inputs.registered and c not in inputs.ledgers]
    timers.retiring.update(left, now)
    return frozenset(c for c in left if timers.passed(timers.retiring.since(c), options.channel_retirement_ms, now))
