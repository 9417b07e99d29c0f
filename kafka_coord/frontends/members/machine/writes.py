"""Keeps each member's writes to ZooKeeper in order: its offsets, its acknowledgements, and its departure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.instructions import MemberEvent, Refused
from kafka_coord.frontends.members.machine.state import AcknowledgeWrite, MemberState, OffersWrite, PendingWrite
from kafka_coord.frontends.members.machine.stimuli import (
    CommitWanted,
    LeaveWanted,
    SubscriptionWanted,
    Trouble,
    UnresolvedWanted,
)
from kafka_coord.model import OffsetDetails, StartFetcher, TopicPartition
from kafka_coord.model.member import LEFT

if TYPE_CHECKING:
    from kafka_coord.frontends.members.machine.machine import MembershipMachine


class Writes:
    """Queues each member's writes to ZooKeeper and starts them in order, one at a time."""

    def __init__(self, machine: MembershipMachine, offers_every_s: float) -> None:
        self._machine = machine
        self._offers_every_s = offers_every_s
        self._offering: dict[MemberState, None] = {}
        self.offers_due = float("inf")

    # --- requests ----------------------------------------------------------------------------------------------------

    def add(self, member: MemberState, write: PendingWrite) -> None:
        member.writes.append(write)
        self._next(member)

    def offer(self, member: MemberState) -> None:
        """Schedules the member's reported offsets to be written soon, together with those of other members."""
        self._offering[member] = None
        self.offers_due = min(self.offers_due, self._machine.now + self._offers_every_s)

    def write_offers(self) -> None:
        """Queues the scheduled writes if they are due."""
        if self._machine.now < self.offers_due:
            return
        offering, self._offering, self.offers_due = self._offering, {}, float("inf")
        for member in offering:
            self.add(member, OffersWrite())

    def forget(self, member: MemberState) -> None:
        self._offering.pop(member, None)

    def command_acknowledged(self, acknowledged: stimuli.CommandAcknowledged) -> None:
        """Queues an acknowledgement to be written, with the latest known offsets for the command's partitions."""
        member = self._machine.connections.get(acknowledged.connection)
        delivered = member.delivered if member is not None else None
        if (
            member is None
            or delivered is None
            or delivered.command_id != acknowledged.command
            or delivered.acknowledged
        ):
            return
        delivered.acknowledged = True
        partitions = set(delivered.command.partitions)
        if isinstance(delivered.command, StartFetcher):
            member.held |= partitions
        settled = {tp: member.reported.pop(tp) for tp in partitions & member.reported.keys()}
        settled |= _held(member, acknowledged.offsets)
        write = AcknowledgeWrite(acknowledged.connection, delivered, settled)
        member.held -= write.gives_up
        for tp in settled.keys() - member.held:
            member.reported.pop(tp, None)
        self.add(member, write)

    def commit_wanted(self, wanted: CommitWanted) -> None:
        machine, member = self._machine, self._machine.connections.get(wanted.connection)
        if member is None:
            return
        not_held = next((tp for tp in wanted.offsets if tp not in member.held), None)
        if not_held is not None:
            message = f"this consumer does not hold {not_held}; commit only partitions whose start it has acknowledged"
            machine.emit(
                instructions.AnswerCommit(wanted.connection, wanted.request, refused=Refused.NOT_HELD, message=message)
            )
            return
        for tp in wanted.offsets:
            member.reported.pop(tp, None)
        self.add(member, wanted)

    def subscription_wanted(self, wanted: SubscriptionWanted) -> None:
        member = self._machine.connections.get(wanted.connection)
        if member is not None:
            self.add(member, wanted)

    def unresolved_wanted(self, wanted: UnresolvedWanted) -> None:
        machine, member = self._machine, self._machine.connections.get(wanted.connection)
        if member is None:
            return
        starting = set(member.delivered.command.partitions) if member.delivered is not None else set()
        not_held = next((tp for tp in wanted.unresolved.partitions if tp not in member.held | starting), None)
        if not_held is None:
            self.add(member, wanted)
            return
        message = f"this consumer does not hold {not_held}"
        machine.emit(
            instructions.AnswerCommit(wanted.connection, wanted.request, refused=Refused.NOT_HELD, message=message)
        )

    def leave_wanted(self, wanted: LeaveWanted) -> None:
        member = self._machine.connections.get(wanted.connection or 0)
        if member is None:
            return
        last, member.reported = member.reported | _held(member, wanted.offsets), {}
        self.add(member, replace(wanted, offsets=last))

    # --- results -----------------------------------------------------------------------------------------------------

    def _next(self, member: MemberState) -> None:
        """Starts the member's next write, unless one is outstanding."""
        while member.writing is None and member.writes and self._machine.is_current(member):
            write = member.writing = member.writes.popleft()
            if isinstance(write, OffersWrite):
                write.offsets, member.reported = member.reported, {}
                write.connection = member.connection
                # a reported offset is not stored yet if another queued write includes it
                write.probe = 0 if any(later.offsets for later in member.writes) else member.answered_up_to
                if not write.offsets:  # other writes, done or pending, include every reported offset
                    self._done(member, stimuli.MemberWritten(member.id, member.write_number))
                    continue
            member.write_number += 1
            acknowledges = write.delivered.command_id if isinstance(write, AcknowledgeWrite) else None
            leaves = isinstance(write, LeaveWanted)
            for_good = isinstance(write, LeaveWanted) and write.for_good
            instruction = instructions.WriteMember(
                member.id,
                member.write_number,
                dict(write.offsets),
                acknowledges,
                leaves,
                for_good,
                write.subscription if isinstance(write, SubscriptionWanted) else None,
                _details(member, write),
                write.departure if isinstance(write, LeaveWanted) else LEFT,
                write.unresolved if isinstance(write, UnresolvedWanted) else None,
            )
            self._machine.emit(instruction)

    def member_written(self, outcome: stimuli.MemberWritten) -> None:
        member = self._machine.current(outcome.member)
        if member is None or member.writing is None or outcome.number != member.write_number:
            return
        self._done(member, outcome)
        self._next(member)
        if self._machine.is_current(member) and not member.has_unwritten:
            self._machine.written(member)

    def _done(self, member: MemberState, outcome: stimuli.MemberWritten) -> None:
        write, member.writing = member.writing, None
        if outcome.trouble is Trouble.MEMBERSHIP_LOST:
            self._machine.end(member, "its registration is gone, because the coordinator or an operator evicted it")
            return
        if outcome.trouble is not None:
            self._machine.emit(
                instructions.ReportEvent(MemberEvent.NOT_WRITTEN, member.id, member.connection, outcome.reason)
            )
        else:
            _note_leader_epochs(member, write)
        if isinstance(write, OffersWrite):
            self._offers_done(member, write, outcome)
        elif isinstance(write, AcknowledgeWrite):
            self._acknowledged(member, write, outcome)
        elif isinstance(write, CommitWanted | SubscriptionWanted | UnresolvedWanted):
            self._answer(write.connection, write, outcome)
        elif isinstance(write, LeaveWanted):
            self._left(member, write, outcome)

    def _answer(
        self,
        connection: int,
        write: CommitWanted | LeaveWanted | SubscriptionWanted | UnresolvedWanted,
        outcome: stimuli.MemberWritten,
    ) -> None:
        refused = Refused.FAILED if outcome.trouble is not None else None
        kept = outcome.kept if isinstance(write, UnresolvedWanted) else None
        self._machine.emit(
            instructions.AnswerCommit(connection, write.request, outcome.refused, refused, outcome.reason, kept)
        )

    def _offers_done(self, member: MemberState, write: OffersWrite, outcome: stimuli.MemberWritten) -> None:
        if outcome.trouble is not None:
            for tp, offset in write.offsets.items():
                self._take_back(member, tp, offset)
        elif write.probe and member.connection == write.connection:
            member.heard = max(member.heard, write.probe)
            self._machine.probe(member, confirms=True)

    def _take_back(self, member: MemberState, tp: TopicPartition, offset: int) -> None:
        """Takes back a reported offset that could not be written, unless a newer one is pending or has been reported.
        If a pending write gives up the partition, adds the offset to that write. Otherwise, if the member still holds
        the partition, the offset counts as reported again."""
        for later in member.writes:
            if isinstance(later, OffersWrite):
                continue
            if tp in later.offsets:
                return
            if isinstance(later, AcknowledgeWrite) and tp in later.gives_up:
                later.offsets[tp] = offset
                return
        if tp in member.held:
            member.reported.setdefault(tp, offset)

    def _acknowledged(self, member: MemberState, write: AcknowledgeWrite, outcome: stimuli.MemberWritten) -> None:
        delivered = write.delivered
        if member.delivered is delivered:
            member.delivered = None
        if outcome.trouble is not None:
            # the command is redelivered after the next probe, and the client acknowledges it again
            member.queue.appendleft(delivered.command_id)
            return
        if member.connection == write.connection:
            member.done = delivered.command_id
            self._machine.probe(member)
        self._machine.go_on(member)

    def _left(self, member: MemberState, write: LeaveWanted, outcome: stimuli.MemberWritten) -> None:
        machine = self._machine
        if write.connection is not None:
            if outcome.trouble is not None:
                self._answer(write.connection, write, outcome)
                return
            event = MemberEvent(write.departure.kind)
            machine.emit(instructions.ReportEvent(event, member.id, write.connection, write.departure.by))
            machine.emit(instructions.Farewell(write.connection, write.request, outcome.refused))
            machine.forget(member)
        elif outcome.trouble is None:
            machine.emit(instructions.ReportEvent(MemberEvent.EXPIRED, member.id, member.connection))
            machine.end(member, "it did not send anything within its session timeout")
        elif write.offsets:
            # retry without the offsets, which may have been the reason for the failure
            member.writes.appendleft(replace(write, offsets={}))
        else:
            machine.expire_again(member)


def _held(member: MemberState, offsets: stimuli.Offsets) -> dict[TopicPartition, int]:
    return {tp: offset for tp, offset in offsets.items() if tp in member.held}


def _details(member: MemberState, write: PendingWrite | None) -> OffsetDetails:
    """Returns the details to store with ``write``. Nearly every commit carries a leader epoch, so storing all of them
    would double the writes. Details that consist of nothing but a leader epoch are therefore stored only when the
    member gives up the partition."""
    if isinstance(write, CommitWanted):
        return {tp: one for tp, one in write.details.items() if one.metadata or one.expires_at_ms >= 0}
    if isinstance(write, LeaveWanted):
        return dict(member.leader_epochs)
    given_up = write.gives_up & member.leader_epochs.keys() if isinstance(write, AcknowledgeWrite) else ()
    return {tp: member.leader_epochs[tp] for tp in given_up}


def _note_leader_epochs(member: MemberState, write: PendingWrite | None) -> None:
    """Remembers the leader epochs that ``write`` has not stored, and forgets those that it has stored or made
    obsolete."""
    epochs = member.leader_epochs
    if isinstance(write, CommitWanted):
        for tp in epochs.keys() & write.offsets.keys():
            del epochs[tp]
        epochs |= {tp: one for tp, one in write.details.items() if not one.metadata}
    elif isinstance(write, AcknowledgeWrite):
        for tp in epochs.keys() & write.gives_up:
            del epochs[tp]
