"""Releases partitions whose stop was acknowledged, and partitions that an earlier incarnation held.

A consumer acknowledges a stop by deleting the command, so ``stopping`` partitions without a stop command are
acknowledged.
"""

from __future__ import annotations

from msgspec import structs

from kafka_coord.coordinator.plan.member_update import MemberUpdate
from kafka_coord.coordinator.plan.membership import GroupMembership, is_dead, outstanding
from kafka_coord.coordinator.plan.sizes import MAX_PLACE_BYTES
from kafka_coord.model import NO_PARTITIONS, CommandType, Ledger, Member, Observation
from kafka_coord.model.json_fields import dump


def member_update_of(observation: Observation, consumer: str, member: Member) -> MemberUpdate:
    """Returns the update for a live consumer whose ledger is readable or missing. At this stage, it only releases
    partitions."""
    channel = outstanding(observation, consumer)
    place, too_large = _place(member)
    seen = observation.ledgers.get(consumer)
    if seen is None or is_dead(seen, member):
        # this incarnation must not carry out commands for an earlier incarnation
        fresh = Ledger(
            consumer,
            member.incarnation,
            generation=seen.generation if seen is not None else 0,
            place=place,
            session_timeout_ms=member.session_timeout_ms,
        )
        released = seen.held if seen is not None else NO_PARTITIONS
        drop = tuple(command.name for command in channel.commands)
        if seen is not None:
            fresh = structs.replace(fresh, znode_version=seen.znode_version)
        return MemberUpdate(member, seen, fresh, released, drop, False, False, place_too_large=too_large)
    stop = any(command.type is CommandType.STOP_FETCHER for command in channel.commands)
    start = any(command.type is CommandType.START_FETCHER for command in channel.commands)
    released = NO_PARTITIONS if stop else seen.stopping
    ledger = seen if seen.place == place else structs.replace(seen, place=place)
    if released:
        ledger = structs.replace(ledger, stopping=NO_PARTITIONS)
    return MemberUpdate(member, seen, ledger, released, (), stop, start, place_too_large=too_large)


def member_updates(observation: Observation, membership: GroupMembership) -> dict[str, MemberUpdate]:
    """Returns the update for each live consumer (see :func:`member_update_of`), sorted by name. Leaves out consumers
    whose ledger cannot be read."""
    return {
        consumer: member_update_of(observation, consumer, membership.live[consumer])
        for consumer in sorted(membership.live.keys() - set(membership.ledger_unreadable))
    }


def _place(member: Member) -> tuple[Member | None, bool]:
    if not member.rejoin_grace_ms:
        return None, False
    few = member.subscription.is_wildcard or len(member.subscription.topics) < 500
    if few or len(dump(member.to_json())) <= MAX_PLACE_BYTES:
        return member, False
    return None, True
