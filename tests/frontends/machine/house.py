"""A membership machine that a test drives: the test passes it stimuli, and the machine's instructions are collected."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from kafka_coord.frontends.members.machine import MemberState, instructions, stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.model import CommandId, PartitionSet, StartFetcher, StartPoint, StopFetcher, TopicPartition
from kafka_coord.model.assignment import NODE_PREFIX, CommandType
from tests.frontends.machine.invariants import ValidatedMachine

SESSION_S = 6.0
OPTIONS = RegistrationOptions(SESSION_S, resume_key="k")

I = TypeVar("I")  # noqa: E741


def tp(partition: int) -> TopicPartition:
    return TopicPartition("flights", partition)


class House:
    """A machine and its clock. Checks every invariant after every stimulus. ``out`` collects the instructions."""

    def __init__(self) -> None:
        self.now = 100.0
        self.machine = ValidatedMachine(self.now)
        self.out: list[instructions.Instruction] = []
        self._sequence = itertools.count()
        self._incarnations = itertools.count(50)
        self.step()

    def tell(self, *arrived: stimuli.Stimulus) -> list[instructions.Instruction]:
        """Passes the stimuli to the machine, and returns the resulting instructions."""
        out = self.machine.handle(self.now, *arrived)
        self.out += out
        return out

    def step(self, *arrived: stimuli.Stimulus, leads: bool = True) -> list[instructions.Instruction]:
        """Does what a healthy gateway does in one step."""
        if not leads:
            return self.tell(stimuli.StepBegan(leads=False))
        return self.tell(stimuli.StepBegan(leads=True), *arrived, stimuli.TimersDue())

    def pass_time(self, seconds: float, *, leads: bool = True) -> list[instructions.Instruction]:
        """Advances the clock, with a step every quarter of a second."""
        out: list[instructions.Instruction] = []
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            out += self.step(leads=leads)
        return out

    def taken(self, kind: type[I]) -> list[I]:
        """Removes all collected instructions of a kind, and returns them."""
        found = [one for one in self.out if isinstance(one, kind)]
        self.out = [one for one in self.out if not isinstance(one, kind)]
        return found

    def one(self, kind: type[I]) -> I:
        (found,) = self.taken(kind)
        return found

    # --- members -----------------------------------------------------------------------------------------------------

    def register(self, connection: int = 1, consumer: str = "c1", options: RegistrationOptions = OPTIONS) -> MemberId:
        wanted = stimuli.RegistrationWanted(connection, connection, "delays", consumer, options, b"")
        self.tell(wanted)
        member = MemberId("delays", consumer, next(self._incarnations))
        self.tell(stimuli.RegistrationWritten(wanted, member))
        return member

    def state(self, member: MemberId) -> MemberState:
        found = self.machine.current(member)
        assert found is not None
        return found

    def is_member(self, member: MemberId) -> bool:
        return self.machine.current(member) is not None

    def command_id(self, kind: CommandType) -> CommandId:
        sequence = next(self._sequence)
        return CommandId(sequence, kind, f"{NODE_PREFIX[kind]}{sequence:010d}")

    def send(self, member: MemberId, *commands: StartFetcher | StopFetcher) -> list[CommandId]:
        """Puts the commands into the member's channel, and answers the machine's reads of them immediately."""
        ids = [self.command_id(command.type) for command in commands]
        self.tell(stimuli.CommandsListed(member, tuple(ids)))
        by_id: dict[CommandId, Any] = dict(zip(ids, commands, strict=True))
        for read in self.taken(instructions.ReadCommand):
            self.tell(stimuli.CommandRead(member, read.command_id, by_id[read.command_id]))
        return ids

    def start(self, member: MemberId, *partitions: int) -> StartFetcher:
        return StartFetcher(1, 1, member.incarnation, {tp(number): StartPoint(0) for number in partitions}, "test")

    def stop(self, member: MemberId, *partitions: int) -> StopFetcher:
        return StopFetcher(1, 1, member.incarnation, PartitionSet.of(map(tp, partitions)), "test")

    def holding(self, member: MemberId, *partitions: int, connection: int = 1) -> MemberId:
        """Makes the member start these partitions: it acknowledges the start, and the acknowledgement is stored."""
        (command,) = self.send(member, self.start(member, *partitions))
        self.tell(stimuli.CommandAcknowledged(connection, command, {}))
        self.written(self.one(instructions.WriteMember))
        self.tell(stimuli.CommandsListed(member, ()))
        self.out.clear()
        self.state(member).probes.clear()
        return member

    def written(
        self, store: instructions.WriteMember, trouble: stimuli.Trouble | None = None
    ) -> list[instructions.Instruction]:
        return self.tell(
            stimuli.MemberWritten(store.member, store.number, frozenset(), trouble, "because" if trouble else "")
        )

    def answer_probes(self, offsets: dict[int, int] | None = None, connection: int = 1) -> None:
        for probe in self.taken(instructions.Probe):
            if probe.connection == connection:
                written = {tp(partition): offset for partition, offset in (offsets or {}).items()}
                self.tell(stimuli.HeardFrom(connection), stimuli.ProbeAnswered(connection, probe.number, written))
