"""What stock Kafka clients of both protocols have in common as members of a managed group. Does no I/O.

A delivered stop-fetcher shrinks the member's assignment, and a delivered start-fetcher extends it. The member's epoch
is the newest generation of a delivered start-fetcher or of an acknowledged command. How a client acknowledges commands
depends on its protocol: see :mod:`~kafka_coord.frontends.kafka.managed.heartbeats` (KIP-848) and
:mod:`~kafka_coord.frontends.kafka.managed.classic`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import InvalidPattern
from kafka_coord.frontends.kafka.managed.topics import UNCHANGED, ManagedTopics
from kafka_coord.frontends.members.machine import stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, Offsets
from kafka_coord.model import Command, CommandId, OffsetDetails, StopFetcher, TopicPartition

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.managed.members import KafkaMembers

FIRST_EPOCH = 1

Key = tuple[str, str]
"""The group and the consumer name, which is derived from the instance id or, if there is none, from the member id."""


@dataclass(frozen=True, slots=True)
class MemberRequest(ABC):
    """A request from a member, other than a commit. ``protocol`` is the client's protocol (``Member.protocol``)."""

    protocol: ClassVar[str]
    token: Hashable
    key: Key
    member_id: str
    is_static: bool
    by: str = field(default="", kw_only=True)
    """Who sent a request to join or leave: principal, client id and address."""
    is_new: bool = field(default=False, kw_only=True)
    """Whether the client did not send a member id, and learns the generated ``member_id`` from the response."""

    @property
    def joins(self) -> bool:
        """Whether the client asks to become a member. It may already be one."""
        return False

    @property
    def leaves(self) -> bool:
        return False

    @property
    def leaves_for_good(self) -> bool:
        """Whether the member gives up its place in the group."""
        return True

    @property
    def may_be_late(self) -> bool:
        """Whether the request may arrive after the client has left."""
        return False

    @abstractmethod
    def answered(self, error: Error, message: str | None = None) -> Answer:
        """Returns a response with ``error``. For a request to leave, NONE confirms that the member has left."""

    @abstractmethod
    def made(self, members: KafkaMembers, number: int) -> KafkaMember:
        """Creates a member for the client. ``number`` is the member's connection in the machine."""

    def join(self, members: KafkaMembers, current: KafkaMember | None) -> None:
        """Handles a join. ``current`` is the member with the same key, or ``None``."""
        raise NotImplementedError(f"{type(self).__name__} is not a join")


@dataclass(frozen=True, slots=True)
class MemberCommit:
    """An OffsetCommit from a member. In the classic protocol, ``epoch`` is the member's generation. ``connection`` is
    the number of the client's connection to this instance."""

    token: Hashable
    key: Key
    member_id: str
    is_static: bool
    epoch: int
    connection: int
    offsets: Offsets = field(hash=False)
    details: OffsetDetails = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class MemberCommitted:
    """The response to a commit. ``topics`` contains the topics that no longer exist."""

    token: Hashable
    error: Error
    topics: frozenset[str] = frozenset()


Answer = Any
"""A :class:`MemberCommitted`, or a response of the classic or KIP-848 protocol. Each has a ``token``."""


class KafkaMember(ABC):
    """One member. ``id`` is ``None`` until the machine has admitted the member.

    ``assignment`` contains the partitions that the client should own. ``command`` is the delivered command that the
    client has not acknowledged yet. ``told`` is true once a response has passed the command on to the client.
    ``waiting`` is the held request, which must be answered by ``answer_at``. ``changing`` is the request whose
    subscription is being written. The ``topics`` of a member that registered in an earlier term are unknown.
    """

    protocol: ClassVar[str]
    wrong_epoch: ClassVar[Error]
    not_held: ClassVar[Error]
    """A commit gets ``wrong_epoch`` if its epoch is wrong, and ``not_held`` if the member does not hold the
    partitions."""

    def __init__(self, members: KafkaMembers, request: MemberRequest, number: int) -> None:
        self.members = members
        self.key, self.member_id, self.is_static = request.key, request.member_id, request.is_static
        self.connection = number
        self.joined_by = request.by
        """Who the member's client is, or "" if it joined in an earlier term."""
        self.id: MemberId | None = None
        self.returning: MemberId | None = None
        """The id of a resumed member, until its first command is known. The client may have received that command in
        an earlier term."""
        self.topics = UNCHANGED
        self.first_epoch = self.epoch = FIRST_EPOCH
        self.assignment: frozenset[TopicPartition] = frozenset()
        self._given: dict[TopicPartition, int] = {}
        """The epoch in which each partition of ``assignment`` was given to the member in this term."""
        self.command: tuple[CommandId, Command] | None = None
        self.told = self.has_acknowledged = False
        self.settling: CommandId | None = None
        """The command whose acknowledgement is being written."""
        self.waiting: MemberRequest | None = None
        self.changing: MemberRequest | None = None
        self.leaving: MemberRequest | None = None
        self.successor: MemberRequest | None = None
        """The join of a client that takes the member's place."""
        self.deserted: MemberRequest | None = None
        """The join whose client was gone before it learned the member's id. Nobody can act as this member."""
        self.held_since = self.answer_at = 0.0
        self.commits: set[Hashable] = set()
        self.committed_on = 0
        """The number of the newest connection on which the client has committed."""

    # --- protocol-specific -------------------------------------------------------------------------------------------

    @abstractmethod
    def arrived(self, request: MemberRequest) -> None:
        """Handles a request from an admitted member."""

    @abstractmethod
    def wait(self, request: MemberRequest) -> None:
        """Holds a request until the machine has admitted the member. A join is held longer, until there is news for the
        client."""

    @abstractmethod
    def go_on(self, request: MemberRequest) -> None:
        """Continues handling a request once its subscription has been written."""

    @abstractmethod
    def delivered(self, command: Command, topic_ids: Mapping[str, bytes]) -> None:
        """Handles a new ``command``, which ``assignment`` already reflects."""

    @abstractmethod
    def overdue(self) -> None:
        """Answers the held request once it has waited long enough."""

    @abstractmethod
    def interrupted(self) -> None:
        """Answers the held request because the client has sent another one: responses must be in the order of the
        requests."""

    @abstractmethod
    def resumed(self, topic_ids: Mapping[str, bytes], newest: int, *, is_settled: bool) -> None:
        """Resumes a member with the ``assignment`` that it had in an earlier term. For ``topic_ids``, see
        :meth:`KafkaMembers.receive`. ``newest`` is the latest epoch that the client can know. ``is_settled`` is true if
        the client has acknowledged all commands."""

    @abstractmethod
    def committed(self, commit: MemberCommit) -> None:
        """Handles a valid commit."""

    def settled(self) -> None:  # noqa: B027  only the classic protocol waits for it
        """Called once the member's last acknowledgement has been stored."""

    @abstractmethod
    def given_up(self) -> None:
        """Handles that the client has stopped waiting for the response to the held request. If that is a heartbeat, no
        more heartbeats are held: the client's read timeout must be shorter than the holds."""

    @property
    def late_until(self) -> float:
        """The time until which late requests (:attr:`MemberRequest.may_be_late`) are accepted after the client has
        left."""
        return 0.0

    @property
    def owns_nothing(self) -> bool:
        """Whether the client has stopped all partitions although the member still holds them."""
        return False

    @property
    def waits_for_share(self) -> bool:
        """Whether a request is waiting for the member's share of the group's target."""
        return False

    def target_read(self) -> None:  # noqa: B027  not every member waits for its share
        """Called when the group's target has been read, or has changed, while the member is waiting for its share."""

    # --- common ------------------------------------------------------------------------------------------------------

    @property
    def share(self) -> frozenset[TopicPartition] | None:
        """The member's share of the group's target, or ``None`` if it is unknown."""
        share = self.members.targets.get(self.key[0], {}).get(self.key[1])
        return None if share is None else frozenset(share)

    def reach(self, generation: int) -> None:
        """Records that the member has reached ``generation``."""
        self.epoch = max(self.epoch, generation)

    def is_replaced(self, member_id: str) -> bool:
        """Returns whether the client with that id is being replaced by another one with its instance id."""
        return self.successor is not None and self.member_id == member_id != self.successor.member_id

    def knows(self, epoch: int) -> bool:
        """Returns whether the client has received ``epoch`` since it joined."""
        return self.first_epoch <= epoch <= self.epoch

    def has_read(self, partitions: Iterable[TopicPartition], epoch: int) -> bool:
        """Returns whether a client that knows ``epoch`` can have read the partitions as they were last given to it. If
        not, its positions may be those of a topic that was deleted and made anew since, or be older than those of
        another member (compare KIP-1251)."""
        return all(self._given.get(tp, 0) <= epoch for tp in partitions)

    def deliver(self, command_id: CommandId, command: Command, topic_ids: Mapping[str, bytes]) -> None:
        self.command, self.told, self.settling = (command_id, command), False, None
        if isinstance(command, StopFetcher):
            self.assignment = self.assignment.difference(command.partitions)
        else:
            self.assignment = self.assignment.union(command.partitions)
            self._given |= dict.fromkeys(command.partitions, command.generation)
            self.reach(command.generation)
        self.delivered(command, topic_ids)

    def acknowledged(self) -> None:
        """Tells the machine that the client has carried out the command."""
        if self.command is None:
            return
        command_id, command = self.command
        self.command, self.told, self.has_acknowledged = None, False, True
        self.settling = command_id
        self.reach(command.generation)
        self.members.tell(stimuli.CommandAcknowledged(self.connection, command_id, {}))

    def written(self, command_id: CommandId) -> None:
        """Called when the acknowledgement of the command has been stored."""
        if command_id == self.settling:
            self.settling = None
            self.settled()

    def hold(self, request: MemberRequest, limit_s: float) -> None:
        """Holds a request for up to ``limit_s`` seconds. If an earlier request is still held, refuses it: the client is
        no longer waiting for its response."""
        if self.waiting is not None:
            self.members.refuse(self.waiting, Error.COORDINATOR_LOAD_IN_PROGRESS)
        self.waiting, self.held_since = request, self.members.now
        self.answer_at = self.members.now + limit_s
        self.members.waits(self)

    def hold_less(self, limit_s: float) -> None:
        """Shortens the hold so that it ends within ``limit_s`` seconds from now."""
        self.answer_at = min(self.answer_at, self.members.now + limit_s)
        self.members.waits(self)

    def subscribe(self, request: MemberRequest, topics: ManagedTopics) -> None:
        """Starts writing a new subscription. Once it is written, :meth:`go_on` is called."""
        try:
            subscription = topics.subscription()
        except InvalidPattern as error:
            self.members.refuse(request, Error.INVALID_REQUEST, str(error))
            return
        if self.changing is not None:
            self.members.refuse(self.changing, Error.COORDINATOR_LOAD_IN_PROGRESS)
        self.changing, self.topics = request, topics
        self.members.tell(stimuli.SubscriptionWanted(self.connection, request, subscription))
