"""Delivers the commands in a member's channel to its client, one at a time and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.instructions import MemberEvent
from kafka_coord.frontends.members.machine.state import Delivered, MemberState

if TYPE_CHECKING:
    from kafka_coord.frontends.members.machine.machine import MembershipMachine


class Commands:
    """Delivers commands to members."""

    def __init__(self, machine: MembershipMachine) -> None:
        self._machine = machine

    def listed(self, listed: stimuli.CommandsListed) -> None:
        member = self._machine.current(listed.member)
        if member is None:
            return
        under_way = {member.reading, member.delivered.command_id if member.delivered is not None else None}
        member.queue.clear()
        member.queue.extend(command for command in listed.commands if command not in under_way)
        self.go_on(member)

    def go_on(self, member: MemberState) -> None:
        """If the member can take a command, reads its next command."""
        is_free = member.delivered is None and member.reading is None
        if is_free and member.queue and member.connection is not None and self._machine.is_current(member):
            member.reading = member.queue.popleft()
            self._machine.emit(instructions.ReadCommand(member.id, member.reading))

    def read(self, read: stimuli.CommandRead) -> None:
        machine, member = self._machine, self._machine.current(read.member)
        if member is None or member.connection is None or member.reading != read.command_id:
            return
        member.reading = None
        if read.fault:
            # the member can carry out neither this command nor a later command; the next probe reads it again, because
            # an operator may have repaired it
            member.queue.appendleft(read.command_id)
            if member.stuck != read.fault:
                member.stuck = read.fault
                machine.emit(instructions.ReportEvent(MemberEvent.STUCK, member.id, member.connection, read.fault))
            return
        member.stuck = ""
        command = read.command
        if command is None:  # withdrawn, or acknowledged by another client
            self.go_on(member)
        elif command.incarnation < member.id.incarnation:
            machine.emit(instructions.DropCommand(member.id, read.command_id))
            self.go_on(member)
        elif command.incarnation > member.id.incarnation:
            machine.end(member, "another consumer has since registered under its name")
        else:
            member.delivered = Delivered(read.command_id, command)
            machine.emit(instructions.Deliver(member.connection, member.id, read.command_id, command))
