"""Checks who removes each command, and when: a live incarnation acknowledges a command by removing it."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_coord.monitor.audit.report import AuditRule, Fault
from kafka_coord.monitor.audit.state import AuditedGroup, Outstanding, StepContext
from kafka_coord.zk import layout


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
