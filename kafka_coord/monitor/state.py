"""A group's state in one word, by the planner's own rule."""

from __future__ import annotations

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import Observation


def group_state(seen: Observation) -> GroupState:
    """What the coordinator's next pass would call the group.

    A member whose registration is new to the target, a target naming a consumer that is gone, an unacknowledged
    command, something owned beyond the target or named by it and not owned: each means there is work left.
    """
    if not seen.members and not seen.ledgers:
        return GroupState.EMPTY
    if seen.pause is not None:
        return GroupState.PAUSED
    return GroupState.STABLE if _settled(seen) else GroupState.REBALANCING


def _settled(seen: Observation) -> bool:
    target = seen.assignment
    if target is None or target.members.keys() != seen.members.keys() | seen.in_grace:
        return False
    for consumer, wanted in target.members.items():
        ledger = seen.ledgers.get(consumer)
        member = seen.members.get(consumer)
        if member is not None and ledger is not None and ledger.incarnation != member.incarnation:
            return False
        if wanted != (ledger.owned if ledger else wanted - wanted) or (ledger and ledger.stopping):
            return False
    orphans = seen.ledgers.keys() - target.members.keys()
    waiting = any(channel.commands for consumer, channel in seen.channels.items() if consumer in seen.members)
    return not orphans and not waiting
