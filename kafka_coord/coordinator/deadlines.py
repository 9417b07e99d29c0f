"""The coordinator's times: its options, and which deadlines have passed (grace periods, overdue commands, channel
retirement and offset retention).

Nothing here reads a clock. The caller passes the time (``now`` in monotonic seconds, ``wall_ms`` in ms since 1970), and
the timers record when each condition was first seen. ``plan`` only receives the results, so it needs no clock either.

Safety does not depend on the timers. A new coordinator restarts all of them, so an election can at most double a grace
period or a timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kafka_coord.model import Assignment, Channel, Departure, GroupSettings, Holds, Ledger, Member
from kafka_coord.model.offsets import Retention


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The coordinator's timing options, in ms. The defaults suit most installations.

    - ``look_interval_ms``: the time between two passes over a group that has no events.
    - ``settled_after_ms``: how long a group must be at rest before it is recorded as such and later passes only check
      whether anything has changed. 0 means never.
    - ``whole_look_interval_ms``: the time between two complete reads of a group at rest, which also find registrations
      and ledgers edited by hand.
    - ``retry_backoff_ms``: the delay before a failed pass is retried. It doubles with every further failure, up to
      ``retry_backoff_max_ms``.
    - ``channel_retirement_ms``: how long a departed consumer's channel znode is kept. It must be far longer than any
      session timeout, because the channel fences a frozen consumer of the same name (ADR 3).
    - ``answers_kept_ms``: how long the response to an operator's request is kept if no one fetches it.
    - ``resign_pause_ms``: how long an instance stays out of the election after an operator asked it to resign.
    """

    look_interval_ms: int = 60_000
    settled_after_ms: int = 5_000
    whole_look_interval_ms: int = 600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 5_000
    channel_retirement_ms: int = 600_000
    answers_kept_ms: int = 600_000
    resign_pause_ms: int = 2_000


SLOW_COMMAND_MS = 2_000
"""The age in ms at which an unacknowledged command counts as slow. Its consumer may be unable to read it."""

Key = TypeVar("Key")


@dataclass(slots=True)
class GroupTimers:
    """When each condition of one group was first seen, and when the next deadline is due (``next_due``), both in
    monotonic seconds."""

    commands: dict[tuple[str, int, str], float] = field(default_factory=dict)
    """The outstanding commands, by (consumer, incarnation, command name)."""
    gone: dict[str, float] = field(default_factory=dict)
    """The consumers that have a place but no registration."""
    retiring: dict[str, float] = field(default_factory=dict)
    """The consumers that have nothing left but a channel."""
    held: float | None = None
    """The group's holds."""
    next_due: float | None = None

    def passed(self, since: float, duration_ms: float, now: float) -> bool:
        """Returns whether ``duration_ms`` have passed since ``since``. If not, updates :attr:`next_due`."""
        due = since + duration_ms / 1000
        if now >= due:
            return True
        self.next_due = due if self.next_due is None else min(self.next_due, due)
        return False


def _first_seen(before: Mapping[Key, float], present: Iterable[Key], now: float) -> dict[Key, float]:
    """Keeps the timers of keys that are still present, starts one for each new key, and drops the rest."""
    return {key: before.get(key, now) for key in present}


@dataclass(frozen=True, slots=True)
class DeadlineInputs:
    """The part of an observation that deadlines depend on. ``registered`` contains every consumer that has a
    registration, readable or not. ``settings`` and ``retention`` are ``None`` if they are unreadable. ``departures``
    says how consumers went."""

    members: Mapping[str, Member]
    registered: Collection[str]
    ledgers: Mapping[str, Ledger]
    channels: Mapping[str, Channel]
    target: Assignment | None
    settings: GroupSettings | None
    retention: Retention | None = field(default_factory=Retention)
    holds: Holds | None = None
    departures: Mapping[str, Departure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The state of all deadlines. ``in_grace`` contains the consumers that are gone but keep their place, ``overdue``
    those that have not acknowledged a command within the rebalance timeout, and ``retired`` those that have been gone
    long enough for their channel to be removed. ``retention_passed`` is true if the group's offsets have expired, and
    ``holds_over`` if what a restored group's members held has been held long enough."""

    in_grace: frozenset[str]
    overdue: frozenset[str]
    retired: frozenset[str]
    retention_passed: bool
    holds_over: bool


def deadlines(
    inputs: DeadlineInputs, timers: GroupTimers, options: CoordinatorOptions, now: float, wall_ms: float
) -> Deadlines:
    """Returns the state of all deadlines and sets ``timers.next_due`` to the time of the next deadline."""
    timers.next_due = None
    expire_ms = offsets_expire_at_ms(inputs)
    return Deadlines(
        in_grace=_in_grace(inputs, timers, now),
        overdue=_overdue(inputs, timers, now),
        retired=_retired(inputs, timers, options, now),
        retention_passed=expire_ms is not None and timers.passed(now, expire_ms - wall_ms, now),
        holds_over=_holds_over(inputs, timers, now),
    )


def _holds_over(inputs: DeadlineInputs, timers: GroupTimers, now: float) -> bool:
    """Every coordinator counts the whole time on its own clock, from when it first saw the holds. The servers that kept
    the holders' sessions alive had stopped before the holds were written (ADR 58)."""
    timers.held = None if inputs.holds is None else now if timers.held is None else timers.held
    return timers.held is not None and inputs.holds is not None and timers.passed(timers.held, inputs.holds.for_ms, now)


def _in_grace(inputs: DeadlineInputs, timers: GroupTimers, now: float) -> frozenset[str]:
    """Returns the consumers in grace. A consumer that returns and leaves again between two passes keeps its first
    timer, because no pass saw the incarnation in between."""
    places = {c: led.place for c, led in inputs.ledgers.items() if led.place is not None and c not in inputs.registered}
    timers.gone = _first_seen(timers.gone, places, now)
    grace_ms = {c: place.grace_ms(inputs.departures.get(c)) for c, place in places.items()}
    return frozenset(c for c, kept_ms in grace_ms.items() if not timers.passed(timers.gone[c], kept_ms, now))


def _overdue(inputs: DeadlineInputs, timers: GroupTimers, now: float) -> frozenset[str]:
    settings = inputs.settings or GroupSettings()
    outstanding = {
        (c, inputs.members[c].incarnation, command.name): command.type
        for c, channel in inputs.channels.items()
        if c in inputs.members
        for command in channel.commands
    }
    timers.commands = _first_seen(timers.commands, outstanding, now)
    for since in timers.commands.values():  # wakes the handler to check whether a slow command can be read
        timers.passed(since, SLOW_COMMAND_MS, now)
    return frozenset(
        key[0]
        for key, kind in outstanding.items()
        if timers.passed(timers.commands[key], settings.rebalance_timeout_for(inputs.members[key[0]], kind), now)
    )


def slow_commands(timers: GroupTimers, now: float) -> list[tuple[str, str]]:
    """Returns (consumer, command name) for each command that was outstanding at the last pass and is at least
    :data:`SLOW_COMMAND_MS` old."""
    slow = now - SLOW_COMMAND_MS / 1000
    return [(consumer, name) for (consumer, _, name), since in timers.commands.items() if since <= slow]


def _retired(inputs: DeadlineInputs, timers: GroupTimers, options: CoordinatorOptions, now: float) -> frozenset[str]:
    left = [c for c in inputs.channels if c not in inputs.registered and c not in inputs.ledgers]
    timers.retiring = _first_seen(timers.retiring, left, now)
    return frozenset(
        c for c, since in timers.retiring.items() if timers.passed(since, options.channel_retirement_ms, now)
    )


def offsets_expire_at_ms(inputs: DeadlineInputs) -> int | None:
    """Returns when a managed group's offsets expire (ms since 1970), or ``None`` while the group is not known to be
    empty. Once the offsets have expired, ``plan.operator_requests`` removes the group.

    A group counts as empty from the time its empty target was written. A target that names members does not count, even
    if none of them still exists: it may have been left by a coordinator that died after forgetting the last member but
    before emptying the target, so its timestamp may be older than the retention.
    """
    target, settings = inputs.target, inputs.settings
    if settings is None or inputs.retention is None:  # what is unreadable may ask for a longer retention
        return None
    if inputs.registered or inputs.ledgers or target is None or target.members:
        return None
    retention = settings.retention(inputs.retention)
    return retention.expires_at_ms(target.timestamp_ms) if retention is not None else None
