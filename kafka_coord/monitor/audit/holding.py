"""Checks that a partition has at most one holder, is started only by its owner, and is released only after its stop."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_coord.model import NO_OFFSET, NO_PARTITIONS, Ledger, PartitionSet, StartFetcher, StopFetcher
from kafka_coord.monitor.audit.report import AuditRule, Fault
from kafka_coord.monitor.audit.state import AuditedGroup, Outstanding, StepContext


def granted_faults(group: AuditedGroup, consumer: str, added: PartitionSet) -> Iterator[Fault]:
    """Checks ``added``, the partitions that the consumer's ledger gained, against the group's state after the step."""
    for tp in added:
        others = " and ".join(name for name in group.live_holders(tp) if name != consumer)
        dead = [name for name in group.holders.get(tp, ()) if name != consumer]
        if others:
            yield AuditRule.TWO_HOLDERS, f"{tp} was given to {consumer} while held by {others}"
        elif dead:
            kept = any(group.ledgers[name].place is not None for name in dead)
            what = (
                f"{tp} was given to {consumer} while the ledger of {' and '.join(dead)}, which is gone, still lists it"
            )
            yield AuditRule.GRACE_BROKEN if kept else AuditRule.TWO_LEDGERS, what


def released_by(before: Ledger, after: Ledger | None) -> PartitionSet:
    """Returns the partitions that the ledger of a live incarnation no longer lists."""
    kept = after.held if after is not None and after.incarnation == before.incarnation else NO_PARTITIONS
    return before.held - kept


def released_faults(group: AuditedGroup, consumer: str, before: Ledger, released: PartitionSet) -> Iterator[Fault]:
    """Checks that a live member loses only partitions whose stop it has acknowledged."""
    unstopped = released - before.stopping
    if unstopped:
        yield AuditRule.RELEASED_EARLY, f"{consumer} is alive and lost {unstopped}, which it was never told to stop"
    for outstanding in group.outstanding(consumer):
        command = outstanding.command
        if isinstance(command, StopFetcher) and command.incarnation == before.incarnation:
            early = released & command.partitions
            if early:
                what = f"{early} was taken from {consumer} before it acknowledged {outstanding.id.name}"
                yield AuditRule.RELEASED_EARLY, what


def start_faults(context: StepContext, group: AuditedGroup, consumer: str, started: Outstanding) -> Iterator[Fault]:
    """Checks that a start-fetcher lists only partitions that are in its consumer's ledger and that no other live
    consumer holds, and that it starts free partitions at their stored offsets."""
    command, name = started.command, started.id.name
    if not isinstance(command, StartFetcher):
        return
    ledger = group.ledgers.get(consumer)
    mine = ledger is not None and ledger.incarnation == command.incarnation
    unledgered = command.partitions - (ledger.owned if ledger is not None and mine else NO_PARTITIONS)
    if unledgered:
        yield AuditRule.START_WITHOUT_LEDGER, f"{name} starts {unledgered} on {consumer}, whose ledger does not list it"
    for tp, point in command.starts.items():
        stored = group.offsets.get(tp, NO_OFFSET)
        was_free = tp not in group.unreadable_offsets and (group.name, tp) in context.freed
        # An instance may store a first end while the start is written. The consumer then finds it, and begins there.
        just_listed = point.offset == NO_OFFSET and tp in group.first_ends
        if was_free and point.offset != stored and not just_listed:
            what = f"{name} starts {tp} on {consumer} at offset {point.offset}, but the stored offset is {stored}"
            yield AuditRule.START_ELSEWHERE, what
        others = [other for other in group.live_holders(tp) if other != consumer]
        if others:
            yield AuditRule.START_WHILE_HELD, f"{name} starts {tp} on {consumer} while held by {' and '.join(others)}"
