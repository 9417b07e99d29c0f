"""A machine in a test's hands: what happens is said to it, what it wants done is collected."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from kafka_coord.frontends.members.machine import MembershipMachine, MemberState
from kafka_coord.frontends.members.machine import instructions as do
from kafka_coord.frontends.members.machine import stimuli as was
from kafka_coord.frontends.members.machine.stimuli import MemberId, Terms
from kafka_coord.model import CommandId, PartitionSet, StartFetcher, StartPoint, StopFetcher, TopicPartition
from kafka_coord.model.command import NODE_PREFIX, CommandType

SESSION_S = 6.0
TERMS = Terms(SESSION_S, resume_key="k")

I = TypeVar("I")  # noqa: E741


def tp(partition: int) -> TopicPartition:
    return TopicPartition("flights", partition)


class House:
    """Every invariant is checked after every stimulus."""

    def __init__(self) -> None:
        self.now = 100.0
        self.machine = MembershipMachine(self.now, validate=True)
        self.out: list[do.Instruction] = []
        self._sequence = itertools.count()
        self._incarnations = itertools.count(50)
        self.step()

    def tell(self, *stimuli: was.Stimulus) -> list[do.Instruction]:
        """What is to be done about these."""
        out = self.machine.handle(self.now, *stimuli)
        self.out += out
        return out

    def step(self, *arrived: was.Stimulus, leads: bool = True) -> list[do.Instruction]:
        """One step of a gateway that is well."""
        if not leads:
            return self.tell(was.StepBegan(leads=False))
        return self.tell(was.StepBegan(leads=True), *arrived, was.TimersDue())

    def pass_time(self, seconds: float, *, leads: bool = True) -> list[do.Instruction]:
        """Steps every quarter of a second."""
        out: list[do.Instruction] = []
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            out += self.step(leads=leads)
        return out

    def taken(self, kind: type[I]) -> list[I]:
        """Everything of a kind that was asked for and not taken yet."""
        found = [one for one in self.out if isinstance(one, kind)]
        self.out = [one for one in self.out if not isinstance(one, kind)]
        return found

    def one(self, kind: type[I]) -> I:
        (found,) = self.taken(kind)
        return found

    # --- members -----------------------------------------------------------------------------------------------------

    def register(self, connection: int = 1, consumer: str = "c1", terms: Terms = TERMS) -> MemberId:
        wanted = was.RegistrationWanted(connection, connection, "delays", consumer, terms, b"")
        self.tell(wanted)
        member = MemberId("delays", consumer, next(self._incarnations))
        self.tell(was.RegistrationWritten(wanted, member))
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
        """They are in its channel; whatever is read of them is read at once."""
        ids = [self.command_id(command.type) for command in commands]
        self.tell(was.CommandsListed(member, tuple(ids)))
        by_id: dict[CommandId, Any] = dict(zip(ids, commands, strict=True))
        for read in self.taken(do.ReadCommand):
            self.tell(was.CommandRead(member, read.command_id, by_id[read.command_id]))
        return ids

    def start(self, member: MemberId, *partitions: int) -> StartFetcher:
        return StartFetcher(1, 1, member.incarnation, {tp(number): StartPoint(0) for number in partitions}, "test")

    def stop(self, member: MemberId, *partitions: int) -> StopFetcher:
        return StopFetcher(1, 1, member.incarnation, PartitionSet.of(map(tp, partitions)), "test")

    def holding(self, member: MemberId, *partitions: int, connection: int = 1) -> MemberId:
        """It was told to start these, has, and that is stored."""
        (command,) = self.send(member, self.start(member, *partitions))
        self.tell(was.CommandObeyed(connection, command, {}))
        self.stored(self.one(do.Store))
        self.tell(was.CommandsListed(member, ()))
        self.out.clear()
        self.state(member).probes.clear()
        return member

    def stored(self, store: do.Store, trouble: was.Trouble | None = None) -> list[do.Instruction]:
        return self.tell(was.Stored(store.member, store.number, frozenset(), trouble, "because" if trouble else ""))

    def answer_probes(self, offsets: dict[int, int] | None = None, connection: int = 1) -> None:
        for probe in self.taken(do.Probe):
            if probe.connection == connection:
                written = {tp(partition): offset for partition, offset in (offsets or {}).items()}
                self.tell(was.Heard(connection), was.ProbeAnswered(connection, probe.number, written))
