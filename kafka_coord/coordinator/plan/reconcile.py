"""From what members hold to what the target names: stops, then starts, each write after the release it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from kafka_coord.coordinator.plan.member_update import Draft, stale_topics
from kafka_coord.coordinator.plan.membership import Standing, unreadable_offsets
from kafka_coord.coordinator.plan.sizes import MAX_WRITE_BYTES, ledger_bytes, start_fits, stop_fits
from kafka_coord.coordinator.steps import WriteLedger
from kafka_coord.model import NO_PARTITIONS, Assignment, Ledger, Mode, Observation, PartitionSet, TopicPartition
from kafka_coord.zk import layout


@dataclass(slots=True)
class Moves:
    """What is written to live members, and what the group waits for afterwards."""

    steps: list[WriteLedger] = field(default_factory=list)
    told_to_stop: dict[str, PartitionSet] = field(default_factory=dict)
    told_to_start: dict[str, PartitionSet] = field(default_factory=dict)
    stopping: dict[str, PartitionSet] = field(default_factory=dict)
    starting: list[str] = field(default_factory=list)
    withheld: PartitionSet = NO_PARTITIONS
    """Named by the target and held by nobody we know of, and yet not started: an unreadable ledger may name them."""
    blocked: PartitionSet = NO_PARTITIONS
    """The same, where a committed offset is unreadable: any guess could skip records."""
    complaints: list[str] = field(default_factory=list)
    in_line: bool = True
    """Every live member will own exactly its target, with nothing outstanding."""


def move(
    observation: Observation,
    standing: Standing,
    drafts: Mapping[str, Draft],
    others: Iterable[Ledger],
    target: Assignment | None,
    *,
    moving: bool,
    evicted: frozenset[str],
    starting: bool,
    decides_streams: bool,
) -> Moves:
    """Plans the writes to live members. ``others`` are ledgers of consumers nothing is written to, as they will be
    then; what they hold is held. With ``moving`` false only releases are written, and without ``starting``
    nothing is started: offsets are being set, and the next look starts there."""
    moves = Moves()
    staying = {consumer: draft for consumer, draft in drafts.items() if consumer not in evicted}
    if target is not None and moving:
        for draft in staying.values():
            _decide_stop(draft, target, observation, moves)
        muted = [observation.ledgers[consumer] for consumer in standing.muted if consumer in observation.ledgers]
        stale = stale_topics([*(draft.ledger for draft in drafts.values()), *muted], observation.topics)
        wanted = _wanted(staying, drafts.values(), target, observation, stale) if starting else {}
        _decide_starts(staying, wanted, [*(d.ledger for d in drafts.values()), *others], observation, standing, moves)
    named = target.members.keys() if target is not None else frozenset()
    writing = {
        consumer: draft
        for consumer, draft in staying.items()
        if draft.stop
        or draft.start
        or draft.drop_commands
        or (draft.changes_ledger and (draft.seen is not None or consumer in named))
    }
    for consumer in _in_order(writing):
        draft = writing[consumer]
        step = draft.write(target, observation, decides_streams=decides_streams)
        moves.steps.append(step)
    _summarise(staying, target, moves)
    return moves


def _decide_stop(draft: Draft, target: Assignment, observation: Observation, moves: Moves) -> None:
    if draft.stop_outstanding:
        return
    owned = draft.ledger.owned
    if draft.is_behind(target):
        beyond = owned
    else:
        beyond = owned - target.members.get(draft.consumer, NO_PARTITIONS)
        stale = stale_topics([draft.ledger], observation.topics)
        if stale:
            beyond = beyond | owned.filter(stale.__contains__)
    if beyond:
        draft.stop = stop_fits(beyond, MAX_WRITE_BYTES - ledger_bytes(draft.ledger))
        if not draft.stop:
            moves.complaints.append(
                f"the ledger of {draft.consumer} is too large to be written with a command: evict it"
            )


def _wanted(
    staying: Mapping[str, Draft],
    all_drafts: Iterable[Draft],
    target: Assignment,
    observation: Observation,
    stale: frozenset[str],
) -> dict[str, PartitionSet]:
    """What each member may be started on as far as it alone is concerned.

    Nothing of a ``stale`` topic: while anybody alive still holds a partition of a topic's predecessor, it will commit
    an offset of the predecessor, and the first start on the new topic is what removes those.
    """
    behind = any(d.is_behind(target) or (d.member.mode is Mode.EAGER and d.ledger.stopping) for d in all_drafts)
    wanted = {}
    for consumer, draft in staying.items():
        if draft.start_outstanding or (behind and draft.member.mode is Mode.EAGER):
            continue
        missing = target.members.get(consumer, NO_PARTITIONS) - draft.ledger.held
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
    staying: Mapping[str, Draft],
    wanted: Mapping[str, PartitionSet],
    holders: Iterable[Ledger],
    observation: Observation,
    standing: Standing,
    moves: Moves,
) -> None:
    if not wanted:
        return
    everything = PartitionSet.union(wanted.values())
    taken = PartitionSet.union(ledger.held & everything for ledger in holders)
    free = everything - taken
    if standing.opaque:
        accounted_for = PartitionSet.union(ledger.held & everything for ledger in observation.ledgers.values())
        moves.withheld = free - accounted_for
        free = free & accounted_for
    moves.blocked = free & without_offset(observation)
    free = free - moves.blocked
    for consumer, partitions in wanted.items():
        draft = staying[consumer]
        start = partitions & free
        if start:
            # the stop repeats what the ledger names; eight bytes bound a number and its comma
            ledger = ledger_bytes(draft.ledger) + len(draft.stop) * 16
            draft.start = start_fits(start, ledger, MAX_WRITE_BYTES - ledger)
            if not draft.start:
                moves.complaints.append(f"the ledger of {consumer} has no room for more partitions: add members")


def without_offset(observation: Observation) -> PartitionSet:
    """The partitions whose committed offset is unreadable: its own znode, or the topic's, which says whose it is."""
    found: dict[str, set[int]] = {}
    for unreadable in unreadable_offsets(observation):
        name, _, number = unreadable.path.removeprefix(layout.offsets(observation.group) + "/").partition("/")
        if name in observation.topics:
            of_topic = found.setdefault(name, set())
            if not number:
                of_topic |= observation.topics[name].partitions
            elif number.isdecimal():
                of_topic.add(int(number))
    return PartitionSet(found)


def _in_order(writing: Mapping[str, Draft]) -> list[str]:
    """Writes that only release or stop come first; then those that start, each after the releases it needs.

    Where two writes need each other's release, one is written without those starts: they follow in a later pass.
    """
    first = [consumer for consumer, draft in writing.items() if not draft.start]
    starting = {consumer: draft for consumer, draft in writing.items() if draft.start}
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


def _needs(starting: Mapping[str, Draft]) -> dict[str, dict[str, list[TopicPartition]]]:
    """consumer → other consumer that starts something too → what of the other's releases it starts."""
    started = PartitionSet.union(draft.start for draft in starting.values())
    released_by = {
        partition: consumer
        for consumer, draft in starting.items()
        if draft.released
        for partition in draft.released & started
    }
    needs: dict[str, dict[str, list[TopicPartition]]] = {}
    if released_by:
        releases = PartitionSet.of(released_by)
        for consumer, draft in starting.items():
            for partition in draft.start & releases:
                if released_by[partition] != consumer:
                    needs.setdefault(consumer, {}).setdefault(released_by[partition], []).append(partition)
    return needs


def _in_a_cycle(open_needs: Mapping[str, set[str]]) -> str:
    """Follows needs from the first consumer until one comes again: that one is in a cycle."""
    consumer = min(open_needs)
    seen = set()
    while consumer not in seen:
        seen.add(consumer)
        consumer = min(open_needs[consumer])
    return consumer


def _summarise(staying: Mapping[str, Draft], target: Assignment | None, moves: Moves) -> None:
    for consumer, draft in staying.items():
        if draft.stop:
            moves.told_to_stop[consumer] = draft.stop
        elif draft.stop_outstanding:
            moves.stopping[consumer] = draft.ledger.stopping
        if draft.start:
            moves.told_to_start[consumer] = draft.start
        elif draft.start_outstanding:
            moves.starting.append(consumer)
        owned = (draft.ledger.owned - draft.stop) | draft.start
        mine = target.members.get(consumer, NO_PARTITIONS) if target is not None else NO_PARTITIONS
        busy = draft.stop or draft.start or draft.stop_outstanding or draft.start_outstanding
        if busy or owned != mine:
            moves.in_line = False
        if draft.place_too_large:
            moves.complaints.append(f"the registration of {consumer} is too large for its place to be kept")
