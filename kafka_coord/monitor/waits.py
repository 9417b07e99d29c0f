"""Describes the unacknowledged commands that a group is waiting for, their age, and what happens next. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_coord.coordinator.plan.reasons import partitions_text
from kafka_coord.model import CommandType
from kafka_coord.model.sequences import grouped
from kafka_coord.monitor.channel import WaitingCommand
from kafka_coord.monitor.moments import duration, lasting
from kafka_coord.monitor.snapshot import GroupSnapshot


def waits(
    snapshot: GroupSnapshot, waiting: Iterable[WaitingCommand], now_ms: int, elected_ms: int | None
) -> dict[str, str]:
    """Maps each live consumer with unacknowledged commands to a message about the oldest command, its age, and what
    happens next. ``elected_ms`` is the time when the coordinator was elected, or ``None`` if no coordinator makes
    decisions. Each new coordinator gives the consumer the full time limit again."""
    messages: dict[str, str] = {}
    seen = snapshot.observation
    of_consumer = grouped(waiting, lambda one: one.consumer)
    for consumer in sorted(of_consumer.keys() & snapshot.registrations.keys()):
        command = min(of_consumer[consumer], key=lambda one: one.since_ms)
        member = seen.members.get(consumer)
        verb = "stop" if command.id.type is CommandType.STOP_FETCHER else "start"
        task = f"to {verb} {partitions_text(command.partitions)}" if command.partitions else command.id.name
        host = f" on host {member.host}" if member is not None and member.host else ""
        text = f"{consumer}{host} has not acknowledged its command {task} {lasting(command.since_ms, now_ms)}"
        if seen.pause is not None:
            messages[consumer] = f"{text}; it is not evicted while the group is paused"
            continue
        if elected_ms is None:
            messages[consumer] = f"{text}; it is not evicted while no coordinator makes decisions"
            continue
        left_ms = (
            seen.settings.rebalance_timeout_for(member, command.id.type)
            if member is not None
            else seen.settings.rebalance_timeout_ms
        ) - (now_ms - max(command.since_ms, elected_ms))
        messages[consumer] = (
            f"{text}; the coordinator evicts it in {duration(left_ms)}"
            if left_ms > 0
            else f"{text}, longer than its rebalance timeout, so the coordinator evicts it now"
        )
    return messages
