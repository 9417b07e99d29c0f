"""Checks each new command and the ledger that changes with it."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_coord.model import (
    NO_PARTITIONS,
    Command,
    Ledger,
    Mode,
    PartitionSet,
    StartFetcher,
    StopFetcher,
    TopicPartition,
    is_identity,
    same_topic,
)
from kafka_coord.monitor.audit.report import AuditRule, Fault
from kafka_coord.monitor.audit.state import AuditedGroup, Outstanding, StepContext


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
    back."""
    after = group.ledgers.get(consumer)
    if after is None or consumer in group.unreadable_ledgers:
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
