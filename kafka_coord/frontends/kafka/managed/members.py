"""Turns the heartbeats and commits of KIP-848 members into stimuli of the machine of members. Pure.

A member is not bound to a TCP connection: it has a number of its own, which the machine takes for its connection.

A heartbeat with epoch 0 registers. A delivered stop-fetcher makes the assignment smaller, and a delivered start-fetcher
makes it larger; the answers tell the client its assignment. A heartbeat whose partitions lack those of the stop, or
contain those of the start, acknowledges the command. The member's epoch is the generation of the newest command that it
need not give up anything for.

A heartbeat that there is nothing to say to is held (:mod:`~kafka_coord.frontends.kafka.managed.pace`): until there is,
until its client sends something else, or until its limit. That of a member which has been told to stop partitions, and
has not done so, is answered at once: the acknowledgement comes in a later heartbeat.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import InvalidPattern
from kafka_coord.frontends.kafka.managed.pace import NOT_HELD_S, Pace
from kafka_coord.frontends.kafka.managed.topics import UNCHANGED, Topics
from kafka_coord.frontends.members.machine import MembershipMachine, instructions, stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, Offsets, RegistrationOptions, Stimulus
from kafka_coord.model import Command, CommandId, StartFetcher, StopFetcher, TopicPartition

JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
"""Epochs with a meaning in a heartbeat. ``LEAVE_FOR_NOW``: a static member, whose place is kept."""
FIRST_EPOCH = 1

Owned = frozenset[tuple[bytes, int]]
"""Partitions by topic id."""
Key = tuple[str, str]
"""Group and consumer: the name that the member has in the engine, its instance id or else its member id."""


_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


def consumer_name(identity: str) -> str:
    """The name in the engine for an instance id or a member id. librdkafka's have characters that names may not."""
    return _ILLEGAL.sub(lambda found: "".join(f"_{byte:02X}" for byte in found[0].encode()), identity)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat. ``owned`` is ``None`` if the client has not changed it, and so are parts of ``topics``.
    ``registration`` is the value of the member's registration, for a heartbeat that joins. ``software`` is the client's
    name, and empty if its heartbeats are not held."""

    token: Hashable
    key: Key
    member_id: str
    epoch: int
    owned: Owned | None = None
    topics: Topics = UNCHANGED
    registration: bytes = b""
    is_static: bool = False
    software: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the client sends all its fields, as it does when it does not know the answer to its last
        heartbeat."""
        return self.epoch == JOIN or (self.owned is not None and self.topics.is_told)


@dataclass(frozen=True, slots=True)
class Commit:
    """An OffsetCommit of a member."""

    token: Hashable
    key: Key
    member_id: str
    epoch: int
    offsets: Offsets = field(hash=False)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Answers a heartbeat. ``assignment`` is ``None`` if the client knows it; ``ids`` is the same by topic id, without
    topics that have none. ``interval_s``: when the next is to
    come after this one was sent."""

    token: Hashable
    error: Error
    member_id: str
    epoch: int
    assignment: frozenset[TopicPartition] | None = None
    ids: Owned = frozenset()
    message: str | None = None
    interval_s: float = NOT_HELD_S


@dataclass(frozen=True, slots=True)
class Committed:
    """Answers a commit; ``topics`` no longer exist."""

    token: Hashable
    error: Error
    topics: frozenset[str] = frozenset()


Answer = HeartbeatAnswer | Committed


@dataclass(slots=True, eq=False)
class ConsumerGroupMember:
    """One member. ``id`` is ``None`` until the machine has admitted it.

    ``assignment`` is what the client should own, ``sent`` what it was last told, ``owned`` what it last claimed to own.
    ``command`` is the delivered command that it has not acknowledged, and ``told`` whether an answer has told the
    client what that asks for. ``waiting`` is the heartbeat that is answered at ``answer_at`` at the latest, and
    ``changing`` one whose subscription is being written. ``topics`` are not known of a member that registered in an
    earlier term.
    """

    key: Key
    member_id: str
    connection: int
    topics: Topics
    pace: Pace
    is_static: bool
    id: MemberId | None = None
    first_epoch: int = FIRST_EPOCH
    epoch: int = FIRST_EPOCH
    previous_epoch: int = FIRST_EPOCH
    assignment: frozenset[TopicPartition] = frozenset()
    topic_ids: dict[str, bytes | None] = field(default_factory=dict)
    """Of the topics in ``assignment``, as of when they came into it: a topic may be made anew under its name since."""
    sent: frozenset[TopicPartition] | None = None
    owned: Owned | None = None
    command: tuple[CommandId, Command] | None = None
    told: bool = False
    has_acknowledged: bool = False
    changing: Heartbeat | None = None
    waiting: Heartbeat | None = None
    answer_at: float = 0.0
    leaving: Heartbeat | None = None
    commits: set[Hashable] = field(default_factory=set)

    def reach(self, generation: int) -> None:
        """The member has, or has been told, everything of this generation."""
        if generation <= self.epoch:
            return
        self.previous_epoch, self.epoch = self.epoch, generation
        if self.sent is None:  # nobody has been told any other
            self.first_epoch = generation


class ConsumerGroupMembers:
    """The members in one term. ``machine`` is the term's, and is only read. ``identity`` tells a topic's id, if it has
    one. :meth:`take` returns what has come of everything before: stimuli for the machine, and answers."""

    def __init__(
        self,
        machine: MembershipMachine,
        identity: Callable[[str], bytes | None],
        *,
        session_timeout_s: float,
    ) -> None:
        self._machine, self._identity = machine, identity
        self._session_timeout_s, self._now = session_timeout_s, 0.0
        self.members: dict[Key, ConsumerGroupMember] = {}
        self._by_connection: dict[int, ConsumerGroupMember] = {}
        self._of_group: dict[str, dict[str, ConsumerGroupMember]] = {}
        """By group and member id."""
        self._waits: list[tuple[float, int, ConsumerGroupMember]] = []
        """A heap of (time, member) for due answers; some entries may be obsolete."""
        self._numbers = itertools.count(1)
        self.doubtful: set[str] = set()
        """Topics of which a client owns less than it was told to start: perhaps they no longer exist."""
        self._stimuli: list[Stimulus] = []
        self._answers: list[Answer] = []

    def take(self) -> tuple[list[Stimulus], list[Answer]]:
        taken = self._stimuli, self._answers
        self._stimuli, self._answers = [], []
        return taken

    # --- from clients ------------------------------------------------------------------------------------------------

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        self._now = now
        if not beat.is_static and beat.epoch != JOIN:  # clients tell the instance id only with everything else
            beat = replace(beat, key=self.key_of(beat.key, beat.member_id))
        member = self.members.get(beat.key)
        if beat.epoch == JOIN:
            self._join(beat, member)
        elif member is None:
            self._resume(beat)
        elif member.member_id != beat.member_id:
            self._refuse(beat, Error.FENCED_INSTANCE_ID)
        elif member.id is None:
            self._wait(member, beat)
        elif beat.epoch < JOIN:
            member.leaving = beat
            for_good = member.is_static and beat.epoch == LEAVE
            self._stimuli.append(stimuli.LeaveWanted(member.connection, beat, {}, for_good))
        else:
            self._beats(member, beat)

    def interrupted(self, group: str, member_id: str, token: Hashable, now: float) -> None:
        """The client of this heartbeat has sent another request, whose answer must follow this one's."""
        self._now = now
        member = self._waits_for(group, member_id, token)
        if member is not None and member.id is not None:
            self._answer_waiting(member, member.pace.after_interruption(now))

    def gone(self, group: str, member_id: str, token: Hashable) -> None:
        """The client has given this heartbeat up."""
        member = self._waits_for(group, member_id, token)
        if member is not None:
            member.waiting = None

    def _waits_for(self, group: str, member_id: str, token: Hashable) -> ConsumerGroupMember | None:
        member = self._of_group.get(group, {}).get(member_id)
        waits = member is not None and member.waiting is not None and member.waiting.token is token
        return member if waits else None

    def _join(self, beat: Heartbeat, member: ConsumerGroupMember | None) -> None:
        """A client that joins again starts with nothing, as a new incarnation. A client that repeats a join because it
        lost the answer stays the same."""
        if not beat.topics.is_told:
            self._refuse(beat, Error.INVALID_REQUEST, "a member that joins says what it subscribes to")
            return
        if member is not None and member.member_id != beat.member_id:
            self._refuse(beat, Error.UNRELEASED_INSTANCE_ID, f"another member has the instance id {beat.key[1]}")
            return
        if member is not None and member.topics == beat.topics.since(UNCHANGED) and not member.has_acknowledged:
            member.owned = None
            self._stimuli.append(stimuli.Heard(member.connection))
            self._wait(member, beat)
            if member.command is not None:
                self._answer_waiting(member, member.pace.after_news())
            return
        pace = Pace.of(beat.software)
        if member is not None:
            pace = member.pace
            self._end(member, Error.UNKNOWN_MEMBER_ID)
            self._stimuli.append(stimuli.Disconnected(member.connection))
        member = self._made(beat, pace)
        member.topics = beat.topics.since(UNCHANGED)
        self._wait(member, beat)
        options = RegistrationOptions(self._session_timeout_s, auto_commit=False, resume_key=beat.member_id)
        self._stimuli.append(stimuli.RegistrationWanted(member.connection, beat, *beat.key, options, beat.registration))

    def _resume(self, beat: Heartbeat) -> None:
        """Continues a member that registered in an earlier term."""
        found = self._machine.members.get(beat.key)
        if found is None or found.options.resume_key != beat.member_id:
            self._refuse(beat, Error.UNKNOWN_MEMBER_ID)
            return
        member = self._made(beat, Pace.of(beat.software))
        member.first_epoch = member.epoch = member.previous_epoch = max(FIRST_EPOCH, beat.epoch)
        self._wait(member, beat)
        self._stimuli.append(stimuli.ResumeWanted(member.connection, beat, found.id, beat.member_id))

    def _made(self, beat: Heartbeat, pace: Pace) -> ConsumerGroupMember:
        member = ConsumerGroupMember(beat.key, beat.member_id, next(self._numbers), UNCHANGED, pace, beat.is_static)
        self.members[beat.key] = self._by_connection[member.connection] = member
        self._of_group.setdefault(beat.key[0], {})[beat.member_id] = member
        return member

    def _wait(self, member: ConsumerGroupMember, beat: Heartbeat) -> None:
        """Lets a heartbeat wait until the machine has admitted its member, and a join until there is news for it."""
        member.pace.arrived(self._now)
        self._hold(member, beat, member.pace.join_limit_s())

    def _hold(self, member: ConsumerGroupMember, beat: Heartbeat, limit_s: float) -> None:
        """Replaces an earlier heartbeat whose answer its client has given up."""
        if member.waiting is not None:
            self._refuse(member.waiting, Error.COORDINATOR_LOAD_IN_PROGRESS)
        member.waiting, member.answer_at = beat, self._now + limit_s
        heapq.heappush(self._waits, (member.answer_at, next(self._numbers), member))

    def _beats(self, member: ConsumerGroupMember, beat: Heartbeat) -> None:
        is_late = beat.epoch == member.previous_epoch and (beat.owned is None or self._is_assigned(member, beat.owned))
        if not (beat.epoch == member.epoch or is_late):
            self._refuse(beat, Error.FENCED_MEMBER_EPOCH)
            return
        self._stimuli.append(stimuli.Heard(member.connection))
        topics = beat.topics.since(member.topics)
        if beat.topics.is_told and topics != member.topics:
            self._subscribe(member, beat, topics)
        else:
            self._go_on(member, beat)

    def _subscribe(self, member: ConsumerGroupMember, beat: Heartbeat, topics: Topics) -> None:
        try:
            subscription = topics.subscription()
        except InvalidPattern as error:
            self._refuse(beat, Error.INVALID_REQUEST, str(error))
            return
        if member.changing is not None:
            self._refuse(member.changing, Error.COORDINATOR_LOAD_IN_PROGRESS)
        member.changing, member.topics = beat, topics
        self._stimuli.append(stimuli.SubscriptionWanted(member.connection, beat, subscription))

    def _go_on(self, member: ConsumerGroupMember, beat: Heartbeat) -> None:
        if beat.owned is not None:
            member.owned = beat.owned
        self._acknowledge(member)
        pace = member.pace
        pace.arrived(self._now)
        if member.command is not None:
            self._tell(member, beat, pace.while_stopping() if member.told else pace.after_news())
        elif beat.is_whole or member.sent != member.assignment or pace.limit_s() <= 0:
            self._tell(member, beat, pace.after_limit(self._now))
        else:
            self._hold(member, beat, pace.limit_s())

    def _is_assigned(self, member: ConsumerGroupMember, owned: Owned) -> bool:
        return owned <= _by_id(member, member.assignment)

    def _acknowledge(self, member: ConsumerGroupMember) -> None:
        """Acknowledges the delivered command if the client owns what that asks for. One that owns partitions of a topic
        that is gone has not stopped them, whatever has their name now. Nobody can start partitions of such a topic."""
        if member.command is None or not member.told or member.owned is None:
            return
        command_id, command = member.command
        if isinstance(command, StartFetcher):
            existing = [tp for tp in command.partitions if self._identity(tp.topic) == member.topic_ids.get(tp.topic)]
            is_done = _by_id(member, existing) <= member.owned
            if not is_done:
                self.doubtful.update(tp.topic for tp in existing)
        else:
            is_done = self._is_assigned(member, member.owned)
        if is_done:
            self._acknowledged(member, command_id, command)

    def _acknowledged(self, member: ConsumerGroupMember, command_id: CommandId, command: Command) -> None:
        member.command, member.told, member.has_acknowledged = None, False, True
        member.reach(command.generation)
        self._stimuli.append(stimuli.CommandAcknowledged(member.connection, command_id, {}))

    def commit(self, commit: Commit, now: float) -> None:
        self._now = now
        key = self.key_of(commit.key, commit.member_id)
        error = self.why_not(key, commit.member_id, commit.epoch)
        if error is not Error.NONE:
            self._answers.append(Committed(commit.token, error))
            return
        member = self.members[key]
        member.pace.committed(now)
        if member.command is not None and member.told:
            command_id, command = member.command
            if isinstance(command, StartFetcher) and not commit.offsets.keys().isdisjoint(command.partitions):
                self._acknowledged(member, command_id, command)  # this says that it has started
        member.commits.add(commit.token)
        self._stimuli += [
            stimuli.Heard(member.connection),
            stimuli.CommitWanted(member.connection, commit.token, commit.offsets),
        ]

    def why_not(self, key: Key, member_id: str, epoch: int) -> Error:
        """Why a member with this epoch may not commit or fetch offsets. Every epoch since its join is valid: the
        machine knows what the member holds."""
        member = self.members.get(key)
        if member is None or member.id is None:
            found = self._machine.members.get(key)
            may_return = found is not None and found.options.resume_key == member_id
            return Error.COORDINATOR_LOAD_IN_PROGRESS if may_return else Error.UNKNOWN_MEMBER_ID
        if member.member_id != member_id:
            return Error.UNKNOWN_MEMBER_ID
        good = member.first_epoch <= epoch <= member.epoch
        return Error.NONE if good else Error.STALE_MEMBER_EPOCH

    def key_of(self, key: Key, member_id: str) -> Key:
        """The key of the member with this id, if there is one. ``key`` is what it has unless it is static."""
        member = self._of_group.get(key[0], {}).get(member_id)
        if member is not None or key in self._machine.members:
            return key if member is None else member.key
        known = self._machine.members.values()  # of an earlier term
        ids = (one.key for one in known if one.id.group == key[0] and one.options.resume_key == member_id)
        return next(ids, key)

    def heard_of(self, group: str) -> list[ConsumerGroupMember]:
        """The members that have sent something in this term. Any thread may call it."""
        return list(self._of_group.get(group, {}).values())

    # --- from the machine --------------------------------------------------------------------------------------------

    def receive(self, instruction: instructions.ToClient, topic_ids: Mapping[str, bytes] | None = None) -> None:
        """What the machine says to a client. Not its refusal to register, which is for :meth:`not_registered`.
        ``topic_ids`` are those in the member's ledger: a topic may have been made anew under its name since."""
        member = self._by_connection.get(instruction.connection)
        if member is None:
            return
        match instruction:
            case instructions.Welcome():
                member.id = instruction.member
                if member.waiting is not None and member.waiting.epoch != JOIN:
                    self._take_up(member)
            case instructions.Resumed():
                found = self._machine.members.get(member.key)
                if found is None or found.id != instruction.member:
                    return  # the next instruction reports its end
                member.id, member.has_acknowledged = instruction.member, True
                self._assign(member, found.held, topic_ids or {})
                self._take_up(member)
            case instructions.Deliver():
                self._deliver(member, instruction.command_id, instruction.command, topic_ids or {})
            case instructions.AnswerCommit():
                self._answer_commit(member, instruction)
            case instructions.Farewell():
                beat, member.leaving = member.leaving, None
                if beat is not None:
                    self._answers.append(HeartbeatAnswer(beat.token, Error.NONE, beat.member_id, beat.epoch))
                self._end(member, Error.UNKNOWN_MEMBER_ID)
            case instructions.Dismiss() | instructions.RefuseResume():
                self._end(member, Error.UNKNOWN_MEMBER_ID)
            case _:  # probes: heartbeats come by themselves
                pass

    def not_registered(self, connection: int, error: Error, message: str) -> None:
        member = self._by_connection.get(connection)
        if member is not None:
            self._end(member, error, message)

    def _take_up(self, member: ConsumerGroupMember) -> None:
        """Handles the heartbeat that waited until the machine admitted the member."""
        beat, member.waiting = member.waiting, None
        if beat is not None:
            self.heartbeat(beat, self._now)

    def _deliver(
        self, member: ConsumerGroupMember, command_id: CommandId, command: Command, topic_ids: Mapping[str, bytes]
    ) -> None:
        member.command, member.told = (command_id, command), False
        if isinstance(command, StopFetcher):
            member.assignment = member.assignment.difference(command.partitions)
        else:
            self._assign(member, command.partitions, topic_ids)
            member.reach(command.generation)
        if member.waiting is not None:
            self._answer_waiting(member, member.pace.after_news())

    def _assign(
        self, member: ConsumerGroupMember, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, bytes]
    ) -> None:
        member.assignment = member.assignment.union(partitions)
        topics = {tp.topic for tp in partitions}
        member.topic_ids |= {topic: topic_ids.get(topic) or self._identity(topic) for topic in topics}

    def _answer_commit(self, member: ConsumerGroupMember, instruction: instructions.AnswerCommit) -> None:
        if instruction.request is member.leaving and member.leaving is not None:
            self._refuse(member.leaving, Error.COORDINATOR_NOT_AVAILABLE, instruction.message)
            member.leaving = None
            return
        if instruction.request is member.changing and member.changing is not None:
            self._subscribed(member, member.changing, instruction)
            return
        member.commits.discard(instruction.request)
        errors = {
            instructions.Refused.NOT_HELD: Error.STALE_MEMBER_EPOCH,
            instructions.Refused.FAILED: Error.COORDINATOR_NOT_AVAILABLE,
        }
        error = Error.NONE if instruction.refused is None else errors[instruction.refused]
        self._answers.append(Committed(instruction.request, error, instruction.topics))

    def _subscribed(self, member: ConsumerGroupMember, beat: Heartbeat, instruction: instructions.AnswerCommit) -> None:
        member.changing = None
        if instruction.refused is None:
            self._go_on(member, beat)
        else:
            member.topics = UNCHANGED  # unknown, so the client's next attempt is one
            self._refuse(beat, Error.COORDINATOR_NOT_AVAILABLE, instruction.message)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _tell(self, member: ConsumerGroupMember, beat: Heartbeat, interval_s: float) -> None:
        news = None
        if beat.is_whole or member.sent != member.assignment:
            news = member.sent = member.assignment
        member.told = member.command is not None
        ids = frozenset() if news is None else _by_id(member, news)
        self._answers.append(
            HeartbeatAnswer(beat.token, Error.NONE, member.member_id, member.epoch, news, ids, interval_s=interval_s)
        )

    def _answer_waiting(self, member: ConsumerGroupMember, interval_s: float) -> None:
        beat, member.waiting = member.waiting, None
        if beat is not None:
            self._tell(member, beat, interval_s)

    def _refuse(self, beat: Heartbeat, error: Error, message: str | None = None) -> None:
        self._answers.append(HeartbeatAnswer(beat.token, error, beat.member_id, beat.epoch, message=message))

    def _end(self, member: ConsumerGroupMember, error: Error, message: str | None = None) -> None:
        """Forgets the member, and answers everything that waits."""
        self._by_connection.pop(member.connection, None)
        if self.members.get(member.key) is member:
            del self.members[member.key]
        of_group = self._of_group.get(member.key[0], {})
        if of_group.get(member.member_id) is member:
            del of_group[member.member_id]
            if not of_group:
                del self._of_group[member.key[0]]
        for beat in (member.waiting, member.changing, member.leaving):
            if beat is not None:
                self._refuse(beat, error, message)
        self._answers += [Committed(token, error) for token in member.commits]
        member.waiting = member.changing = member.leaving = None
        member.commits.clear()

    def end(self) -> None:
        """The term is over: the clients look for the coordinator again."""
        for member in list(self.members.values()):
            self._end(member, Error.NOT_COORDINATOR)

    # --- time --------------------------------------------------------------------------------------------------------

    def due(self) -> float:
        """The time at which :meth:`tick` next has an effect."""
        while self._waits and not self._holds(*self._waits[0]):
            heapq.heappop(self._waits)
        return self._waits[0][0] if self._waits else float("inf")

    def _holds(self, at: float, _number: int, member: ConsumerGroupMember) -> bool:
        return member.waiting is not None and member.answer_at == at

    def tick(self, now: float) -> None:
        """Answers heartbeats that have waited long enough."""
        self._now = now
        while self.due() <= now:
            _, _, member = heapq.heappop(self._waits)
            if member.id is not None:
                self._answer_waiting(member, member.pace.after_limit(now))
            elif member.waiting is not None:
                self._refuse(member.waiting, Error.COORDINATOR_LOAD_IN_PROGRESS)
                member.waiting = None


def _by_id(member: ConsumerGroupMember, partitions: Iterable[TopicPartition]) -> Owned:
    """The member's partitions by topic id, without topics that have no id."""
    found = ((member.topic_ids.get(tp.topic), tp.partition) for tp in partitions)
    return frozenset((topic_id, partition) for topic_id, partition in found if topic_id is not None)
