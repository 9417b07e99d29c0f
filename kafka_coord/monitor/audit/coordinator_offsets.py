"""Checks that the coordinator sets or deletes offsets only with good reason: an operator's request, an awaited end, a
deleted topic, or expired retention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kafka_coord.model import PartitionSet, RequestType, TopicPartition, is_identity
from kafka_coord.monitor.audit.commands import held_by_anybody
from kafka_coord.monitor.audit.report import AuditRule, Fault
from kafka_coord.monitor.audit.state import AuditedGroup, StepContext
from kafka_coord.zk import layout

CLOCKS_DIFFER_MS = 60_000
"""The tolerated difference between two clocks, in ms. The coordinator measures retention by its own wall clock, but the
log carries the times of the ZooKeeper servers."""


def offset_set_faults(context: StepContext, group: AuditedGroup, tp: TopicPartition, offset: int) -> Iterator[Fault]:
    """Checks that an operator requested the new offset, and that no live consumer held the partition."""
    asked = any(request.offsets.get(tp) == offset for request in context.asked(group.name, RequestType.RESET_OFFSETS))
    if not asked:
        yield AuditRule.OPERATOR_WRITE_UNASKED, f"the coordinator set {tp} to {offset} without an operator's request"
    yield from _while_held(group, tp, f"set {tp} to {offset}")


def is_awaited_end(context: StepContext, group: AuditedGroup, tp: TopicPartition, before: int | None) -> bool:
    """Returns whether the step stores the first end of a partition that awaits it (ADR 40). The partition may be held,
    because its holder has no position yet."""
    awaited = layout.awaited_end(group.name, *tp)
    return before is None and any(change.path == awaited and change.new is None for change in context.step.changes)


def offset_deleted_faults(context: StepContext, group: AuditedGroup, tp: TopicPartition) -> Iterator[Fault]:
    """Checks that there was a legal reason to delete the offset: an operator requested it, the topic was deleted, the
    group was removed, or no member subscribed to the topic any more. In the last case, the offset had expired, which
    the log does not show: clients may set a retention of their own."""
    asked = any(tp in request.partitions for request in context.asked(group.name, RequestType.DELETE_OFFSETS))
    if asked:
        yield from _while_held(group, tp, f"deleted the offset of {tp}")
    elif not group.removing and not _of_a_deleted_topic(context, group, tp) and _is_needed(group, tp):
        what = f"the coordinator deleted the offset of {tp} without an operator's request"
        yield AuditRule.OPERATOR_WRITE_UNASKED, what
        yield from _while_held(group, tp, f"deleted the offset of {tp}")


def removal_faults(context: StepContext, group: AuditedGroup) -> Iterator[Fault]:
    """Checks that the coordinator may remove the group and its offsets. Must be called on the first deletion."""
    group.removing = True
    asked = any(True for _ in context.asked(group.name, RequestType.DELETE_GROUP))
    if group.registrations:
        yield AuditRule.LIVE_GROUP_REMOVED, f"the group was removed while {_names(group.registrations)} was registered"
        return
    if asked or _is_bare(group):
        return
    if group.ledgers:
        yield AuditRule.LIVE_GROUP_REMOVED, f"the group was removed while {_names(group.ledgers)} had a ledger"
    target, settings = group.target, group.settings
    if target is None or target.members:
        names = _names(target.members) if target is not None else "members that cannot be read"
        yield AuditRule.LIVE_GROUP_REMOVED, f"the group was removed while its target listed {names}"
        return
    retention = settings.retention(context.state.retention) if settings is not None else None
    if settings is None or retention is None:
        what = "the group was removed, although its settings, and therefore its retention, cannot be read"
        yield AuditRule.RETENTION_BROKEN, what
        return
    by_log = context.elapsed_ms(group.target_since) or 0
    empty_ms = max(by_log, context.step.time_ms - target.timestamp_ms)
    counted_ms = min(empty_ms, context.step.time_ms - retention.since_ms)
    if counted_ms + CLOCKS_DIFFER_MS < retention.in_force_ms:
        what = f"the group was removed after it had been empty for {empty_ms / 1000:.0f} s"
        kept_s = retention.in_force_ms / 1000
        yield AuditRule.RETENTION_BROKEN, f"{what}; its offsets should have been kept for {kept_s:.0f} s"


def _is_needed(group: AuditedGroup, tp: TopicPartition) -> bool:
    """Returns whether a member may still need the offset."""
    members = [one.member for one in group.registrations.values()]
    wanted = any(member is None or member.subscription.wants(tp.topic) for member in members)
    return wanted or any(True for _ in held_by_anybody(group, PartitionSet.of([tp])))


def _is_bare(group: AuditedGroup) -> bool:
    """Returns whether the group has neither members nor offsets."""
    has_members = group.ledgers or (group.target is not None and group.target.members)
    return not (has_members or group.offsets or group.unreadable_offsets)


def _of_a_deleted_topic(context: StepContext, group: AuditedGroup, tp: TopicPartition) -> bool:
    stored, now = group.identities.get(tp.topic, ""), context.state.topics.get(tp.topic)
    gone = tp.topic in context.state.deleted_topics if now is None else not now.is_same(stored)
    return tp in group.earlier_offsets or (is_identity(stored) and gone)


def _while_held(group: AuditedGroup, tp: TopicPartition, what: str) -> Iterator[Fault]:
    for consumer, _ in held_by_anybody(group, PartitionSet.of([tp])):
        yield AuditRule.OPERATOR_WRITE_WHILE_HELD, f"the coordinator {what} while {consumer} holds it"


def _names(consumers: Iterable[str]) -> str:
    return ", ".join(sorted(consumers)[:4])
