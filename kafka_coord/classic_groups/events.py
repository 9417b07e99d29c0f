"""Events of a client-assigned group (join, sync, heartbeat, commit, leave), and the resulting instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import Protocol

NO_MEMBER = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup. ``token`` names the request in the answer; ``fresh_id`` is the member id for a member without one
    (made outside: this machine knows no randomness). ``must_know_id``: a member without an id is given one and has to
    join again with it (KIP-394). ``can_skip_assignment``: KIP-814."""

    token: object
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocol_type: str
    protocols: tuple[Protocol, ...]
    fresh_id: str
    must_know_id: bool = False
    can_skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup. ``assignments`` by member id: the leader's decision. Protocol type and name are ``None`` before
    version 5."""

    token: object
    member_id: str
    instance_id: str | None
    generation_id: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """``longest_hold_s``: for how long the client can wait where there is nothing to say; 0 if it must not."""

    token: object
    member_id: str
    instance_id: str | None
    generation_id: int
    longest_hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Released:
    """A held heartbeat is to be answered: its limit is over, or its client has sent something else."""

    token: object
    member_id: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A LeaveGroup of one member or several: (member id, instance id) each."""

    token: object
    leaving: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Asks whether a member may commit: generation -1 and no member id is a consumer that assigns itself."""

    token: object
    member_id: str
    instance_id: str | None
    generation_id: int
    transactional: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a :class:`Store`."""

    store: Store
    error: Error


@dataclass(frozen=True, slots=True)
class Gone:
    """A connection was lost. Its held requests need no answer any more, and delay nobody."""

    tokens: frozenset[object]


Event = Join | Sync | Heartbeat | Released | Leave | Commit | Stored | Gone


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a :class:`Join`. ``members``: (member id, instance id, metadata), for the leader only."""

    token: object
    error: Error
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    token: object
    error: Error
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a :class:`Heartbeat`, and to a :class:`Commit`: whether the member may commit."""

    token: object
    error: Error


@dataclass(frozen=True, slots=True)
class Held:
    """A :class:`Heartbeat` is not answered yet. Unless it has been by then, send :class:`Released` in ``limit_s``."""

    token: object
    member_id: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Left:
    """The answer to a :class:`Leave`: an error for each, in the order asked."""

    token: object
    error: Error
    members: tuple[tuple[str, str | None, Error], ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Write the group to the log, with these assignments by member id; the outcome comes back as :class:`Stored`.
    ``because`` says who waits for it: the leader's sync, a static member that came back, or nobody."""

    generation_id: int
    assignments: Mapping[str, bytes]
    because: StaticReturn | None = None
    by_leader: bool = False


@dataclass(frozen=True, slots=True)
class StaticReturn:
    """A static member that joined under a new id, with the state to restore if that cannot be stored. Before version 9
    of JoinGroup, the answer names the leader from before the join, so that the member does not assign again."""

    join: Join
    old_id: str
    new_id: str
    old_leader_id: str | None
    before: tuple[tuple[Protocol, ...], float, float]


Instruction = Joined | Synced | Answered | Held | Left | Store
