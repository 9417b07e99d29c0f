"""The rules of the audit for one group: its commands and ledgers, their acknowledgements, who holds a partition,
departures, the offsets that the coordinator writes, and the target that is reached at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kafka_coord.coordinator.plan.target import resolve
from kafka_coord.model import (
    NO_OFFSET,
    NO_PARTITIONS,
    Assignment,
    Command,
    Departure,
    Ledger,
    Mode,
    PartitionSet,
    RequestType,
    StartFetcher,
    StopFetcher,
    TopicInfo,
    TopicPartition,
    is_identity,
    same_topic,
)
from kafka_coord.monitor.audit.report import AuditRule, Fault
from kafka_coord.monitor.audit.state import AuditedGroup, Evicted, Instant, Outstanding, StepContext, ZooKeeperState
from kafka_coord.zk import layout


def command_faults(context: StepContext, group: AuditedGroup, consumer: str, written: Outstanding) -> Iterator[Fault]:
    """Checks a new command against the state after the step."""
    command, name = written.command, written.id.name
    if command is None:
        return
    key = (group.name, consumer)
    if key not in context.ledgers_before:
        yield AuditRule.SPLIT_UNIT, f"{name} was written without a change to the ledger of {consumer}"
    for other in group.outstanding(consumer):
        twice = other.id.type is written.id.type and other.id.name != name
        if twice and other.command is not None and other.command.incarnation == command.incarnation:
            yield AuditRule.TWO_COMMANDS, f"{name} was written for {consumer} while {other.id.name} is outstanding"
    yield from _paused(context, group, consumer, written)
    if isinstance(command, StartFetcher):
        yield from _eager_order(group, consumer, name)
        for tp in command.partitions:
            yield from _start_point(context, group, consumer, name, command, tp)
    else:
        yield from _needless_stop(context, group, consumer, name, command, context.ledgers_before.get(key))


def ledger_faults(context: StepContext, group: AuditedGroup, consumer: str, before: Ledger | None) -> Iterator[Fault]:
    """Yields a violation if the ledger changed without the matching command in the same step, or if its generation went
    back. The first ledgers in a group that becomes managed say what its members hold."""
    after = group.ledgers.get(consumer)
    if after is None or consumer in group.unreadable_ledgers or (context.in_term and before is None):
        return
    same = before is not None and before.incarnation == after.incarnation
    owned, stopping = (before.owned, before.stopping) if before is not None and same else (NO_PARTITIONS, NO_PARTITIONS)
    repaired = group.deleted_by_hand.pop(consumer, None)
    if before is None and repaired is not None and repaired.incarnation == after.incarnation:
        owned, stopping = repaired.held, repaired.held
    started = after.owned - owned - context.told(group.name, consumer, StartFetcher)
    if started:
        what = f"the ledger of {consumer} gained {started} without a start-fetcher in the same transaction"
        yield AuditRule.SPLIT_UNIT, what
    stopped = after.stopping - stopping - context.told(group.name, consumer, StopFetcher)
    if stopped:
        what = f"the ledger of {consumer} stops {stopped} without a stop-fetcher in the same transaction"
        yield AuditRule.SPLIT_UNIT, what
    if before is not None and after.generation < before.generation:
        what = f"the generation of the ledger of {consumer} went back from {before.generation} to {after.generation}"
        yield AuditRule.GENERATION_BACK, what


def _paused(context: StepContext, group: AuditedGroup, consumer: str, written: Outstanding) -> Iterator[Fault]:
    """Reports a command for a paused group, unless the pass that wrote it may have read the group before the pause.

    It cannot have done so if the pause began too long ago, or if the command responds to something that happened after
    the pause: a new incarnation, or a partition that became free. A start for a departed consumer is not evidence that
    a partition became free: the pass that wrote it had not even seen the departure.
    """
    command = written.command
    since = context.paused_since(group)
    if since is None or command is None:
        return
    starts = isinstance(command, StartFetcher) and (consumer, command.incarnation) not in group.gone_since
    freed = starts and any(group.freed.get(tp, 0) > since.zxid for tp in command.partitions)
    if command.incarnation > since.zxid or freed or context.must_have_seen(since):
        verb = "start" if isinstance(command, StartFetcher) else "stop"
        yield AuditRule.PAUSE_IGNORED, f"{consumer} was told to {verb} {command.partitions} while the group was paused"


def _eager_order(group: AuditedGroup, consumer: str, name: str) -> Iterator[Fault]:
    if not _is_eager(group, consumer):
        return
    generation = group.target.generation if group.target is not None else 0
    for other, registered in group.registrations.items():
        ledger = group.live(other)
        if not _is_eager(group, other) or ledger is None or other in group.unreadable_ledgers:
            continue
        for outstanding in group.outstanding(other):
            command = outstanding.command
            if isinstance(command, StopFetcher) and command.incarnation == registered.incarnation:
                what = f"{name} starts partitions on {consumer} before {other} has acknowledged {outstanding.id.name}"
                yield AuditRule.EAGER_ORDER, what
        if other != consumer and ledger.owned and ledger.generation < generation:
            what = f"{name} starts partitions on {consumer} while {other} still owns {ledger.owned}"
            yield AuditRule.EAGER_ORDER, f"{what} of generation {ledger.generation}"


def _is_eager(group: AuditedGroup, consumer: str) -> bool:
    registered = group.registrations.get(consumer)
    return registered is not None and registered.member is not None and registered.member.mode is Mode.EAGER


def _needless_stop(
    context: StepContext, group: AuditedGroup, consumer: str, name: str, command: Command, before: Ledger | None
) -> Iterator[Fault]:
    target, registered = group.target, group.registrations.get(consumer)
    if target is None or before is None or registered is None or registered.member is None:
        return
    stays = command.partitions & target.members.get(consumer, NO_PARTITIONS)
    if not stays or (registered.member.mode is Mode.EAGER and before.generation < target.generation):
        return
    stays = stays.filter(lambda topic: not _recreated(context, before, topic))
    if stays:
        what = f"{name} stops {stays} on {consumer}, which keeps it under the target of generation {target.generation}"
        yield AuditRule.NEEDLESS_STOP, what


def _recreated(context: StepContext, ledger: Ledger, topic: str) -> bool:
    """Returns whether ``topic`` has been deleted, and perhaps recreated, since the ledger gained its partitions."""
    now, held = context.state.topics.get(topic), ledger.topic_ids.get(topic)
    return held is not None and (now is None or not now.is_same(held))


def _start_point(
    context: StepContext,
    group: AuditedGroup,
    consumer: str,
    name: str,
    command: StartFetcher,
    tp: TopicPartition,
) -> Iterator[Fault]:
    since = group.unreadable_offsets.get(tp)
    if since is not None and (command.incarnation > since.zxid or context.must_have_seen(since)):
        yield AuditRule.UNREADABLE_START, f"{name} starts {tp} on {consumer}, but the stored offset cannot be read"
    if command.starts[tp].offset < 0:
        return
    ledger = group.ledgers.get(consumer)
    meant = ledger.topic_ids.get(tp.topic, "") if ledger is not None else ""
    stored = group.identities.get(tp.topic, "")
    if tp in group.earlier_offsets or (meant and is_identity(stored) and not same_topic(stored, meant)):
        what = f"{name} starts {tp} on {consumer} at offset {command.starts[tp].offset}"
        yield AuditRule.EARLIER_TOPIC, f"{what}, which belongs to a deleted topic of the same name"
        return
    now, created = context.state.topics.get(tp.topic), context.state.topics_since.get(tp.topic)
    recreated = now is not None and meant and not now.is_same(meant)
    if recreated and created is not None and context.must_have_seen(created):
        yield AuditRule.EARLIER_TOPIC, f"{name} starts {tp} on {consumer}, although its topic has been recreated"


def held_by_anybody(group: AuditedGroup, partitions: PartitionSet) -> Iterator[tuple[str, PartitionSet]]:
    """Yields each live consumer that holds some of ``partitions``, with those partitions. A partition whose stop has
    been acknowledged counts as released."""
    for consumer in group.ledgers:
        ledger = group.live(consumer)
        if ledger is None:
            continue
        stops = any(
            isinstance(one.command, StopFetcher) and one.command.incarnation == ledger.incarnation
            for one in group.outstanding(consumer)
        )
        held = (ledger.held if stops else ledger.owned) & partitions
        if held:
            yield consumer, held


def acknowledgement_faults(
    context: StepContext, group: AuditedGroup, consumer: str, removed: Outstanding
) -> Iterator[Fault]:
    """Checks that a command was removed legally. There are four legal cases:

    - A consumer acknowledges its oldest command and checks its registration and token.
    - An instance does the same for a consumer that has no ZooKeeper session.
    - A consumer drops a command for an earlier incarnation.
    - The coordinator removes the commands for a departed incarnation.
    """
    name, command, session = removed.id.name, removed.command, context.step.session_id
    registered = group.registrations.get(consumer)
    fenced = registered is not None and registered.session_id == 0 and context.fenced_as(group.name, consumer)
    if context.by_instance and not fenced:
        lives = registered is not None and (group.name, consumer) not in context.gone
        if lives and command is not None and registered is not None and command.incarnation == registered.incarnation:
            what = f"an instance removed {name} of {consumer}, which is alive and has not acknowledged it"
            yield AuditRule.ACK_BY_ANOTHER, what
        return
    if command is None:
        yield AuditRule.ACK_BY_ANOTHER, f"{name} of {consumer} was removed, although it cannot be read"
        return
    by_member = registered is not None and (registered.session_id == session or fenced)
    if registered is None or not by_member:
        if command.incarnation < context.state.incarnations.get((session, group.name, consumer), 0):
            return  # the incarnation that dropped the command has been evicted, so nobody is waiting for it any longer
        owner = context.state.names.of(registered.session_id) if registered is not None else ""
        why = f"is registered by {owner}" if owner else "is not registered"
        yield AuditRule.ACK_BY_ANOTHER, f"a session other than the consumer's removed {name} of {consumer}, which {why}"
        return
    if command.incarnation < registered.incarnation:
        return
    if command.incarnation > registered.incarnation:
        what = f"{name} is for incarnation {command.incarnation} of {consumer}"
        yield AuditRule.ACK_BY_ANOTHER, f"{what}, but incarnation {registered.incarnation} removed it"
        return
    if not context.fenced_as(group.name, consumer):
        yield AuditRule.ACK_UNFENCED, f"{consumer} acknowledged {name} without checking its registration and its token"
    waiting = [
        other.id.name
        for other in group.outstanding(consumer)
        if other.id.sequence < removed.id.sequence
        and layout.command(group.name, consumer, other.id.name) not in context.removed
    ]
    if waiting:
        what = f"{consumer} acknowledged {name} while {', '.join(sorted(waiting))} was outstanding"
        yield AuditRule.ACK_OUT_OF_ORDER, what


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
    grace_ms = ledger.place.grace_ms(Departure.read(group.farewells.get(consumer, b""), consumer))
    if elapsed is not None and elapsed + _TOLERANCE_MS < grace_ms:
        what = f"the place of {consumer} was given away {elapsed} ms after it left"
        yield AuditRule.GRACE_BROKEN, f"{what}, but should have been kept for {grace_ms} ms"


def was_unreadable(context: StepContext, group: AuditedGroup, consumer: str, other_than: int | None = None) -> bool:
    """Returns whether the coordinator may still consider the registration of ``consumer`` unreadable, even though it
    was repaired or removed. A consumer with an unreadable registration is not a member, but still holds the partitions
    in its ledger. Ignores an unreadable registration of incarnation ``other_than``."""
    until, incarnation = group.unreadable_until.get(consumer, (None, None))
    return until is not None and incarnation != other_than and not context.must_have_seen(until)


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
