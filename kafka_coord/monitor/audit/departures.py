"""Checks evictions, and that a departed member's place is kept for its grace period."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_coord.model import NO_PARTITIONS, Ledger, PartitionSet, RequestType, StartFetcher, StopFetcher
from kafka_coord.monitor.audit.commands import Fault, paused_since
from kafka_coord.monitor.audit.report import Rule
from kafka_coord.monitor.audit.state import GroupState, StepContext, ZooKeeperState

_TOLERANCE_MS = 200
"""Timers use the coordinator's monotonic clock, but the log has the wall clocks of ZooKeeper's servers."""


def eviction_faults(
    state: ZooKeeperState, context: StepContext, group: GroupState, consumer: str, ledger: Ledger | None
) -> Iterator[Fault]:
    """Checks an eviction. ``ledger`` is the member's live ledger before the step, and ``state`` is the state after
    it."""
    asked = any(request.consumer == consumer for request in state.asked(group.name, RequestType.EVICT))
    since = paused_since(state, group)
    incarnation = context.gone_incarnations.get((group.name, consumer), 0)
    if since is not None and not asked and (incarnation > since.zxid or state.must_have_seen(since, context.step)):
        yield Rule.PAUSE_IGNORED, f"{consumer} was evicted while the group was paused, but no operator asked for that"
    if not asked and not _is_overdue(state, context, group, consumer):
        yield (
            Rule.EVICTED_EARLY,
            f"{consumer} was evicted, no operator asked for it, and no command of it was outstanding for the"
            f" {group.shortest_timeout_ms / 1000:g} s it may take",
        )
    if ledger is None:
        return
    after = group.ledgers.get(consumer)
    commands = (*group.outstanding(consumer), *context.dropped.get((group.name, consumer), ()))
    stops = any(isinstance(one.command, StopFetcher) for one in commands)
    holds = ledger.held if stops else ledger.owned
    taken = holds - (after.held if after is not None else NO_PARTITIONS)
    given = PartitionSet.union(
        written.command.partitions & holds
        for in_group, _, written in context.commanded
        if in_group == group.name and isinstance(written.command, StartFetcher)
    )
    if taken or given:
        yield (
            Rule.EVICTED_AND_RELEASED,
            f"{taken | given} was taken from {consumer} in the transaction that evicts it: nobody can know yet that its"
            " registration is gone",
        )


def _is_overdue(state: ZooKeeperState, context: StepContext, group: GroupState, consumer: str) -> bool:
    """Tells whether the member may be evicted, because a command was overdue or the member's channel was deleted."""
    oldest = context.oldest_command.get((group.name, consumer))
    if oldest is None:
        return consumer not in group.commands
    elapsed = state.elapsed_ms(oldest, context.step)
    return elapsed is None or elapsed + _TOLERANCE_MS >= group.shortest_timeout_ms


def grace_faults(state: ZooKeeperState, context: StepContext, group: GroupState, consumer: str) -> Iterator[Fault]:
    """Checks that the place of ``consumer`` may be given away. ``group`` still has the consumer's ledger from before
    the step."""
    ledger = group.ledgers.get(consumer)
    if ledger is None or ledger.place is None or consumer in group.registrations or group.removing:
        return
    if consumer in group.given_up or consumer in group.unreadable_ledgers:
        return
    if _was_unreadable(state, context, group, consumer, other_than=ledger.incarnation):
        return  # the consumer came back with an unreadable registration, so the ledger's incarnation has ended
    since = group.gone_since.get((consumer, ledger.incarnation))
    elapsed = state.elapsed_ms(since, context.step) if since is not None else None
    if elapsed is not None and elapsed + _TOLERANCE_MS < ledger.place.rejoin_grace_ms:
        yield (
            Rule.GRACE_BROKEN,
            f"the place of {consumer} was given away {elapsed} ms after it left, but must be kept for"
            f" {ledger.place.rejoin_grace_ms} ms",
        )


def may_leave_out(state: ZooKeeperState, context: StepContext, group: GroupState, consumer: str) -> bool:
    """Tells whether a new target may omit ``consumer`` within its grace period. It may if the coordinator could not
    read the registration. Such a consumer is not a member, but still holds the partitions in its ledger."""
    return _was_unreadable(state, context, group, consumer)


def _was_unreadable(
    state: ZooKeeperState, context: StepContext, group: GroupState, consumer: str, other_than: int | None = None
) -> bool:
    """Tells whether the coordinator may not have read the registration of ``consumer`` since it was unreadable.
    Ignores the registration of incarnation ``other_than``."""
    until, incarnation = group.unreadable_until.get(consumer, (None, None))
    return until is not None and incarnation != other_than and not state.must_have_seen(until, context.step)
