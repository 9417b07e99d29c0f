"""Checks that, by the end of the log, every group has reached its target, and that the target is complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kafka_coord.coordinator.plan.inputs import resolve
from kafka_coord.model import NO_PARTITIONS, Assignment, PartitionSet, TopicInfo
from kafka_coord.monitor.audit.state import AuditedGroup, ZooKeeperState


def unsettled(state: ZooKeeperState) -> Iterator[tuple[str, str]]:
    """Yields each group that has not reached its target, with the reasons. Skips paused groups and groups without
    members."""
    for name, group in sorted(state.groups.items()):
        if state.all_paused_since or group.paused_since or not group.registrations:
            continue
        reasons = list(_of_group(group, state.topics))
        if reasons:
            more = f", and {len(reasons) - 5} more" if len(reasons) > 5 else ""
            yield name, "; ".join(reasons[:5]) + more


def _of_group(group: AuditedGroup, topics: Mapping[str, TopicInfo]) -> Iterator[str]:
    target = group.target
    if target is None:
        yield f"{len(group.registrations)} members, but no target"
        return
    for consumer, registered in sorted(group.registrations.items()):
        if consumer not in target.members:
            yield f"{consumer} is registered, but not in the target of generation {target.generation}"
            continue
        for outstanding in group.outstanding(consumer):
            command = outstanding.command
            if command is None or command.incarnation >= registered.incarnation:
                yield f"{outstanding.id.name} of {consumer} is not acknowledged"
        yield from _of_member(group, target, consumer)
    for consumer in sorted(target.members.keys() - group.registrations.keys()):
        ledger = group.ledgers.get(consumer)
        if target.members[consumer] and (ledger is None or ledger.place is None):
            yield f"the target gives {target.members[consumer]} to {consumer}, which is not registered"
    meant = PartitionSet.of(tp for owned in target.members.values() for tp in owned)
    left_out = _subscribed(group, topics) - meant
    if left_out:
        yield f"{left_out} has subscribers, but no owner in the target"


def _of_member(group: AuditedGroup, target: Assignment, consumer: str) -> Iterator[str]:
    wanted, ledger = target.members[consumer], group.live(consumer)
    owned = ledger.owned if ledger is not None else NO_PARTITIONS
    if ledger is not None and ledger.stopping:
        yield f"{consumer} is still stopping {ledger.stopping}"
    if wanted - owned:
        yield f"{consumer} has not received {wanted - owned}"
    if owned - wanted:
        yield f"{consumer} still owns {owned - wanted}"


def _subscribed(group: AuditedGroup, topics: Mapping[str, TopicInfo]) -> PartitionSet:
    """Returns the subscribed partitions. Members with an unreadable registration do not count as subscribers."""
    members = {
        consumer: registered.member
        for consumer, registered in group.registrations.items()
        if registered.member is not None
    }
    wanted = {topic for found in resolve(members, topics).values() for topic in found}
    return PartitionSet({topic: topics[topic].partitions for topic in wanted})
