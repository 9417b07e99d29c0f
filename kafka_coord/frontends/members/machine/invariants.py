"""The invariants of the machine, which hold after every stimulus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_coord.frontends.members.machine.state import AcknowledgeWrite, MemberState

if TYPE_CHECKING:
    from kafka_coord.frontends.members.machine.machine import MembershipMachine


class InvariantBroken(AssertionError):
    """An invariant is broken, so the machine has a defect. The message ends with the events that led to it."""


def check(machine: MembershipMachine) -> None:
    """Checks every invariant. Raises :class:`InvariantBroken`."""
    for connection, member in machine.connections.items():
        _require(machine, member, machine.is_current(member), "a connection names a member that does not exist")
        _require(machine, member, member.connection == connection, "a connection's member is on another connection")
        _require(
            machine, member, connection not in machine.registering, "a connection that has a member is registering"
        )
    for member in machine.members.values():
        for broken in _broken(member):
            _require(machine, member, False, broken)


def _broken(member: MemberState) -> list[str]:
    delivered = member.delivered
    on_its_way = [write for write in (member.writing, *member.writes) if isinstance(write, AcknowledgeWrite)]
    rules = {
        "a write is waiting although no write is under way": member.writing is not None or not member.writes,
        "it reported offsets of a partition that it does not hold": member.reported.keys() <= member.held,
        "a command is being sent to it while another command is read": delivered is None or member.reading is None,
        "a delivered command is also queued": delivered is None or delivered.command_id not in member.queue,
        "commands are out of order": list(member.queue) == sorted(member.queue),
        "a later command is under way while an earlier one is queued": all(
            one <= following
            for one in (member.reading, delivered.command_id if delivered is not None else None)
            if one is not None
            for following in member.queue
        ),
        "more than one acknowledgement is under way": len(on_its_way) <= 1,
        "it has a connection, but its partitions are not known": member.connection is None or member.held_known,
        "it still holds partitions that it has given up": not any(write.gives_up & member.held for write in on_its_way),
        "it answered a probe that was never sent": member.heard <= member.last_probe,
        "it has no connection, but a command is being read or sent": member.connection is not None
        or (member.reading is None and delivered is None),
    }
    return [rule for rule, holds in rules.items() if not holds]


def _require(machine: MembershipMachine, member: MemberState, holds: bool, rule: str) -> None:
    if not holds:
        story = "\n".join(machine.story(*member.key))
        raise InvariantBroken(f"{member.id}: {rule}\n{member}\n{story}")
