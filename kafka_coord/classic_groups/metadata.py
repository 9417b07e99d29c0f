"""Defines the metadata of a client-assigned group and its members, using the names from Kafka's 0.9 design."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kafka_coord.classic_groups.heartbeat_hold import Beats
from kafka_coord.model import Departure

CONSUMER = "consumer"
"""The protocol type of consumer groups. In ListGroups, it is also the type of KIP-848 groups."""


class ClassicState(StrEnum):
    """The states of a group, with the names that DescribeGroups and ListGroups use."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Protocol:
    """An assignor that a member supports, and the member's metadata for it. A consumer's metadata is its
    subscription."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class MemberMetadata:
    """One member. ``join_token``, ``sync_token`` and ``beat_token`` identify its held requests. A member that stays
    silent is removed at ``expires_at``. ``is_new`` is true until the member's first join has been answered.
    ``is_heard`` is false for a member of an earlier term until this term hears it. ``committed_on`` is the number of
    the newest connection on which it has committed. ``former_generation`` is what its client knows if the group was
    of another kind, until it joins again."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join_token: object = None
    sync_token: object = None
    beat_token: object = None
    expires_at: float = 0.0
    beats: Beats = field(default_factory=Beats)
    is_new: bool = True
    is_heard: bool = True
    committed_on: int = 0
    former_generation: int | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """Returns the first of the member's protocols that is among the ``candidates``."""
        return next(offered.name for offered in self.protocols if offered.name in candidates)

    @property
    def name(self) -> str:
        """The instance id or, if there is none, the member id."""
        return self.instance_id or self.member_id

    @property
    def waits(self) -> bool:
        """Whether the member's join or sync is held, so that the member does not count as silent. Held heartbeats do
        not matter here, since each hold is shorter than the session timeout."""
        return self.join_token is not None or self.sync_token is not None


@dataclass(slots=True)
class GroupMetadata:
    """One group. ``pending`` maps each member id that was issued but has not joined yet to its expiry time.
    ``unsynced`` contains the members that have not synced since the last rebalance completed its join phase.
    ``topic_ids`` contains the identities of the topics that the newest stored assignments name."""

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_since_ms: int = 0
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    unsynced: set[str] = field(default_factory=set)
    topic_ids: dict[str, str] = field(default_factory=dict)
    departed: dict[str, Departure] = field(default_factory=dict)
    """How members went since the newest stored generation, by their names. Stored with the next generation."""

    def add(self, member: MemberMetadata, protocol_type: str) -> None:
        """Adds a member. The first one becomes the leader and determines the protocol type of the group."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.pending.pop(member.member_id, None)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        self.unsynced.discard(member_id)
        self.pending.pop(member_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, instance_id: str, new_id: str) -> None:
        """Gives the static member with that instance id a new member id."""
        old_id = self.static_members[instance_id]
        self.static_members[instance_id] = new_id
        self.members = {(new_id if key == old_id else key): member for key, member in self.members.items()}
        self.members[new_id].member_id = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
        if self.leader_id == old_id:
            self.leader_id = new_id

    @property
    def rebalance_timeout_s(self) -> float:
        """The largest rebalance timeout of any member."""
        return max((member.rebalance_timeout_s for member in self.members.values()), default=0.0)

    @property
    def has_members(self) -> bool:
        """Whether the group has members or is about to have some. A dead group has none, because it has ended."""
        return self.state not in {ClassicState.EMPTY, ClassicState.DEAD}

    @property
    def has_all_joined(self) -> bool:
        """Whether every member has joined. Newcomers that were only handed an id (``pending``) are not members yet."""
        return all(member.join_token is not None for member in self.members.values())

    def candidates(self) -> frozenset[str]:
        """Returns the protocols that every member supports."""
        offered = Counter(name for member in self.members.values() for name in {p.name for p in member.protocols})
        return frozenset(name for name, count in offered.items() if count == len(self.members))

    def select_protocol(self) -> str:
        """Returns the common protocol with the most votes. In a tie, the protocol that got the first vote wins."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def supports(self, protocol_type: str, protocols: Sequence[Protocol]) -> bool:
        """Returns whether a member with the given protocols can join. Its protocol type must be the group's, and it
        must offer a protocol that all members support. An empty group accepts any type and any protocols."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        offered = {protocol.name for protocol in protocols}
        if not self.members:
            return protocol_type == self.protocol_type and bool(offered)
        return protocol_type == self.protocol_type and not self.candidates().isdisjoint(offered)
