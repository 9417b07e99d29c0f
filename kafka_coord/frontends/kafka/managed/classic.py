"""Serves classic clients (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as members of managed groups. Does no I/O.

::

    JoinGroup ──▶ registered ─────▶ joined: has its generation ──SyncGroup──▶ has its share
                  (held until               ▲                                      │
                  it gets partitions)       │                                      │ its share changes:
                                            └──────────────JoinGroup───────────────┘ REBALANCE_IN_PROGRESS

No member is the leader: the coordinator decides, and SyncGroup returns the member's share. Only members whose shares
change must rejoin; the others keep their generation.

A SyncGroup acknowledges the start of the partitions in its response, so it is answered only once that acknowledgement
has been stored. A JoinGroup acknowledges the stop of all partitions that it does not list as owned: a cooperative
client lists those that it keeps, and an eager client lists none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import Answered, Joined, Synced
from kafka_coord.classic_groups.heartbeat_hold import Beats
from kafka_coord.classic_groups.metadata import CONSUMER, Protocol
from kafka_coord.frontends.kafka.managed.member import FIRST_EPOCH, KafkaMember, MemberCommit, MemberRequest
from kafka_coord.frontends.kafka.managed.members import KafkaMembers
from kafka_coord.frontends.kafka.managed.topics import UNCHANGED, ManagedTopics
from kafka_coord.frontends.members.machine import stimuli
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions
from kafka_coord.model import Command, StartFetcher, StopFetcher, TopicPartition
from kafka_coord.wire.consumer_protocol import encoded_assignment

PROTOCOL = "classic"
"""The value of ``group.protocol`` in classic clients, and of ``protocol`` in their registrations."""
COOPERATIVE = "cooperative-sticky"
ASSIGNORS = ("range", "roundrobin", "sticky", COOPERATIVE)
"""The names of Kafka's own assignors. A client that uses one of them accepts any share."""

_MORE_S = 1.0
"""If a member has only part of its share, its JoinGroup waits up to this many seconds for the rest."""
_LOOK_AGAIN_S = (5.0, 30.0)
"""A cooperative client that has been given partitions of a topic that came later is asked to join again after so many
seconds: librdkafka drops those that a broker does not know yet, and tells nobody."""
_WRITE_S = 5.0
"""How long a SyncGroup may wait for its acknowledgement to be written, in seconds."""
_ADMISSION_S = 1.0
"""How long a request other than a JoinGroup may wait for its member to be resumed from an earlier term, in seconds."""


@dataclass(frozen=True, slots=True)
class _ClassicRequest(MemberRequest):
    protocol: ClassVar[str] = PROTOCOL

    def made(self, members: KafkaMembers, number: int) -> ClassicMember:
        return ClassicMember(members, self, number)


@dataclass(frozen=True, slots=True)
class ClassicJoin(_ClassicRequest):
    """A JoinGroup request. ``assignor`` is the chosen protocol. ``owned`` contains the partitions that the client keeps
    (none if it is eager), and ``generation`` is the generation in which it received them, or -1 if the client did not
    send one. ``registration`` is the content of the registration to write if the member is new."""

    assignor: str
    topics: ManagedTopics
    owned: frozenset[TopicPartition]
    session_timeout_s: float
    rebalance_timeout_s: float
    registration: bytes
    generation: int = -1
    offers: tuple[Protocol, ...] = ()
    instance_id: str | None = None
    joins: ClassVar[bool] = True

    @property
    def is_eager(self) -> bool:
        return self.assignor != COOPERATIVE

    @property
    def limit_s(self) -> float:
        """How long the request may be held, in seconds. This must be less than the session timeout, because the client
        sends no other request while it waits."""
        return min(self.rebalance_timeout_s, self.session_timeout_s * 2 / 3)

    def answered(self, error: Error, _message: str | None = None) -> Joined:
        if error is Error.UNRELEASED_INSTANCE_ID:
            error = Error.FENCED_INSTANCE_ID
        return Joined(self.token, error, self.member_id)

    def join(self, members: KafkaMembers, current: KafkaMember | None) -> None:
        """Handles a join. A static client without a member id replaces its predecessor. A client with an unknown member
        id is refused if it is static or owns partitions: by now, another member may have taken its place
        or its partitions."""
        before = current.member_id if current is not None else members.earlier_id(self.key)
        if before is not None and before != self.member_id:
            if self.is_new:
                members.replace(self, current, before)
            else:
                members.refuse(self, Error.FENCED_INSTANCE_ID)
        elif current is not None:
            if not isinstance(current, ClassicMember):
                members.refuse(self, Error.UNKNOWN_MEMBER_ID)
            elif current.id is None:
                current.wait(self)
            else:
                current.rejoin(self)
        elif before is not None:
            members.resume(self)
        elif not self.is_new and (self.is_static or self.owned):
            members.refuse(self, Error.UNKNOWN_MEMBER_ID)
        else:
            member = members.add(self)
            member.topics = self.topics.since(UNCHANGED)
            options = RegistrationOptions(self.session_timeout_s, False, self.member_id, PROTOCOL)
            members.register(member, self, options, self.registration)


class Place(NamedTuple):
    """What a group of another kind must know of a member. ``offers`` is empty if that is unknown. It ``is_settled`` if
    its client knows all of its ``assignment``. One that ``gives_up`` has nothing left when it joins again."""

    member_id: str
    consumer: str
    instance_id: str | None
    generation: int
    offers: tuple[Protocol, ...]
    assignment: frozenset[TopicPartition]
    is_settled: bool
    gives_up: bool


@dataclass(frozen=True, slots=True)
class ClassicSync(_ClassicRequest):
    """A SyncGroup request. ``assignor`` is ``None`` before version 5."""

    generation: int
    assignor: str | None = None

    def answered(self, error: Error, _message: str | None = None) -> Synced:
        if error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            error = Error.REBALANCE_IN_PROGRESS  # as in Kafka: the client rejoins instead of giving up
        return Synced(self.token, error)


@dataclass(frozen=True, slots=True)
class Beat(_ClassicRequest):
    """A Heartbeat request. ``software`` is the client's name and version from ApiVersions, or empty if its heartbeats
    must not be held."""

    generation: int
    software: str = ""
    may_be_late: ClassVar[bool] = True

    def answered(self, error: Error, _message: str | None = None) -> Answered:
        if error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            error = Error.NONE  # as in Kafka
        return Answered(self.token, error)


@dataclass(frozen=True, slots=True)
class ClassicLeave(_ClassicRequest):
    """One member's entry in a LeaveGroup request. An operator's request identifies a static member by its instance id
    alone."""

    leaves: ClassVar[bool] = True

    def answered(self, error: Error, _message: str | None = None) -> Answered:
        return Answered(self.token, error)


class ClassicMember(KafkaMember):
    """One member. ``joined`` is its latest JoinGroup in this term, and ``generation`` the latest generation that the
    client knows of. ``sent`` is the share in the latest response to a SyncGroup, or ``None`` while the member is
    joining. If ``syncs`` is set, the client must send a SyncGroup next."""

    protocol = PROTOCOL
    wrong_epoch = Error.ILLEGAL_GENERATION
    not_held = Error.REBALANCE_IN_PROGRESS

    def __init__(self, members: KafkaMembers, request: _ClassicRequest, number: int) -> None:
        super().__init__(members, request, number)
        options = members.earlier_options(request.key)
        if isinstance(request, ClassicJoin):
            options = RegistrationOptions(request.session_timeout_s)
        self.session_timeout_s = options.session_timeout_s if options is not None else members.session_timeout_s
        self.generation = max(0, getattr(request, "generation", 0))
        self.first_epoch = self.epoch = max(FIRST_EPOCH, self.generation)
        self.joined: ClassicJoin | None = None
        self.sent: frozenset[TopicPartition] | None = None
        self._beats = Beats(members.now)
        if isinstance(request, ClassicJoin):
            self._beats.joined(members.now)
        self.syncs = False
        self._replaced: set[str] = set()
        """The topics that were deleted, and perhaps made anew, until the member is given the present one."""
        self._is_changing = False
        """Whether the member's subscription has changed since the group's target was decided."""
        self._joins_again_at: list[float] = []
        """When the client is asked to join again; see :data:`_LOOK_AGAIN_S`."""

    def knows(self, epoch: int) -> bool:
        return self.first_epoch <= epoch <= self.generation

    def place(self) -> Place:
        join = self.joined
        is_at_rest = self.command is None and self.settling is None and not self.syncs and not self._joins_again_at
        return Place(
            self.member_id,
            self.key[1],
            (join.instance_id if join is not None else self.key[1]) if self.is_static else None,
            self.generation,
            join.offers if join is not None else (),
            self.assignment,
            is_at_rest and join is not None and self.sent == self.assignment,
            join is not None and join.is_eager,
        )

    @property
    def owns_nothing(self) -> bool:
        """Whether the client is eager and between JoinGroup and SyncGroup, when librdkafka may resend a stale
        commit."""
        is_joining = self.sent is None or self.syncs or self.waits_for_share
        return is_joining and self.joined is not None and self.joined.is_eager

    def wait(self, request: MemberRequest) -> None:
        self.hold(request, request.limit_s if isinstance(request, ClassicJoin) else _ADMISSION_S)
        if isinstance(request, ClassicJoin):
            self.joined = request
            self.members.waits_for_share(self)

    def resumed(self, _topic_ids: Mapping[str, bytes], newest: int, *, is_settled: bool) -> None:
        self.sent = self.assignment
        self.first_epoch, self.generation = min(self.first_epoch, newest), min(self.generation, newest)
        self.epoch = newest if is_settled else min(self.epoch, newest)

    @property
    def late_until(self) -> float:
        return self._beats.again_until

    def committed(self, _commit: MemberCommit) -> None:
        self._beats.quiet_since = self.members.now

    def arrived(self, request: MemberRequest) -> None:
        if isinstance(request, ClassicSync):
            self._sync(request)
        elif isinstance(request, Beat):
            self._beat(request)

    def _heard(self) -> None:
        self._beats.quiet_since = self.members.now
        self.members.tell(stimuli.HeardFrom(self.connection))

    # --- joining -----------------------------------------------------------------------------------------------------

    def rejoin(self, join: ClassicJoin) -> None:
        self._heard()
        self._beats.joined(self.members.now)
        self._answer_waiting(Error.REBALANCE_IN_PROGRESS)
        self.joined, self.sent, self.syncs = join, None, False
        self._joins_again_at = [at for at in self._joins_again_at if at > self.members.now]
        topics = join.topics.since(UNCHANGED)
        self._is_changing = self.topics not in {UNCHANGED, topics}
        if topics != self.topics:
            self.subscribe(join, topics)
        else:
            self.go_on(join)

    def go_on(self, request: MemberRequest) -> None:
        if not isinstance(request, ClassicJoin) or request is not self.joined:
            self.members.refuse(request, Error.REBALANCE_IN_PROGRESS)  # the client has rejoined since
            return
        self._acknowledge_stop(request)
        if self.command is not None or self._has_share:
            self._join_answered(request)
        else:
            has_some = not self.assignment <= request.owned
            self.hold(request, min(_MORE_S, request.limit_s) if has_some or self._is_changing else request.limit_s)
            self.members.waits_for_share(self)

    @property
    def _has_share(self) -> bool:
        return not self._is_changing and self.share == self.assignment

    @property
    def waits_for_share(self) -> bool:
        return isinstance(self.waiting, ClassicJoin)

    def target_read(self) -> None:
        if self.id is not None and self.command is None and self._has_share:
            self._answer_join()

    def _acknowledge_stop(self, join: ClassicJoin) -> None:
        command = self.command[1] if self.command is not None else None
        if isinstance(command, StopFetcher) and join.owned.isdisjoint(command.partitions):
            self.acknowledged()

    def _join_answered(self, join: ClassicJoin) -> None:
        if not join.owned or not self.generation:  # commits from earlier generations are no longer valid
            self.first_epoch = self.epoch
        self.joined, self.generation, self.syncs = join, self.epoch, True
        who = join.token, Error.NONE, self.member_id
        self.members.answer(Joined(*who, self.generation, CONSUMER, join.assignor))

    def _sync(self, sync: ClassicSync) -> None:
        if self.joined is None or not (self.syncs or self.sent is not None):
            self.members.refuse(sync, Error.REBALANCE_IN_PROGRESS)
        elif sync.generation != self.generation:
            self.members.refuse(sync, Error.ILLEGAL_GENERATION)
        elif sync.assignor not in {None, self.joined.assignor}:
            self.members.refuse(sync, Error.INCONSISTENT_GROUP_PROTOCOL)
        else:
            self._heard()
            if self.command is not None and isinstance(self.command[1], StartFetcher):
                self.acknowledged()
            if self.settling is None:
                self._sync_answered(sync, self.joined)
            else:
                self.hold(sync, _WRITE_S)

    def settled(self) -> None:
        """Answers a held SyncGroup, now that the acknowledgement of its share has been stored: the client keeps the
        share even if this instance fails."""
        if isinstance(self.waiting, ClassicSync) and self.joined is not None:
            sync, self.waiting = self.waiting, None
            self._sync_answered(sync, self.joined)

    def _sync_answered(self, sync: ClassicSync, joined: ClassicJoin) -> None:
        self.sent, self.told, self.syncs = self.assignment, self.command is not None, False
        # what was given since the JoinGroup is of a newer generation, but the client gets it in the one that it knows
        self._given |= {tp: self.generation for tp in self.assignment if self._given.get(tp, 0) > self.generation}
        share = encoded_assignment(self.assignment)
        self.members.answer(Synced(sync.token, Error.NONE, CONSUMER, joined.assignor, share))

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def _beat(self, beat: Beat) -> None:
        now = self.members.now
        if beat.generation != self.generation:
            is_late = beat.generation < self.generation and now < self.late_until
            self.members.refuse(beat, Error.NONE if is_late else Error.ILLEGAL_GENERATION)
            return
        limit_s = self._beats.arrived(now, beat.software, self.session_timeout_s)
        self._heard()
        looks_again = bool(self._joins_again_at) and self._joins_again_at[0] <= now
        if self.sent is not None and (self.command is not None or self.sent != self.assignment or looks_again):
            self.members.refuse(beat, Error.REBALANCE_IN_PROGRESS)
        elif self.sent is not None and limit_s > 0:
            self.hold(beat, min([limit_s, *(at - now for at in self._joins_again_at)]))
        else:
            is_joining = self.syncs or self.changing is not None or isinstance(self.waiting, ClassicJoin)
            keeps = self.sent is not None or is_joining
            self.members.refuse(beat, Error.NONE if keeps else Error.REBALANCE_IN_PROGRESS)

    def has_read(self, partitions: Iterable[TopicPartition], epoch: int) -> bool:
        read = frozenset(partitions)
        return self._replaced.isdisjoint(tp.topic for tp in read) and super().has_read(read, epoch)

    def delivered(self, command: Command, topic_ids: Mapping[str, bytes]) -> None:
        topics = {tp.topic for tp in command.partitions}
        is_cooperative = self.joined is not None and not self.joined.is_eager
        if is_cooperative and isinstance(command, StartFetcher) and self._comes_later(command):
            self._joins_again_at = [self.members.now + after_s for after_s in _LOOK_AGAIN_S]
        self._replaced -= topics
        if isinstance(command, StopFetcher):
            given = topics & topic_ids.keys()
            self._replaced |= {topic for topic in given if self.members.identity(topic) != topic_ids[topic]}
        join = self.waiting
        if not isinstance(join, ClassicJoin):
            self._answer_waiting(Error.REBALANCE_IN_PROGRESS)
            return
        self._is_changing = False
        self._acknowledge_stop(join)
        share = self.share
        if isinstance(command, StartFetcher) and share is not None and not share <= self.assignment:
            self.acknowledged()  # the rest of the share follows in another command
            self.hold_less(min(_MORE_S, join.limit_s))
        elif self.command is not None:
            self._answer_join()

    def _comes_later(self, command: StartFetcher) -> bool:
        """Returns whether a broker may not know all of the command's partitions yet."""
        return any(start.later or tp.topic in self._replaced for tp, start in command.starts.items())

    def _answer_join(self) -> None:
        join, self.waiting = self.waiting, None
        if isinstance(join, ClassicJoin):
            self._join_answered(join)

    def overdue(self) -> None:
        self._beats.quiet_since = self.members.now
        if isinstance(self.waiting, ClassicJoin):
            self._answer_join()
        else:
            is_unsynced = isinstance(self.waiting, ClassicSync)
            self._answer_waiting(Error.REBALANCE_IN_PROGRESS if is_unsynced else Error.NONE)

    def interrupted(self) -> None:
        beat = self.waiting
        if isinstance(beat, Beat):
            self.waiting = None
            self.members.answer(Answered(beat.token, self._beats.interrupted(self.members.now)))
        elif not isinstance(beat, ClassicSync):  # a SyncGroup is answered soon in any case
            self.overdue()

    def given_up(self) -> None:
        if isinstance(self.waiting, Beat):
            self._beats.given_up(self.members.now)

    def _answer_waiting(self, error: Error) -> None:
        request, self.waiting = self.waiting, None
        if request is not None:
            self.members.refuse(request, error)
