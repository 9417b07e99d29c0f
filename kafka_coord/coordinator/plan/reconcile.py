"""Moves members to their targets by stopping partitions and then starting them. Each start follows the release that it
needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from kafka_coord.coordinator.plan.member_update import (
    MAX_WRITE_BYTES,
    MemberUpdate,
    ledger_bytes,
    stale_topics,
    start_fits,
    stop_fits,
)
from kafka_coord.coordinator.plan.membership import GroupMembership, unreadable_offsets
from kafka_coord.coordinator.steps import WriteLedgerAndCommands
from kafka_coord.model import NO_PARTITIONS, Assignment, Ledger, Mode, Observation, PartitionSet, TopicPartition
from kafka_coord.zk import layout


@dataclass(slots=True)
class Reconciliation:
    """The writes for live members, and the acknowledgements that the group will then be waiting for."""

    steps: list[WriteLedgerAndCommands] = field(default_factory=list)
    told_to_stop: dict[str, PartitionSet] = field(default_factory=dict)
    told_to_start: dict[str, PartitionSet] = field(default_factory=dict)
    stopping: dict[str, PartitionSet] = field(default_factory=dict)
    starting: dict[str, PartitionSet] = field(default_factory=dict)
    """The owned partitions of each consumer that has yet to acknowledge a start-fetcher for any of them."""
    withheld: PartitionSet = NO_PARTITIONS
    """The partitions of the target that no readable ledger holds. They are not started, because an unreadable ledger
    may hold them."""
    blocked: PartitionSet = NO_PARTITIONS
    """The partitions that would be started if their committed offsets were readable. Guessing an offset could skip
    records."""
    complaints: list[str] = field(default_factory=list)
    in_line: bool = True
    """Whether every live member will own exactly its target, with no command outstanding."""


def reconcile(
    observation: Observation,
    membership: GroupMembership,
    updates: Mapping[str, MemberUpdate],
    others: Iterable[Ledger],
    target: Assignment | None,
    *,
    moving: bool,
    evicted: frozenset[str],
    starting: bool,
    decides_streams: bool,
) -> Reconciliation:
    """Plans the writes for live members. ``others`` contains the resulting ledgers of all other consumers, whose
    partitions count as held. If ``moving`` is false, only releases are planned. If ``starting`` is false, no partitions
    are started, because this pass changes offsets; the next pass starts the partitions at the new offsets."""
    reconciled = Reconciliation()
    staying = {consumer: update for consumer, update in updates.items() if consumer not in evicted}
    if target is not None and moving:
        for update in staying.values():
            _decide_stop(update, target, observation, reconciled)
        unreadable = membership.held_by_unreadable(observation)
        stale = stale_topics([*(update.ledger for update in updates.values()), *unreadable], observation.topics)
        wanted = _wanted(staying, updates.values(), target, observation, stale) if starting else {}
        _decide_starts(
            staying, wanted, [*(d.ledger for d in updates.values()), *others], observation, membership, reconciled
        )
    named = target.members.keys() if target is not None else frozenset()
    writing = {
        consumer: update
        for consumer, update in staying.items()
        if update.stop
        or update.start
        or update.drop_commands
        or (update.changes_ledger and (update.seen is not None or consumer in named))
    }
    for consumer in _in_order(writing):
        update = writing[consumer]
        step = update.write(target, observation, decides_streams=decides_streams)
        reconciled.steps.append(step)
    _summarise(staying, target, reconciled)
    return reconciled


def _decide_stop(
    update: MemberUpdate, target: Assignment, observation: Observation, reconciled: Reconciliation
) -> None:
    if update.stop_outstanding:
        return
    owned = update.ledger.owned
    if update.is_behind(target):
        beyond = owned
    else:
        beyond = owned - target.members.get(update.consumer, NO_PARTITIONS)
        stale = stale_topics([update.ledger], observation.topics)
        if stale:
            beyond = beyond | owned.filter(stale.__contains__)
    if beyond:
        update.stop = stop_fits(beyond, MAX_WRITE_BYTES - ledger_bytes(update.ledger))
        if not update.stop:
            reconciled.complaints.append(
                f"the ledger of {update.consumer} is too large to be written with a command; evict that consumer"
            )


def _wanted(
    staying: Mapping[str, MemberUpdate],
    all_updates: Iterable[MemberUpdate],
    target: Assignment,
    observation: Observation,
    stale: frozenset[str],
) -> dict[str, PartitionSet]:
    """Returns the partitions that each member may start if no other member holds them.

    Leaves out ``stale`` topics until every consumer has released the partitions of the deleted topic. Until then, a
    consumer may still commit offsets of the deleted topic, which are removed only by the first start on the new one.
    """
    behind = any(d.is_behind(target) or (d.member.mode is Mode.EAGER and d.ledger.stopping) for d in all_updates)
    wanted = {}
    for consumer, update in staying.items():
        if update.start_outstanding or (behind and update.member.mode is Mode.EAGER):
            continue
        missing = target.members.get(consumer, NO_PARTITIONS) - update.ledger.held
        if missing:
            missing = PartitionSet(
                {
                    topic: numbers & observation.topics[topic].partitions
                    for topic, numbers in missing.by_topic()
                    if topic in observation.topics and topic not in stale
                }
            )
        if missing:
            wanted[consumer] = missing
    return wanted


def _decide_starts(
    staying: Mapping[str, MemberUpdate],
    wanted: Mapping[str, PartitionSet],
    holders: Iterable[Ledger],
    observation: Observation,
    membership: GroupMembership,
    reconciled: Reconciliation,
) -> None:
    if not wanted:
        return
    everything = PartitionSet.union(wanted.values())
    taken = PartitionSet.union(ledger.held & everything for ledger in holders)
    free = everything - taken
    if membership.ledger_unreadable:
        accounted_for = PartitionSet.union(ledger.held & everything for ledger in observation.ledgers.values())
        reconciled.withheld = free - accounted_for
        free = free & accounted_for
    reconciled.blocked = free & without_offset(observation)
    free = free - reconciled.blocked
    for consumer, partitions in wanted.items():
        update = staying[consumer]
        start = partitions & free
        if start:
            # the stop command and the ledger both list the stopping partitions, at up to eight bytes each (number plus
            # comma), hence 16
            ledger = ledger_bytes(update.ledger) + len(update.stop) * 16
            update.start = start_fits(start, ledger, MAX_WRITE_BYTES - ledger)
            if not update.start:
                reconciled.complaints.append(f"the ledger of {consumer} has no room for more partitions; add members")


def without_offset(observation: Observation) -> PartitionSet:
    """Returns the partitions whose committed offset, or whose topic's identity, is unreadable."""
    blocked: dict[str, set[int]] = {}
    for unreadable in unreadable_offsets(observation):
        name, _, number = unreadable.path.removeprefix(layout.offsets(observation.group) + "/").partition("/")
        if name in observation.topics:
            of_topic = blocked.setdefault(name, set())
            if not number:
                of_topic |= observation.topics[name].partitions
            elif number.isdecimal():
                of_topic.add(int(number))
    return PartitionSet(blocked)


def _in_order(writing: Mapping[str, MemberUpdate]) -> list[str]:
    """Returns the consumers in the order in which to write their updates: first those that only release or stop
    partitions, then the others, each after the releases that it needs.

    If two updates need each other's releases, the first leaves out the starts that need the second, and a later pass
    adds them.
    """
    first = [consumer for consumer, update in writing.items() if not update.start]
    starting = {consumer: update for consumer, update in writing.items() if update.start}
    needs = _needs(starting)
    needed_by: dict[str, list[str]] = {}
    for consumer, found in needs.items():
        for other in found:
            needed_by.setdefault(other, []).append(consumer)
    open_needs = {consumer: set(needs.get(consumer, ())) for consumer in starting}
    ready = [consumer for consumer, found in open_needs.items() if not found]
    heapify(ready)
    order = []
    while open_needs:
        if not ready:
            consumer = _in_a_cycle(open_needs)
            late = {p for other in open_needs[consumer] for p in needs[consumer][other]}
            starting[consumer].start = starting[consumer].start - PartitionSet.of(late)
            open_needs[consumer].clear()
            heappush(ready, consumer)
        consumer = heappop(ready)
        del open_needs[consumer]
        order.append(consumer)
        for other in needed_by.get(consumer, ()):
            if other in open_needs and consumer in open_needs[other]:
                open_needs[other].discard(consumer)
                if not open_needs[other]:
                    heappush(ready, other)
    return first + order


def _needs(starting: Mapping[str, MemberUpdate]) -> dict[str, dict[str, list[TopicPartition]]]:
    """Maps each consumer to the releases that its starts need, grouped by the releasing consumer. Ignores consumers
    that start no partitions."""
    started = PartitionSet.union(update.start for update in starting.values())
    released_by = {
        partition: consumer
        for consumer, update in starting.items()
        if update.released
        for partition in update.released & started
    }
    needs: dict[str, dict[str, list[TopicPartition]]] = {}
    if released_by:
        releases = PartitionSet.of(released_by)
        for consumer, update in starting.items():
            for partition in update.start & releases:
                if released_by[partition] != consumer:
                    needs.setdefault(consumer, {}).setdefault(released_by[partition], []).append(partition)
    return needs


def _in_a_cycle(open_needs: Mapping[str, set[str]]) -> str:
    """Follows the needs from the first consumer until it reaches a consumer a second time. Returns that consumer, which
    must be part of a cycle."""
    consumer = min(open_needs)
    seen = set()
    while consumer not in seen:
        seen.add(consumer)
        consumer = min(open_needs[consumer])
    return consumer


def _summarise(staying: Mapping[str, MemberUpdate], target: Assignment | None, reconciled: Reconciliation) -> None:
    for consumer, update in staying.items():
        if update.stop:
            reconciled.told_to_stop[consumer] = update.stop
        elif update.stop_outstanding:
            reconciled.stopping[consumer] = update.ledger.stopping
        if update.start:
            reconciled.told_to_start[consumer] = update.start
        elif update.start_outstanding:
            reconciled.starting[consumer] = update.ledger.owned
        owned = (update.ledger.owned - update.stop) | update.start
        mine = target.members.get(consumer, NO_PARTITIONS) if target is not None else NO_PARTITIONS
        busy = update.stop or update.start or update.stop_outstanding or update.start_outstanding
        if busy or owned != mine:
            reconciled.in_line = False
        if update.place_too_large:
            reconciled.complaints.append(
                f"the registration of {consumer} is too large, so its rejoin_grace_ms is ignored"
            )
