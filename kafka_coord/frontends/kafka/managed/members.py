"""Presents stock Kafka clients to the member state machine as if they were socket connections. Does no I/O.

A member is not bound to a TCP connection: it has a number, which the machine treats as its connection. A request may be
held until there is news for the client.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.heartbeat_hold import LateBeats
from kafka_coord.frontends.kafka.managed.member import (
    FIRST_EPOCH,
    Answer,
    KafkaMember,
    Key,
    MemberCommit,
    MemberCommitted,
    MemberRequest,
)
from kafka_coord.frontends.kafka.managed.topics import UNCHANGED
from kafka_coord.frontends.members.machine import MembershipMachine, instructions, stimuli
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions, Stimulus
from kafka_coord.model import CommittedOffset, Departure, DepartureKind, PartitionSet, TopicPartition
from kafka_coord.model.member import LEFT
from kafka_coord.model.names import generated

_MOST_FORMER = 10_000
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


def consumer_name(identity: str) -> str:
    """Returns the consumer name for an instance id or a member id, with illegal characters escaped. librdkafka's ids
    contain such characters."""
    return _ILLEGAL.sub(lambda found: "".join(f"_{byte:02X}" for byte in found[0].encode()), identity)


def fresh_member_id(client_id: str, instance_id: str | None, unique: str) -> str:
    """Generates a member id as Kafka does, but shortens the first part so that :func:`consumer_name` is legal. The Java
    client's default ``client.id`` contains the group's name."""
    prefix = client_id if instance_id is None else instance_id
    return generated(prefix, f"-{unique}", lambda part: len(consumer_name(part)))


def is_instance(key: Key, member_id: str) -> bool:
    """Returns whether ``key`` contains an instance id, and not the member's id."""
    return key[1] != consumer_name(member_id)


class KafkaMembers:
    """The members served in one term. ``machine`` belongs to the term, and this class only reads it. ``identity``
    returns a topic's id, or ``None`` if it is unknown. ``session_timeout_s`` applies to KIP-848 members. :meth:`take`
    returns and clears the stimuli for the machine and the responses to clients."""

    def __init__(
        self, machine: MembershipMachine, identity: Callable[[str], bytes | None], *, session_timeout_s: float
    ) -> None:
        self._machine, self.identity = machine, identity
        self.session_timeout_s, self.now = session_timeout_s, 0.0
        self.members: dict[Key, KafkaMember] = {}
        self._by_connection: dict[int, KafkaMember] = {}
        self._of_group: dict[str, dict[str, KafkaMember]] = {}
        """The members by group and member id."""
        self._waits: list[tuple[float, int, KafkaMember]] = []
        """A heap of the times when held requests must be answered. Some entries may be stale."""
        self._joining: dict[KafkaMember, None] = {}
        """The members that are waiting for their share. Some may have stopped waiting."""
        self.targets: dict[str, Mapping[str, PartitionSet]] = {}
        """The consumers' shares by group, for groups with members that are waiting for their share."""
        self._former: dict[tuple[str, str], None] = {}
        """The last member ids whose places were taken, by group. A KIP-848 client does not repeat its instance id in
        its heartbeats: told UNKNOWN_MEMBER_ID, it would take its place back."""
        self._late = LateBeats()
        self._numbers = itertools.count(1)
        self.doubtful: set[str] = set()
        """Topics that may no longer exist, because a client has not started all of the partitions that it should."""
        self._stimuli: list[Stimulus] = []
        self._answers: list[Answer] = []

    def take(self) -> tuple[list[Stimulus], list[Answer]]:
        taken = self._stimuli, self._answers
        self._stimuli, self._answers = [], []
        return taken

    # --- requests from clients ---------------------------------------------------------------------------------------

    def arrived(self, request: MemberRequest, now: float) -> None:
        """Handles a request from a member, except a commit."""
        self.now = now
        if not request.member_id and request.leaves:  # an operator identifies a static member by its instance id
            request = replace(request, member_id=self.earlier_id(request.key) or "")
        if not request.is_static and not request.joins:  # KIP-848 clients omit the instance id if it is unchanged
            request = replace(request, key=self.key_of(request.key, request.member_id))
        member = self.members.get(request.key)
        is_former = (request.key[0], request.member_id) in self._former
        if not request.leaves and (is_former or (member is not None and member.is_replaced(request.member_id))):
            self.refuse(request, Error.FENCED_INSTANCE_ID)
        elif request.joins:
            request.join(self, member)
        elif member is None and request.may_be_late and self._late.may_come((request.key[0], request.member_id), now):
            self.refuse(request, Error.NONE)  # an error could make the client give up a newer join
        elif member is None:
            self.resume(request)
        elif member.member_id != request.member_id:
            self._from_another(member, request)
        elif member.protocol != request.protocol and not request.leaves:  # an operator removes members by LeaveGroup
            self.refuse(request, Error.UNKNOWN_MEMBER_ID)
        elif member.id is None:
            member.wait(request)
        elif request.leaves:
            self.leave(member, request)
        else:
            if member.waiting is not None:  # on another connection
                member.given_up()
            member.arrived(request)

    def interrupted(self, group: str, member_id: str, token: Hashable, now: float) -> None:
        """Answers a held request early, because its client has sent another one and responses must be in order."""
        self.now = now
        member = self._waits_for(group, member_id, token)
        if member is not None and member.id is not None:
            member.interrupted()

    def gone(self, group: str, member_id: str, token: Hashable, now: float, *, by_client: bool) -> None:
        """Drops a held request whose connection is lost. ``by_client`` says whether the client closed it. If nobody can
        know the member's id now, the member leaves: it would hold its partitions, or its instance id, for a session."""
        self.now = now
        member = self._waits_for(group, member_id, token)
        if member is not None and member.waiting is not None:
            if by_client:
                member.given_up()
            request, member.waiting = member.waiting, None
            if request.is_new:
                member.deserted = request
                if member.id is not None:
                    self._leave_for(member, request)
        for one in list(self._of_group.get(group, {}).values()):
            if one.successor is not None and one.successor.token is token:
                self._steps_back(one)

    def _waits_for(self, group: str, member_id: str, token: Hashable) -> KafkaMember | None:
        member = self._of_group.get(group, {}).get(member_id)
        waits = member is not None and member.waiting is not None and member.waiting.token is token
        return member if waits else None

    def commit(self, commit: MemberCommit, now: float) -> None:
        self.now = now
        key = commit.key if commit.is_static else self.key_of(commit.key, commit.member_id)
        error = self.why_not(key, commit.member_id, commit.epoch)
        if error is Error.NONE:
            holder = self.members[key]
            if holder.owns_nothing or not holder.has_read(commit.offsets, commit.epoch):
                error = holder.not_held
        if error is Error.NONE and commit.connection < self.members[key].committed_on:
            # The client has reconnected and committed again: these offsets are older, and no one awaits the response.
            error = Error.COORDINATOR_NOT_AVAILABLE
        if error is not Error.NONE:
            self.answer(MemberCommitted(commit.token, error))
            return
        member = self.members[key]
        member.committed_on = commit.connection
        member.committed(commit)
        member.commits.add(commit.token)
        self.tell(stimuli.HeardFrom(member.connection))
        self.tell(stimuli.CommitWanted(member.connection, commit.token, commit.offsets, commit.details))

    def why_not(self, key: Key, member_id: str, epoch: int) -> Error:
        """Returns why a member with the given epoch is not allowed to commit or fetch offsets, or NONE if it is. Every
        epoch since the member joined is valid: the machine itself checks which partitions the member holds."""
        member, known = self.members.get(key), self.known_as(key)
        has_another = known is not None and known[1] != member_id
        if (has_another and is_instance(key, member_id)) or (member is not None and member.is_replaced(member_id)):
            return Error.FENCED_INSTANCE_ID
        if member is None or member.id is None:
            may_return = self.earlier_id(key) == member_id
            return Error.COORDINATOR_LOAD_IN_PROGRESS if may_return else Error.UNKNOWN_MEMBER_ID
        if has_another:
            return Error.UNKNOWN_MEMBER_ID
        return Error.NONE if member.knows(epoch) else member.wrong_epoch

    def key_of(self, key: Key, member_id: str) -> Key:
        """Returns the key of the member with the given id, or ``key`` if there is no such member. The keys can differ
        only if the member is static."""
        member = self._of_group.get(key[0], {}).get(member_id)
        if member is not None or key in self._machine.members:
            return key if member is None else member.key
        states = self._machine.members.values()  # including members from an earlier term
        keys = (one.key for one in states if one.id.group == key[0] and one.options.resume_key == member_id)
        return next(keys, key)

    def protocol_of(self, group: str, member_id: str) -> str:
        """Returns the protocol of the member with that id, or "" if it has not sent a request in this term. Any thread
        may call this method."""
        member = self._of_group.get(group, {}).get(member_id)
        return member.protocol if member is not None else ""

    def heard_of(self, group: str) -> list[KafkaMember]:
        """Returns the members that have sent a request in this term. Any thread may call this method."""
        return list(self._of_group.get(group, {}).values())

    def hand_over(self, group: str, now: float) -> list[KafkaMember] | None:
        """Answers what the group's members wait for, and returns the members, or ``None`` while anything of theirs is
        being written."""
        self.now = now
        members = self.heard_of(group)
        for one in members:
            if one.waiting is not None and one.id is not None:
                one.overdue()
        states = [self._machine.members.get(one.key) for one in members]
        is_writing = any(state is None or state.has_unwritten for state in states)
        return None if is_writing or any(map(_is_busy, members)) else members

    def left_ms(self, now: float) -> dict[tuple[str, str], int | None]:
        """Returns, by group and member id, ``None`` for each member that has sent a request in this term, and for each
        of the others what is left of its session, in ms. Any thread may call this method."""
        return self._machine.left_ms(
            now, lambda state: state.options.resume_key, lambda state: state.key in self.members
        )

    def earlier_id(self, key: Key) -> str | None:
        """Returns the member id that the machine knows for ``key``, perhaps from an earlier term, or ``None``."""
        options = self.earlier_options(key)
        return options.resume_key if options is not None else None

    def known_as(self, key: Key) -> tuple[str, str] | None:
        """Returns the protocol and the id of the member with ``key``, perhaps from an earlier term or still being
        registered, or ``None`` if there is no such member."""
        options, member = self.earlier_options(key), self.members.get(key)
        if options is not None:
            return options.protocol or "", options.resume_key
        return (member.protocol, member.member_id) if member is not None else None

    def earlier_options(self, key: Key) -> RegistrationOptions | None:
        found = self._machine.members.get(key)
        return found.options if found is not None else None

    def leader_epochs(self, group: str) -> ChainMap[TopicPartition, CommittedOffset]:
        """Returns the committed offsets whose leader epochs are not stored yet."""
        keys = (one.key for one in self._of_group.get(group, {}).values())
        return ChainMap(*(found.leader_epochs for key in keys if (found := self._machine.members.get(key)) is not None))

    # --- called by requests and members ------------------------------------------------------------------------------

    def tell(self, stimulus: Stimulus) -> None:
        self._stimuli.append(stimulus)

    def answer(self, answer: Answer) -> None:
        self._answers.append(answer)

    def refuse(self, request: MemberRequest, error: Error, message: str | None = None) -> None:
        self.answer(request.answered(error, message))

    def add(self, request: MemberRequest) -> KafkaMember:
        """Creates a member that the machine has yet to admit."""
        member = request.made(self, next(self._numbers))
        self.members[request.key] = self._by_connection[member.connection] = member
        self._of_group.setdefault(request.key[0], {})[request.member_id] = member
        return member

    def register(self, member: KafkaMember, request: MemberRequest, options: RegistrationOptions, value: bytes) -> None:
        """Registers a member. ``value`` is the content of its registration. The request is held until the machine has
        admitted the member."""
        member.wait(request)
        self.tell(stimuli.RegistrationWanted(member.connection, request, *member.key, options, value))

    def resume(self, request: MemberRequest) -> None:
        """Resumes a member that registered in an earlier term."""
        state = self._machine.members.get(request.key)
        if state is not None and state.options.resume_key != request.member_id:
            self._refuse_another(request, state.options.resume_key)
            return
        if state is None or state.options.protocol != request.protocol:
            self.refuse(request, Error.UNKNOWN_MEMBER_ID)
            return
        member = self.add(request)
        member.wait(request)
        self.tell(stimuli.ResumeWanted(member.connection, request, state.id, request.member_id))

    def drop(self, member: KafkaMember) -> None:
        """Forgets a member whose client rejoins under the same name."""
        self._end(member, Error.UNKNOWN_MEMBER_ID)
        self.tell(stimuli.Disconnected(member.connection))

    def leave(self, member: KafkaMember, request: MemberRequest) -> None:
        member.leaving = request
        departure = LEFT
        if request.by and member.joined_by and _without_port(request.by) != _without_port(member.joined_by):
            departure = Departure(DepartureKind.EVICTED, by=request.by)
        for_good = member.is_static and request.leaves_for_good
        self.tell(stimuli.LeaveWanted(member.connection, request, {}, for_good, departure))

    def replace(self, join: MemberRequest, member: KafkaMember | None, member_id: str) -> None:
        """Replaces the static member that has ``join``'s key and the given id, whatever its protocol: its client is
        fenced, the member leaves, and the client that sent ``join`` takes its place."""
        state = self._machine.members.get(join.key)
        if member is None and state is not None:
            member = self.add(replace(join, member_id=member_id))
            self.tell(stimuli.ResumeWanted(member.connection, join, state.id, member_id))
        if member is None:
            return
        if member.successor is not None:
            is_repeated = member.successor.member_id == join.member_id
            error = Error.COORDINATOR_LOAD_IN_PROGRESS if is_repeated else Error.FENCED_INSTANCE_ID
            self.refuse(member.successor, error)
        elif member.id is not None and member.deserted is None:
            self._leave_for(member, join)
        member.successor = join
        for request in (member.waiting, member.changing):
            if request is not None:
                self.refuse(request, Error.FENCED_INSTANCE_ID)
        member.waiting = member.changing = None

    def _from_another(self, member: KafkaMember, request: MemberRequest) -> None:
        """Refuses a request from a client that is not the member, unless the client was to take the member's place and
        leaves before that."""
        successor = member.successor
        if successor is None or not request.leaves or successor.member_id != request.member_id:
            self._refuse_another(request, member.member_id)
            return
        self.refuse(successor, Error.UNKNOWN_MEMBER_ID)
        self._steps_back(member)
        self.refuse(request, Error.NONE)

    def _refuse_another(self, request: MemberRequest, member_id: str) -> None:
        """Refuses a request that comes from another client than the member with its key, whose id is ``member_id``.
        As in Kafka, only who names the instance id of a static member is fenced."""
        is_fenced = request.is_static and is_instance(request.key, member_id)
        self.refuse(request, Error.FENCED_INSTANCE_ID if is_fenced else Error.UNKNOWN_MEMBER_ID)

    def _steps_back(self, member: KafkaMember) -> None:
        """Forgets the client that was to take the member's place, because it has left or its connection is lost. It
        must not become a member: nobody would end that membership, which would keep out the client's next process."""
        member.successor = None
        if member.id is None:  # the member itself has not been heard in this term
            self.drop(member)

    def _leave_for(self, member: KafkaMember, join: MemberRequest) -> None:
        """Makes a member leave for its successor, or because its own client is gone. One that is static keeps its
        place."""
        departure = LEFT if join is member.deserted else Departure(DepartureKind.REPLACED, by=join.by)
        self.tell(stimuli.LeaveWanted(member.connection, join, {}, departure=departure))

    def waits_for_share(self, member: KafkaMember) -> None:
        self._joining[member] = None

    def waits(self, member: KafkaMember) -> None:
        """Makes :meth:`tick` answer the member's held request at ``answer_at``."""
        heapq.heappush(self._waits, (member.answer_at, next(self._numbers), member))

    # --- messages from the machine -----------------------------------------------------------------------------------

    def receive(self, instruction: instructions.ToClient, topic_ids: Mapping[str, bytes] | None = None) -> None:
        """Handles a message from the machine to a client, except the refusal of a registration (see
        :meth:`not_registered`). ``topic_ids`` contains the ids in the member's ledger. If a topic has been recreated
        since, its current id differs."""
        member = self._by_connection.get(instruction.connection)
        if member is None:
            return
        match instruction:
            case instructions.Welcome():
                member.id = instruction.member
                self._admitted(member)
            case instructions.Resumed():
                state = self._machine.members.get(member.key)
                if state is None or state.id != instruction.member:
                    return  # the next instruction reports that the member has ended
                member.returning, member.has_acknowledged = instruction.member, True
                member.assignment = frozenset(state.held)
                generation = instruction.generation
                newest = member.epoch if generation is None else max(FIRST_EPOCH, generation)
                member.resumed(topic_ids or {}, newest, is_settled=not instruction.outstanding)
                if not instruction.outstanding:
                    self._returned(member)
            case instructions.Deliver():
                self._deliver(member, instruction, topic_ids or {})
            case instructions.AnswerCommit():
                self._answer_commit(member, instruction)
            case instructions.Farewell():
                self._left(member)
            case instructions.Dismiss() | instructions.RefuseResume():
                self._end(member, Error.UNKNOWN_MEMBER_ID)
            case instructions.Probe(done=done) if done is not None:
                member.written(done)
            case _:  # other probes do not need a message: clients send heartbeats of their own accord
                pass

    def groups_joining(self) -> set[str]:
        """Returns the groups with members that are waiting for their share. The caller must pass the groups' targets to
        :meth:`target_read`."""
        for member in [one for one in self._joining if not one.waits_for_share]:
            del self._joining[member]
        groups = {member.key[0] for member in self._joining}
        for group in self.targets.keys() - groups:
            del self.targets[group]
        return groups

    def target_read(self, group: str, target: Mapping[str, PartitionSet]) -> None:
        self.targets[group] = target
        for member in [one for one in self._joining if one.key[0] == group and one.waits_for_share]:
            member.target_read()

    def not_registered(self, connection: int, error: Error, message: str) -> None:
        member = self._by_connection.get(connection)
        if member is not None:
            self._end(member, error, message)

    def _admitted(self, member: KafkaMember, *, resumed: bool = False) -> None:
        """Handles the request that was waiting for admission. A new member's join stays held until there is news."""
        leaves_for = member.successor or member.deserted
        if leaves_for is not None:
            self._leave_for(member, leaves_for)
        elif member.waiting is not None and (resumed or not member.waiting.joins):
            request, member.waiting = member.waiting, None
            self.arrived(request, self.now)

    def _deliver(self, member: KafkaMember, sent: instructions.Deliver, topic_ids: Mapping[str, bytes]) -> None:
        """Delivers a command. If the member has been resumed, handles its waiting request only afterwards."""
        request = member.waiting
        if member.returning is not None:
            member.waiting = None
        member.deliver(sent.command_id, sent.command, topic_ids)
        if member.returning is not None:
            member.waiting = request
            self._returned(member)

    def _returned(self, member: KafkaMember) -> None:
        """Admits a resumed member. Called once its first command (if any) is known or has taken too long to arrive."""
        member.id, member.returning = member.returning, None
        self._admitted(member, resumed=True)

    def _left(self, member: KafkaMember) -> None:
        request, member.leaving = member.leaving, None
        if request is not None:
            self.refuse(request, Error.NONE)
            self._late.left((member.key[0], member.member_id), member.late_until, self.now)
        self._end(member, Error.UNKNOWN_MEMBER_ID)

    def _answer_commit(self, member: KafkaMember, instruction: instructions.AnswerCommit) -> None:
        """Handles the outcome of a commit or a new subscription, or a failed attempt to leave."""
        request, refused = instruction.request, instruction.refused
        if not isinstance(request, MemberRequest):
            member.commits.discard(request)
            failed = member.not_held if refused is instructions.Refused.NOT_HELD else Error.COORDINATOR_NOT_AVAILABLE
            self.answer(MemberCommitted(request, Error.NONE if refused is None else failed, instruction.topics))
            return
        if request is member.leaving:
            member.leaving = None
        elif request is member.successor:
            member.successor = None
        elif request is member.changing:
            member.changing = None
            if refused is None:
                member.go_on(request)
                return
            member.topics = UNCHANGED  # the client's next attempt must count as a change
        else:
            return
        self.refuse(request, Error.COORDINATOR_NOT_AVAILABLE, instruction.message)

    def _end(self, member: KafkaMember, error: Error, message: str | None = None) -> None:
        """Forgets the member and answers its held requests."""
        self._by_connection.pop(member.connection, None)
        if self.members.get(member.key) is member:
            del self.members[member.key]
        of_group = self._of_group.get(member.key[0], {})
        if of_group.get(member.member_id) is member:
            del of_group[member.member_id]
            if not of_group:
                del self._of_group[member.key[0]]
        for request in (member.waiting, member.changing, member.leaving):
            if request is not None:
                self.refuse(request, error, message)
        self._answers += [MemberCommitted(token, error) for token in member.commits]
        member.waiting = member.changing = member.leaving = None
        member.commits.clear()
        successor, member.successor = member.successor, None
        if successor is not None and error is Error.NOT_COORDINATOR:
            self.refuse(successor, error)
        elif successor is not None:
            self._former[member.key[0], member.member_id] = None
            if len(self._former) > _MOST_FORMER:
                del self._former[next(iter(self._former))]
            self.arrived(successor, self.now)

    def end(self) -> None:
        """Ends the term, which makes all clients look for the coordinator again."""
        for member in list(self.members.values()):
            self._end(member, Error.NOT_COORDINATOR)

    def due(self) -> float:
        """Returns when :meth:`tick` will next have something to do."""
        while self._waits:
            at, _, member = self._waits[0]
            if member.waiting is not None and member.answer_at == at:
                return at
            heapq.heappop(self._waits)
        return float("inf")

    def tick(self, now: float) -> None:
        """Answers requests that have waited long enough."""
        self.now = now
        while self.due() <= now:
            _, _, member = heapq.heappop(self._waits)
            if member.returning is not None:  # still not admitted, for example because its command cannot be read
                self._returned(member)
            elif member.id is not None:
                member.overdue()
            elif member.waiting is not None:
                self.refuse(member.waiting, Error.COORDINATOR_LOAD_IN_PROGRESS)
                member.waiting = None


def _is_busy(member: KafkaMember) -> bool:
    under_way = (member.id is None, member.waiting, member.changing, member.leaving, member.successor, member.commits)
    return any(under_way)


def _without_port(by: str) -> str:
    """Returns the description of a client without its port, which changes when it connects again."""
    return by.rpartition(":")[0]
