"""Kafka members on a membership machine, without a clock, sockets or ZooKeeper."""

from __future__ import annotations

import itertools
from typing import Any, get_args

from kafka_coord.frontends.kafka.managed.member import MemberCommit, MemberRequest
from kafka_coord.frontends.kafka.managed.members import KafkaMembers
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.model import (
    CommandId,
    CommittedOffset,
    PartitionSet,
    StartFetcher,
    StartPoint,
    StopFetcher,
    TopicPartition,
)
from tests.frontends.machine.house import House, tp

SESSION_S = 45.0
ID = b"flights-identity"
FLIGHTS = ManagedTopics(frozenset({"flights"}))


def flights(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(map(tp, partitions))


class Play:
    """The members of the group ``delays``. Their registrations succeed immediately."""

    def __init__(self) -> None:
        self.house = House()
        self.identities = {"flights": ID}
        self.topic_ids: dict[str, bytes] = {}
        """The topic ids in the ledger of each member, by topic."""
        self.members = KafkaMembers(self.house.machine, self.identities.get, session_timeout_s=SESSION_S)
        self.stores: list[instructions.WriteMember] = []
        self.tokens, self.last_token = itertools.count(1), 0
        self._incarnations = itertools.count(500)
        self.answers: dict[object, Any] = {}
        self.outstanding: tuple[CommandId, ...] = ()
        self.generation: int | None = 5
        """``outstanding`` and ``generation`` are the commands and the generation in ZooKeeper of a member of an earlier
        term."""
        self.shares: dict[str, PartitionSet] = {}
        self.written_details: list[dict[TopicPartition, CommittedOffset]] = []

    def pump(self) -> None:
        """Passes instructions and answers on until none are left."""
        while True:
            for one in (found := self.house.taken(object)):
                if isinstance(one, get_args(instructions.ToClient)):
                    self.members.receive(one, self.topic_ids)
                elif isinstance(one, instructions.WriteRegistration):
                    wanted = one.wanted
                    member = MemberId(wanted.group, wanted.consumer, next(self._incarnations))
                    self.house.tell(stimuli.RegistrationWritten(wanted, member))
                elif isinstance(one, instructions.ReadMember):
                    self.house.tell(
                        stimuli.MemberRead(one.member, flights(0, 1), self.outstanding, "", self.generation)
                    )
                elif isinstance(one, instructions.WriteMember):
                    self.stores.append(one)
            arrived, answers = self.members.take()
            self.house.tell(*arrived)
            self.answers |= {answer.token: answer for answer in answers}
            if not arrived and not found:
                return

    def target(self, **shares: tuple[int, ...]) -> None:
        """Sets the group's target, which the members read while one of them waits for its share."""
        self.shares = {consumer: PartitionSet.of(flights(*numbers)) for consumer, numbers in shares.items()}
        self.read_target()

    def read_target(self) -> None:
        for group in self.members.groups_joining():
            self.members.target_read(group, self.shares)
        self.pump()

    def fresh_token(self) -> int:
        self.last_token = next(self.tokens)
        return self.last_token

    def ask(self, request: MemberRequest) -> Any:
        """Sends a request, and returns the answer, or ``None`` if the request is held."""
        self.members.arrived(request, self.house.now)
        self.pump()
        return self.answers.get(request.token)

    def told(self) -> Any:
        """The answer to the last request, or ``None`` while it is held."""
        return self.answers.get(self.last_token)

    def of_an_earlier_term(self, *consumers: str, resume_key: str = "", protocol: str = "consumer") -> None:
        """Makes the beginning term find these members (by default ``m1``) registered."""
        for name in consumers or ("m1",):
            options = RegistrationOptions(SESSION_S, False, resume_key or name, protocol)
            self.house.tell(stimuli.MemberFound(MemberId("delays", name, 7), options))

    def pass_time(self, seconds: float) -> None:
        self.house.now += seconds
        self.members.tick(self.house.now)
        self.pump()

    def commit(
        self,
        epoch: int,
        offset: int,
        partition: int = 0,
        member_id: str = "m1",
        connection: int = 0,
        instance: str = "",
        **details: Any,
    ) -> Any:
        token, at = next(self.tokens), tp(partition)
        said = {at: CommittedOffset(offset, **details)} if details else {}
        commit = MemberCommit(
            token, ("delays", instance or member_id), member_id, epoch, connection, {at: offset}, said
        )
        self.members.commit(commit, self.house.now)
        self.pump()
        while written := self.write():
            self.written_details = [dict(store.details) for store in written]
        return self.answers.get(token)

    def send(
        self,
        generation: int,
        *,
        start: tuple[int, ...] = (),
        stop: tuple[int, ...] = (),
        who: str = "m1",
        later: bool = False,
    ) -> None:
        """Puts a command into the member's channel. ``later`` is as in :class:`StartPoint`."""
        member = self.house.machine.members["delays", who].id
        partitions = {tp(number): StartPoint(0, later=later) for number in start}
        command: StartFetcher | StopFetcher = StartFetcher(generation, 1, member.incarnation, partitions, "test")
        if stop:
            halted = self.house.stop(member, *stop)
            command = StopFetcher(generation, 1, member.incarnation, halted.partitions, "test")
        self.house.send(member, command)
        self.pump()

    def write(self) -> list[instructions.WriteMember]:
        """Lets ZooKeeper accept all writes. Returns them."""
        written, self.stores = self.stores, []
        for store in written:
            self.house.written(store)
        self.pump()
        return written
