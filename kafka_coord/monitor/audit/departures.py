"""Checks evictions, and that a departed member's place stays reserved for its grace period."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_coord.model import NO_PARTITIONS, PartitionSet, RequestType, StartFetcher, StopFetcher
from kafka_coord.monitor.audit.report import AuditRule, Fault
from kafka_coord.monitor.audit.state import AuditedGroup, Evicted, Instant, StepContext

_TOLERANCE_MS = 200
"""The tolerated difference between two clocks, in ms. Timers use the coordinator's monotonic clock, but the log carries
the wall-clock times of the ZooKeeper servers."""


def eviction_faults(context: StepContext, group: AuditedGroup, consumer: str, evicted: Evicted) -> Iterator[Fault]:
    """Checks an eviction against the state after the step."""
    asked = any(request.consumer == consumer for request in context.asked(group.name, RequestType.EVICT))
    since, (incarnation, ledger, oldest) = context.paused_since(group), evicted
    if not asked:
        if since is not None and (incarnation > since.zxid or context.must_have_seen(since)):
            what = f"{consumer} was evicted while the group was paused, although no operator requested it"
            yield AuditRule.PAUSE_IGNORED, what
        if not _is_overdue(context, group, consumer, oldest):
            what = f"{consumer} was evicted, although no operator requested it, and none of its commands had been"
            yield (
                AuditRule.EVICTED_EARLY,
                f"{what} outstanding for the timeout of {group.shortest_timeout_ms / 1000:g} s",
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
        what = f"{taken | given} was taken from {consumer} in the transaction that evicted it"
        yield AuditRule.EVICTED_AND_RELEASED, f"{what}, before anyone could have known that its registration was gone"


def _is_overdue(context: StepContext, group: AuditedGroup, consumer: str, oldest: Instant | None) -> bool:
    """Returns whether the member may be evicted: its oldest command was overdue, or may have been, or its channel was
    deleted."""
    if oldest is None:
        return consumer not in group.commands
    elapsed = context.elapsed_ms(oldest)
    return elapsed is None or elapsed + _TOLERANCE_MS >= group.shortest_timeout_ms


def grace_faults(context: StepContext, group: AuditedGroup, consumer: str) -> Iterator[Fault]:
    """Checks that the place of ``consumer`` may be given away. ``group`` must still contain the consumer's ledger from
    before the step."""
    ledger = group.ledgers.get(consumer)
    if ledger is None or ledger.place is None or consumer in group.registrations or group.removing:
        return
    if consumer in group.given_up or consumer in group.unreadable_ledgers:
        return
    if was_unreadable(context, group, consumer, other_than=ledger.incarnation):
        return  # the consumer came back with an unreadable registration, so the ledger's incarnation has ended
    since = group.gone_since.get((consumer, ledger.incarnation))
    elapsed = context.elapsed_ms(since) if since is not None else None
    if elapsed is not None and elapsed + _TOLERANCE_MS < ledger.place.rejoin_grace_ms:
        what = f"the place of {consumer} was given away {elapsed} ms after it left"
        yield AuditRule.GRACE_BROKEN, f"{what}, but should have been kept for {ledger.place.rejoin_grace_ms} ms"


def was_unreadable(context: StepContext, group: AuditedGroup, consumer: str, other_than: int | None = None) -> bool:
    """Returns whether the coordinator may still consider the registration of ``consumer`` unreadable, even though it
    was repaired or removed. A consumer with an unreadable registration is not a member, but still holds the partitions
    in its ledger. Ignores an unreadable registration of incarnation ``other_than``."""
    until, incarnation = group.unreadable_until.get(consumer, (None, None))
    return until is not None and incarnation != other_than and not context.must_have_seen(until)
