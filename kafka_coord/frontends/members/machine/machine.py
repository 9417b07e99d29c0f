"""Implements the state machine for members without a ZooKeeper session, from registering to leaving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.classic_groups.sessions import AttentiveClock
from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.instructions import Instruction, MemberEvent
from kafka_coord.frontends.members.machine.state import Delivered, MemberState, Timers
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions, Stimulus
from kafka_coord.frontends.members.machine.writes import Writes
from kafka_coord.model import Departure, DepartureKind

MAX_UNANSWERED_PROBES = 3
"""A member with this many unanswered probes is no longer probed, but its session timeout keeps running."""
READ_AGAIN_S = 0.5
"""How long to wait before rereading a member with an unreadable ledger, in seconds. By then, an operator may have
repaired the ledger."""

Key = tuple[str, str]


class MembershipMachine:
    """The members of one term.

    :meth:`handle` takes stimuli in the order they happened and returns the resulting instructions in order.
    The machine guarantees these properties:

    - *Timing.* A member expires only if it is silent for its entire session timeout, which runs only while the
      gateway serves its members (:class:`AttentiveClock`). The machine confirms the response to a probe only after
      everything that was reported up to that response has been stored.
    - *Offsets.* A member has at most one outstanding write, and the next one starts only once the outcome is
      known, so a retry cannot undo a later write or a commit by the partition's next owner. A member cannot resume
      while the partitions that it holds are unknown, because its offsets would be dropped.
    - *Order.* A member carries out one command at a time, in the order of its channel.
    """

    def __init__(self, now: float, *, offers_every_s: float = 0.1) -> None:
        """``now`` is in monotonic seconds. Reported offsets are collected for ``offers_every_s`` seconds before they
        are written together."""
        self.members: dict[Key, MemberState] = {}
        self.connections: dict[int, MemberState] = {}
        self.registering: dict[int, stimuli.RegistrationWanted] = {}
        self.resuming: dict[int, stimuli.ResumeWanted] = {}
        self.clock = AttentiveClock(now)
        self.now = self.clock.at(now)
        self._deadlines, self._probe_timers, self._reread_timers = Timers(), Timers(), Timers()
        self._out: list[Instruction] = []
        self._writes = Writes(self, offers_every_s)
        self._handlers: dict[type, Callable[[Any], None]] = {
            stimuli.StepBegan: lambda _stimulus: None,
            stimuli.TimersDue: self._timers_due,
            stimuli.MemberFound: self._found,
            stimuli.RegistrationWanted: self._registration_wanted,
            stimuli.RegistrationWritten: self._registration_written,
            stimuli.RegistrationFailed: self._registration_failed,
            stimuli.RegistrationDeleted: self._registration_deleted,
            stimuli.ResumeWanted: self._resume_wanted,
            stimuli.MemberRead: self._member_read,
            stimuli.HeardFrom: self._heard,
            stimuli.ProbeAnswered: self._probe_answered,
            stimuli.Disconnected: self._disconnected,
            stimuli.CommandsListed: self._commands_listed,
            stimuli.CommandRead: self._command_read,
            stimuli.CommandAcknowledged: self._writes.command_acknowledged,
            stimuli.CommitWanted: self._writes.commit_wanted,
            stimuli.SubscriptionWanted: self._writes.subscription_wanted,
            stimuli.UnresolvedWanted: self._writes.unresolved_wanted,
            stimuli.LeaveWanted: self._writes.leave_wanted,
            stimuli.MemberWritten: self._writes.member_written,
        }

    def handle(self, now: float, *arrived: Stimulus) -> list[Instruction]:
        """Returns the instructions for the given stimuli. ``now`` is in monotonic seconds."""
        for stimulus in arrived:
            if isinstance(stimulus, stimuli.StepBegan):
                self.clock.step_began(now, leads=stimulus.leads)
            self.now = self.clock.at(now)
            self._handlers[type(stimulus)](stimulus)
        out, self._out = self._out, []
        return out

    def due(self) -> float:
        """Returns when :class:`~.stimuli.TimersDue` will next have an effect, in monotonic seconds."""
        timers = (self._deadlines, self._probe_timers, self._reread_timers)
        at = min(self._writes.offers_due, *(timer.next_at() for timer in timers))
        return self.clock.monotonic(at)

    def heard_ms_ago(self, member: MemberState, now: float) -> int:
        """Returns how many milliseconds ago the member last sent a message or the term began, whichever was later."""
        heard_at = member.deadline - member.options.session_timeout_s
        return max(0, round((self.clock.at(now) - heard_at) * 1000))

    def left_ms(
        self, now: float, member_id: Callable[[MemberState], str], is_heard: Callable[[MemberState], bool]
    ) -> dict[Key, int | None]:
        """Returns, by group and ``member_id``, ``None`` for each member that has been heard in this term, and for each
        of the others what is left of its session, in ms. Any thread may call this method."""
        clock_now = self.clock.at(now)
        return {
            (state.id.group, member_id(state)): None
            if is_heard(state)
            else round(max(0.0, state.deadline - clock_now) * 1000)
            for state in list(self.members.values())
        }

    # --- used by the machine's parts ---------------------------------------------------------------------------------

    def emit(self, instruction: Instruction) -> None:
        self._out.append(instruction)

    def current(self, member: MemberId) -> MemberState | None:
        """Returns the state of exactly the given incarnation, or ``None`` if it is not a member."""
        state = self.members.get((member.group, member.consumer))
        return state if state is not None and state.id == member else None

    def is_current(self, member: MemberState) -> bool:
        return self.members.get(member.key) is member

    def end(self, member: MemberState, message: str) -> None:
        """Ends the membership and tells the client."""
        if member.connection is not None:
            self.emit(instructions.Dismiss(member.connection, message))
        self.forget(member)

    def forget(self, member: MemberState) -> None:
        """Forgets a member, whatever the reason. Its connection stays open without a member."""
        self.detach(member)
        del self.members[member.key]
        self._writes.forget(member)
        self.emit(instructions.Forget(member.id))
        for connection, wanted in list(self.resuming.items()):
            if wanted.member == member.id:
                del self.resuming[connection]
                self.emit(instructions.RefuseResume(connection, wanted.request, "it is no longer a member"))

    def detach(self, member: MemberState) -> None:
        if member.connection is not None:
            del self.connections[member.connection]
            member.connection = None
        member.delivered = member.reading = None

    def probe(self, member: MemberState, *, confirms: bool = False) -> None:
        """Asks whether the member is alive. If ``confirms`` is set, the probe only confirms the response to the
        previous probe."""
        if member.connection is None or (confirms and len(member.probes) >= MAX_UNANSWERED_PROBES):
            return
        member.last_probe += 1
        member.probes.add(member.last_probe)
        if confirms:
            member.confirming.add(member.last_probe)
        self.emit(instructions.Probe(member.connection, member.last_probe, member.heard, member.done))

    def go_on(self, member: MemberState) -> None:
        """Reads the next command to send to the member, if the member can take one now."""
        is_free = member.delivered is None and member.reading is None
        if is_free and member.queue and member.connection is not None and self.is_current(member):
            member.reading = member.queue.popleft()
            self.emit(instructions.ReadCommand(member.id, member.reading))

    def written(self, member: MemberState) -> None:
        """Called once the member has no more pending writes. Reads the member if a client is waiting to resume it."""
        if any(wanted.member == member.id for wanted in self.resuming.values()):
            self.emit(instructions.ReadMember(member.id))

    # --- registering and resuming ------------------------------------------------------------------------------------

    def _admit(self, member: MemberId, options: RegistrationOptions, left_s: float | None = None) -> MemberState:
        left_s = options.session_timeout_s if left_s is None else left_s
        state = MemberState(member, options, self.now + left_s)
        self.members[state.key] = state
        self._deadlines.add(state.deadline, state)
        self.emit(instructions.WatchRegistration(member))
        return state

    def _attach(self, member: MemberState, connection: int) -> None:
        """Makes ``connection`` the member's current connection, and resets the state that belongs to a connection."""
        member.connection = connection
        self.connections[connection] = member
        member.heard = member.last_probe = member.newest_answer = 0
        member.done = None
        member.probes.clear()
        member.confirming.clear()
        member.delivered = member.reading = None
        member.queue.clear()
        self.emit(instructions.WatchCommands(member.id))
        self._probe_at(member, self.now + member.probe_interval_s)

    def _found(self, found: stimuli.MemberFound) -> None:
        self._admit(found.member, found.options, found.session_left_s).held_known = False

    def _registration_wanted(self, wanted: stimuli.RegistrationWanted) -> None:
        self.registering[wanted.connection] = wanted
        self.emit(instructions.WriteRegistration(wanted))

    def _registration_written(self, written: stimuli.RegistrationWritten) -> None:
        """Admits the new member. If its connection has already ended, only starts its session timeout."""
        wanted = written.wanted
        is_there = self.registering.pop(wanted.connection, None) is not None
        before = self.members.get((wanted.group, wanted.consumer))
        if before is not None:
            self.end(before, "it has registered again on another connection")
        member = self._admit(written.member, wanted.options)
        self.emit(instructions.ReportEvent(MemberEvent.REGISTERED, member.id, wanted.connection))
        if is_there:
            self._attach(member, wanted.connection)
            self.emit(instructions.Welcome(wanted.connection, wanted.request, member.id, wanted.options))

    def _registration_failed(self, failed: stimuli.RegistrationFailed) -> None:
        wanted = failed.wanted
        if self.registering.pop(wanted.connection, None) is not None:
            self.emit(instructions.RefuseRegistration(wanted.connection, wanted.request, failed.reason))

    def _registration_deleted(self, deleted: stimuli.RegistrationDeleted) -> None:
        member = self.current(deleted.member)
        if member is not None:
            self.end(member, "its registration was deleted, because the coordinator or an operator evicted it")

    def _resume_wanted(self, wanted: stimuli.ResumeWanted) -> None:
        member = self.current(wanted.member)
        if member is None or not wanted.resume_key or member.options.resume_key != wanted.resume_key:
            message = (
                f"consumer {wanted.member.consumer[:260]!r} is no longer registered as this incarnation; register again"
            )
            self.emit(instructions.RefuseResume(wanted.connection, wanted.request, message))
            return
        self._restart_session_timeout(member)
        self.resuming[wanted.connection] = wanted
        if not member.has_unwritten:
            self.written(member)

    def _member_read(self, read: stimuli.MemberRead) -> None:
        """Resumes the member, unless it has pending writes: until these are done, the commands that they acknowledge
        would be sent a second time."""
        member = self.current(read.member)
        if member is None or member.has_unwritten:
            return
        if read.fault and (read.outstanding is None or not member.held_known):
            self._read_again(member, read.fault)
            return
        for connection, wanted in list(self.resuming.items()):
            if wanted.member != member.id:
                continue
            del self.resuming[connection]
            if read.outstanding is None:
                self.emit(instructions.RefuseResume(connection, wanted.request, "it is no longer a member"))
                continue
            member.held_known, member.stuck = True, ""
            if read.held is not None:
                member.held = set(read.held)
                member.reported = {tp: offset for tp, offset in member.reported.items() if tp in read.held}
            before = member.connection
            self.detach(member)
            if before is not None:
                self.emit(instructions.Dismiss(before, "it continues on another connection"))
            self._attach(member, connection)
            self.emit(instructions.Resumed(connection, wanted.request, member.id, read.outstanding, read.generation))
            self.emit(instructions.ReportEvent(MemberEvent.RESUMED, member.id, connection))

    def _read_again(self, member: MemberState, fault: str) -> None:
        """If a client is waiting to resume the member, reads the member again later. The member cannot resume until its
        partitions are known."""
        if not any(wanted.member == member.id for wanted in self.resuming.values()):
            return
        if member.stuck != fault:
            member.stuck = fault
            self.emit(instructions.ReportEvent(MemberEvent.NOT_RESUMED, member.id, None, fault))
        member.reread_due = self.now + READ_AGAIN_S
        self._reread_timers.add(member.reread_due, member)

    # --- commands ----------------------------------------------------------------------------------------------------

    def _commands_listed(self, listed: stimuli.CommandsListed) -> None:
        member = self.current(listed.member)
        if member is None:
            return
        under_way = {member.reading, member.delivered.command_id if member.delivered is not None else None}
        member.queue.clear()
        member.queue.extend(command for command in listed.commands if command not in under_way)
        self.go_on(member)

    def _command_read(self, read: stimuli.CommandRead) -> None:
        member, command = self.current(read.member), read.command
        if member is None or member.connection is None or member.reading != read.command_id:
            return
        member.reading = None
        if read.fault:
            # the member cannot carry out the command or any later one; the command is read again at the next probe, in
            # case an operator has repaired it
            member.queue.appendleft(read.command_id)
            if member.stuck != read.fault:
                member.stuck = read.fault
                self.emit(instructions.ReportEvent(MemberEvent.STUCK, member.id, member.connection, read.fault))
            return
        member.stuck = ""
        if command is None:  # it was withdrawn, or another client has acknowledged it
            self.go_on(member)
        elif command.incarnation < member.id.incarnation:
            self.emit(instructions.DropCommand(member.id, read.command_id))
            self.go_on(member)
        elif command.incarnation > member.id.incarnation:
            self.end(member, "another consumer has since registered under its name")
        else:
            member.delivered = Delivered(read.command_id, command)
            self.emit(instructions.Deliver(member.connection, member.id, read.command_id, command))

    # --- heartbeats and expiry ---------------------------------------------------------------------------------------

    def _restart_session_timeout(self, member: MemberState) -> None:
        member.deadline = self.now + member.options.session_timeout_s

    def _heard(self, heard: stimuli.HeardFrom) -> None:
        member = self.connections.get(heard.connection)
        if member is not None:
            self._restart_session_timeout(member)

    def _disconnected(self, gone: stimuli.Disconnected) -> None:
        self.registering.pop(gone.connection, None)
        self.resuming.pop(gone.connection, None)
        member = self.connections.get(gone.connection)
        if member is not None:
            self.detach(member)

    def _probe_answered(self, answered: stimuli.ProbeAnswered) -> None:
        member = self.connections.get(answered.connection)
        if member is None or answered.probe not in member.probes:
            return
        member.probes.discard(answered.probe)
        confirms = answered.probe in member.confirming
        member.confirming.discard(answered.probe)
        member.newest_answer = max(member.newest_answer, answered.probe)
        if member.options.auto_commit:
            member.reported |= {tp: offset for tp, offset in answered.offsets.items() if tp in member.held}
        if not member.reported and not member.has_unwritten:
            member.heard = member.answered_up_to
            if not confirms:
                self.probe(member, confirms=True)
        elif not confirms:  # a confirming probe brings few offsets, which can wait for the next response
            self._writes.offer(member)

    def _timers_due(self, _due: stimuli.TimersDue) -> None:
        if not self.clock.leads:
            return
        self._writes.write_offers()
        for _, member in self._deadlines.due(self.now):
            self._expire(member)
        for at, member in self._reread_timers.due(self.now):
            if at == member.reread_due and self.is_current(member) and not member.has_unwritten:
                self.written(member)
        for at, member in self._probe_timers.due(self.now):
            if at == member.probe_due and member.connection is not None and self.is_current(member):
                if len(member.probes) < MAX_UNANSWERED_PROBES:
                    self.probe(member)
                self.go_on(member)
                self._probe_at(member, max(self.now, at + member.probe_interval_s))

    def _probe_at(self, member: MemberState, at: float) -> None:
        member.probe_due = at
        self._probe_timers.add(at, member)

    def _expire(self, member: MemberState) -> None:
        if not self.is_current(member):
            return
        if self.now < member.deadline:
            self._deadlines.add(member.deadline, member)
            return
        if not member.expiring:
            member.expiring = True
            last, member.reported = member.reported, {}
            expired = Departure(DepartureKind.EXPIRED, round(member.options.session_timeout_s * 1000))
            self._writes.add(member, stimuli.LeaveWanted(None, None, last, departure=expired))

    def expire_again(self, member: MemberState) -> None:
        """Gives the member another full session timeout, because its expiry could not be written."""
        member.expiring = False
        self._restart_session_timeout(member)
        self._deadlines.add(member.deadline, member)
