"""Handles and answers heartbeats from KIP-848 members (``group.protocol=consumer``). Does no I/O.

A heartbeat with epoch 0 registers the member, and responses carry its assignment. A heartbeat acknowledges a
stop-fetcher if the client no longer owns the command's partitions, and a start-fetcher if the client owns all of them.

A heartbeat is held (:mod:`~kafka_coord.frontends.kafka.managed.heartbeat_hold`) until there is news for the client, the
client sends another request, or the hold reaches its limit. While the member has partitions to stop, its heartbeats are
answered immediately: a later heartbeat acknowledges the stop.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.heartbeat_hold import NOT_HELD_S, Pace
from kafka_coord.frontends.kafka.managed.member import FIRST_EPOCH, KafkaMember, MemberCommit, MemberRequest
from kafka_coord.frontends.kafka.managed.members import KafkaMembers
from kafka_coord.frontends.kafka.managed.topics import UNCHANGED, ManagedTopics
from kafka_coord.frontends.members.machine import stimuli
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions
from kafka_coord.model import Command, StartFetcher, TopicPartition

PROTOCOL = "consumer"
"""The value of ``group.protocol`` in KIP-848 clients, and of ``protocol`` in their registrations."""
JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
"""The epochs with a special meaning in a heartbeat. A static member keeps its place after ``LEAVE_FOR_NOW``."""

Owned = frozenset[tuple[bytes, int]]
"""Partitions by topic id."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat(MemberRequest):
    """A ConsumerGroupHeartbeat request. ``owned`` and the parts of ``topics`` are ``None`` if the client omitted them
    because they are unchanged. ``registration`` is the content of a joining member's registration. ``software`` is the
    client's name and version from ApiVersions, or empty if its heartbeats must not be held."""

    protocol: ClassVar[str] = PROTOCOL
    epoch: int
    owned: Owned | None = None
    topics: ManagedTopics = UNCHANGED
    registration: bytes = b""
    software: str = ""

    @property
    def joins(self) -> bool:
        return self.epoch == JOIN

    @property
    def leaves(self) -> bool:
        return self.epoch < JOIN

    @property
    def leaves_for_good(self) -> bool:
        return self.epoch == LEAVE

    @property
    def is_whole(self) -> bool:
        """Whether the heartbeat contains all fields, as it does after the client has missed a response."""
        return self.joins or (self.owned is not None and self.topics.is_told)

    def answered(self, error: Error, message: str | None = None) -> HeartbeatAnswer:
        return HeartbeatAnswer(self.token, error, self.member_id, self.epoch, message=message)

    def made(self, members: KafkaMembers, number: int) -> ConsumerGroupMember:
        return ConsumerGroupMember(members, self, number)

    def join(self, members: KafkaMembers, current: KafkaMember | None) -> None:
        """Handles a join. A client that merely retries its join after a lost response keeps its incarnation. Any
        other client that rejoins becomes a new incarnation, which holds no partitions. As in Kafka, a static client
        takes the place of a classic member with its instance id, but not that of a KIP-848 member, which must leave
        first, unless its client cannot know its id."""
        if not self.topics.is_told:
            members.refuse(self, Error.INVALID_REQUEST, "a joining member must send its subscription")
            return
        before = members.known_as(self.key)
        if before is not None and before != (self.protocol, self.member_id):
            self._join_as_another(members, current, *before)
            return
        topics = self.topics.since(UNCHANGED)
        own = current if isinstance(current, ConsumerGroupMember) else None
        if own is not None and own.topics == topics and not own.has_acknowledged:
            own.repeats_join(self)
            return
        if current is not None:
            members.drop(current)
        member = members.add(self)
        member.topics = topics
        if own is not None and isinstance(member, ConsumerGroupMember):
            member.pace = own.pace
        options = RegistrationOptions(members.session_timeout_s, False, self.member_id, self.protocol)
        members.register(member, self, options, self.registration)

    def _join_as_another(
        self, members: KafkaMembers, current: KafkaMember | None, protocol: str, member_id: str
    ) -> None:
        """Handles a join with the key of a member of ``protocol`` that has another ``member_id``."""
        successor, deserted = (current.successor, current.deserted) if current is not None else (None, None)
        is_taken = isinstance(successor, ConsumerHeartbeat) and successor.member_id != self.member_id
        if self.is_static and (protocol != self.protocol or deserted is not None) and not is_taken:
            members.replace(self, current, member_id)
        else:
            message = f"another member is using instance id {self.key[1]}"
            members.refuse(self, Error.UNRELEASED_INSTANCE_ID, message)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The response to a heartbeat. ``assignment`` is ``None`` if the client already knows it. ``ids`` is the assignment
    by topic id, without topics that have no id. The client's next heartbeat is due ``interval_s`` seconds after the
    one being answered."""

    token: Hashable
    error: Error
    member_id: str
    epoch: int
    assignment: frozenset[TopicPartition] | None = None
    ids: Owned = frozenset()
    message: str | None = None
    interval_s: float = NOT_HELD_S


class ConsumerGroupMember(KafkaMember):
    """One member. ``sent`` is the last assignment that a response contained. ``owned`` contains the partitions that the
    client last reported as owned."""

    protocol = PROTOCOL
    wrong_epoch = not_held = Error.STALE_MEMBER_EPOCH

    def __init__(self, members: KafkaMembers, beat: ConsumerHeartbeat, number: int) -> None:
        super().__init__(members, beat, number)
        self.pace = Pace.of(beat.software)
        self.first_epoch = self.epoch = self.previous_epoch = max(FIRST_EPOCH, beat.epoch)
        self.topic_ids: dict[str, bytes | None] = {}
        """The ids that the topics in ``assignment`` had when they were assigned. A topic may have been deleted and
        recreated since."""
        self.sent: frozenset[TopicPartition] | None = None
        self.owned: Owned | None = None
        self._asked_again = False
        """Whether an error has made the client resend its last heartbeat. A resent heartbeat contains all fields."""

    @property
    def waits_for_share(self) -> bool:
        return self.waiting is not None and self.waiting.joins and self.pace.joins_for_all

    def target_read(self) -> None:
        if self.id is not None and self.command is None and self.assignment and self.share == self.assignment:
            self._answer_waiting(self.pace.after_news())

    def reach(self, generation: int) -> None:
        if generation <= self.epoch:
            return
        self.previous_epoch, self.epoch = self.epoch, generation
        if not self.sent:  # the client does not know of any partitions, so only a late commit has an earlier epoch
            self.first_epoch = generation

    def wait(self, request: MemberRequest) -> None:
        self.pace.arrived(self.members.now)
        if request.joins:
            self.pace.joins()
        self.hold(request, self.pace.join_limit_s())
        if self.waits_for_share:
            self.members.waits_for_share(self)

    def repeats_join(self, beat: ConsumerHeartbeat) -> None:
        self.owned = None
        self.members.tell(stimuli.HeardFrom(self.connection))
        self.wait(beat)
        if self.command is not None:
            self._answer_waiting(self.pace.after_news())

    def arrived(self, request: MemberRequest) -> None:
        beat = _heartbeat(request)
        is_late = beat.epoch == self.previous_epoch and (beat.owned is None or self._is_assigned(beat.owned))
        if not (beat.epoch == self.epoch or is_late):
            self.members.refuse(beat, Error.FENCED_MEMBER_EPOCH)
            return
        self.members.tell(stimuli.HeardFrom(self.connection))
        topics = beat.topics.since(self.topics)
        if beat.topics.is_told and topics != self.topics:
            self.subscribe(beat, topics)
        else:
            self.go_on(beat)

    def go_on(self, request: MemberRequest) -> None:
        beat, pace = _heartbeat(request), self.pace
        if beat.owned is not None:
            self.owned = beat.owned
        self._acknowledge()
        pace.arrived(self.members.now)
        is_repeated, self._asked_again = self._asked_again and self.owned == self._by_id(self.assignment), False
        knows = self.sent == self.assignment and (is_repeated or not beat.is_whole)
        if self.command is not None:
            self._tell(beat, pace.while_stopping() if self.told else pace.after_news())
        elif not knows or pace.limit_s() <= 0:
            self._tell(beat, pace.after_limit(self.members.now))
        else:
            self.hold(beat, pace.limit_s())

    def _is_assigned(self, owned: Owned) -> bool:
        return owned <= self._by_id(self.assignment)

    def _acknowledge(self) -> None:
        """Acknowledges the delivered command if the client has carried it out.

        Topics are compared by id, because a topic may be deleted and recreated under the same name. A client
        must stop the partitions of a deleted topic, but does not have to start them. If a client owns a start-fetcher's
        partitions before any response has contained them, it received them in an earlier term.
        """
        if self.command is None or self.owned is None:
            return
        _, command = self.command
        if isinstance(command, StartFetcher):
            identity = self.members.identity
            existing = [tp for tp in command.partitions if identity(tp.topic) == self.topic_ids.get(tp.topic)]
            is_done = self._by_id(existing) <= self.owned and (self.told or bool(existing))
            if self.told and not is_done:
                self.members.doubtful.update(tp.topic for tp in existing)
        else:
            is_done = self.told and self._is_assigned(self.owned)
        if is_done:
            self.acknowledged()
            self.pace.acknowledged(self.members.now)

    def committed(self, commit: MemberCommit) -> None:
        self.pace.committed(self.members.now)
        if self.command is not None and self.told:
            _, command = self.command
            if isinstance(command, StartFetcher) and not commit.offsets.keys().isdisjoint(command.partitions):
                self.acknowledged()  # the commit shows that the client has started the partitions

    def resumed(self, topic_ids: Mapping[str, bytes], newest: int, *, is_settled: bool) -> None:
        """Resumes the member at the epoch that the client sent. If all commands are acknowledged, the ``newest`` epoch
        is valid as well: the client does not know it yet if the response with that epoch was lost. Otherwise, only the
        client's own epoch is valid. It may be the newest already, if the client's acknowledgement was not written."""
        self._learn(self.assignment, topic_ids)
        self.first_epoch = self.epoch = self.previous_epoch = min(self.epoch, newest)
        if is_settled:
            self.epoch = newest

    def delivered(self, command: Command, topic_ids: Mapping[str, bytes]) -> None:
        if isinstance(command, StartFetcher):
            self._learn(command.partitions, topic_ids)
            if self.waits_for_share and self.share != self.assignment:
                self.acknowledged()  # the rest of the share follows in another command
                return
        if self.waiting is not None:
            self._answer_waiting(self.pace.after_news())

    def _learn(self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, bytes]) -> None:
        topics = {tp.topic for tp in partitions}
        self.topic_ids |= {topic: topic_ids.get(topic) or self.members.identity(topic) for topic in topics}

    def overdue(self) -> None:
        has_news = self.waits_for_share and self.assignment
        self._answer_waiting(self.pace.after_news() if has_news else self.pace.after_limit(self.members.now))

    def interrupted(self) -> None:
        if self.waiting is not None and self.pace.asks_again(self.members.now):
            self.members.refuse(self.waiting, Error.COORDINATOR_LOAD_IN_PROGRESS)
            self.waiting, self._asked_again = None, True
        else:
            self._answer_waiting(self.pace.after_interruption(self.members.now))

    def given_up(self) -> None:
        if self.members.now < self.answer_at:
            self.pace.given_up(self.members.now)

    def _tell(self, beat: ConsumerHeartbeat, interval_s: float) -> None:
        """Answers, with the assignment as long as it is not acknowledged: the client may have missed an answer without
        saying so, as librdkafka does after a timeout (``rdkafka_cgrp.c``)."""
        news = None
        if beat.is_whole or self.told or self.sent != self.assignment:
            news = self.sent = self.assignment
        self.told = self.command is not None
        ids = frozenset() if news is None else self._by_id(news)
        self.members.answer(
            HeartbeatAnswer(beat.token, Error.NONE, self.member_id, self.epoch, news, ids, interval_s=interval_s)
        )

    def _answer_waiting(self, interval_s: float) -> None:
        request, self.waiting = self.waiting, None
        if request is not None:
            self._tell(_heartbeat(request), interval_s)

    def _by_id(self, partitions: Iterable[TopicPartition]) -> Owned:
        """Returns the partitions by topic id, omitting topics without an id."""
        pairs = ((self.topic_ids.get(tp.topic), tp.partition) for tp in partitions)
        return frozenset((topic_id, partition) for topic_id, partition in pairs if topic_id is not None)


def _heartbeat(request: MemberRequest) -> ConsumerHeartbeat:
    if not isinstance(request, ConsumerHeartbeat):
        raise TypeError(f"not a heartbeat: {request!r}")
    return request
