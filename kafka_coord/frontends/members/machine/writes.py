"""Orders each member's writes to ZooKeeper: offsets, acknowledgements, and the end of its registration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_coord.frontends.members.machine import instructions as do
from kafka_coord.frontends.members.machine import stimuli as was
from kafka_coord.frontends.members.machine.instructions import Happening, Refused
from kafka_coord.frontends.members.machine.state import (
    AcknowledgeWrite,
    CommitWrite,
    LeaveWrite,
    MemberState,
    OffersWrite,
    PendingWrite,
)
from kafka_coord.frontends.members.machine.stimuli import Trouble
from kafka_coord.model import StartFetcher, TopicPartition

if TYPE_CHECKING:
    from kafka_coord.frontends.members.machine.machine import MembershipMachine


class Writes:
    """The queue of each member's writes to ZooKeeper: in order, one outstanding at a time."""

    def __init__(self, machine: MembershipMachine, offers_every_s: float) -> None:
        self._machine = machine
        self._offers_every_s = offers_every_s
        self._offering: dict[MemberState, None] = {}
        self.offers_due = float("inf")

    # --- asked for ---------------------------------------------------------------------------------------------------

    def add(self, member: MemberState, write: PendingWrite) -> None:
        member.writes.append(write)
        self._next(member)

    def offer(self, member: MemberState) -> None:
        """Schedules the member's reported offsets to be written soon, together with those of other members."""
        self._offering[member] = None
        self.offers_due = min(self.offers_due, self._machine.now + self._offers_every_s)

    def write_offers(self) -> None:
        """Queues the writes of reported offsets, if they are due."""
        if self._machine.now < self.offers_due:
            return
        offering, self._offering, self.offers_due = self._offering, {}, float("inf")
        for member in offering:
            self.add(member, OffersWrite())

    def forget(self, member: MemberState) -> None:
        self._offering.pop(member, None)

    def command_obeyed(self, obeyed: was.CommandObeyed) -> None:
        """Queues the acknowledgement, with the latest known offsets of its partitions."""
        member = self._machine.connections.get(obeyed.connection)
        delivered = member.delivered if member is not None else None
        if member is None or delivered is None or delivered.command_id != obeyed.command or delivered.obeyed:
            return
        delivered.obeyed = True
        partitions = set(delivered.command.partitions)
        if isinstance(delivered.command, StartFetcher):
            member.held |= partitions
        settled = {tp: member.reported.pop(tp) for tp in partitions & member.reported.keys()}
        settled |= _held(member, obeyed.offsets)
        write = AcknowledgeWrite(obeyed.connection, delivered, settled)
        member.held -= write.gives_up
        for tp in settled.keys() - member.held:
            member.reported.pop(tp, None)
        self.add(member, write)

    def commit_wanted(self, wanted: was.CommitWanted) -> None:
        machine, member = self._machine, self._machine.connections.get(wanted.connection)
        if member is None:
            return
        not_held = next((tp for tp in wanted.offsets if tp not in member.held), None)
        if not_held is not None:
            message = f"{not_held} is not this consumer's: commit only partitions it was told to start"
            machine.emit(do.AnswerCommit(wanted.connection, wanted.request, refused=Refused.NOT_HELD, message=message))
            return
        for tp in wanted.offsets:
            member.reported.pop(tp, None)
        self.add(member, CommitWrite(wanted.connection, wanted.request, dict(wanted.offsets)))

    def leave_wanted(self, wanted: was.LeaveWanted) -> None:
        member = self._machine.connections.get(wanted.connection)
        if member is None:
            return
        last, member.reported = member.reported | _held(member, wanted.offsets), {}
        self.add(member, LeaveWrite(wanted.connection, wanted.request, last, wanted.for_good))

    # --- written -----------------------------------------------------------------------------------------------------

    def _next(self, member: MemberState) -> None:
        """Starts the member's next write, unless one is outstanding."""
        while member.writing is None and member.writes and self._machine.is_current(member):
            write = member.writing = member.writes.popleft()
            if isinstance(write, OffersWrite):
                write.offsets, member.reported = member.reported, {}
                write.connection, write.probe = member.connection, member.answered
                if not write.offsets:  # every reported offset has been settled in another way
                    self._done(member, was.Stored(member.id, member.write_number))
                    continue
            member.write_number += 1
            acknowledges = write.delivered.command_id if isinstance(write, AcknowledgeWrite) else None
            leaves = isinstance(write, LeaveWrite)
            for_good = isinstance(write, LeaveWrite) and write.for_good
            self._machine.emit(
                do.Store(member.id, member.write_number, dict(write.offsets), acknowledges, leaves, for_good)
            )

    def stored(self, stored: was.Stored) -> None:
        member = self._machine.current(stored.member)
        if member is None or member.writing is None or stored.number != member.write_number:
            return
        self._done(member, stored)
        self._next(member)
        if self._machine.is_current(member) and not member.has_unwritten:
            self._machine.written(member)

    def _done(self, member: MemberState, stored: was.Stored) -> None:
        write, member.writing = member.writing, None
        if stored.trouble is Trouble.MEMBERSHIP_LOST:
            self._machine.end(member, "its registration is gone: it was evicted, or took too long")
            return
        if stored.trouble is not None:
            self._machine.emit(do.Tell(Happening.NOT_WRITTEN, member.id, member.connection, stored.reason))
        if isinstance(write, OffersWrite):
            self._offers_done(member, write, stored)
        elif isinstance(write, AcknowledgeWrite):
            self._acknowledged(member, write, stored)
        elif isinstance(write, CommitWrite):
            self._answer(write.connection, write, stored)
        elif isinstance(write, LeaveWrite):
            self._left(member, write, stored)

    def _answer(self, connection: int, write: CommitWrite | LeaveWrite, stored: was.Stored) -> None:
        refused = Refused.FAILED if stored.trouble is not None else None
        self._machine.emit(do.AnswerCommit(connection, write.request, stored.refused, refused, stored.reason))

    def _offers_done(self, member: MemberState, write: OffersWrite, stored: was.Stored) -> None:
        if stored.trouble is not None:
            for tp, offset in write.offsets.items():
                self._take_back(member, tp, offset)
        elif member.connection is not None and member.connection == write.connection:
            member.heard = max(member.heard, write.probe)
            self._machine.probe(member, confirms=True)

    def _take_back(self, member: MemberState, tp: TopicPartition, offset: int) -> None:
        """Takes back a reported offset that could not be written. If a later write already settles the partition, that
        write's offset counts, or it takes this offset along if it has none. Otherwise the next report includes it."""
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

    def _acknowledged(self, member: MemberState, write: AcknowledgeWrite, stored: was.Stored) -> None:
        delivered = write.delivered
        if member.delivered is delivered:
            member.delivered = None
        if stored.trouble is not None:
            member.queue.appendleft(
                delivered.command_id
            )  # delivered again after the next probe; the client answers as before
            return
        if member.connection == write.connection:
            member.done = delivered.command_id
            self._machine.probe(member)
        self._machine.go_on(member)

    def _left(self, member: MemberState, write: LeaveWrite, stored: was.Stored) -> None:
        machine = self._machine
        if write.connection is not None:
            if stored.trouble is not None:
                self._answer(write.connection, write, stored)
                return
            machine.emit(do.Tell(Happening.LEFT, member.id, write.connection))
            machine.emit(do.Farewell(write.connection, write.request, stored.refused))
            machine.forget(member)
        elif stored.trouble is None:
            machine.emit(do.Tell(Happening.EXPIRED, member.id, member.connection))
            machine.end(member, "nothing was heard from it within its session timeout")
        elif write.offsets:
            member.writes.appendleft(
                LeaveWrite(None, None, {})
            )  # tried without offsets, which may be the part that cannot be written
        else:
            machine.expire_again(member)


def _held(member: MemberState, offsets: was.Offsets) -> dict[TopicPartition, int]:
    return {tp: offset for tp, offset in offsets.items() if tp in member.held}
