"""Defines the events of a client-assigned group (join, sync, heartbeat, leave) and the resulting instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import Protocol

NO_MEMBER = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request. ``token`` identifies the request in the response. A member without an id gets ``fresh_id``,
    which the caller generates, since the machine does not use randomness. If ``must_know_id`` is set, such a member
    must rejoin with its new id (KIP-394), unless it is static. For ``can_skip_assignment``, see KIP-814."""

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
    """A SyncGroup request. ``assignments`` maps member ids to the leader's assignments, and ``topic_ids`` contains the
    identities of the topics in them. Before version 5, the protocol type and name are ``None``."""

    token: object
    member_id: str
    instance_id: str | None
    generation_id: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A Heartbeat request. ``software`` is the client's name and version from ApiVersions, or empty if its heartbeats
    must not be held."""

    token: object
    member_id: str
    instance_id: str | None
    generation_id: int
    software: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """A held heartbeat must be answered now, either because its client has sent another request (``by_client``) or
    because the hold has reached its limit."""

    token: object
    member_id: str
    by_client: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A LeaveGroup request. ``leaving`` lists the (member id, instance id) of each member that leaves. ``client`` is
    the client id and host of the client that sent it, and ``by`` describes that client: if it is not the member's own,
    it has evicted the member."""

    token: object
    leaving: tuple[tuple[str, str | None], ...]
    client: tuple[str, str] = ("", "")
    by: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a :class:`StoreGroup`."""

    store: StoreGroup
    error: Error


@dataclass(frozen=True, slots=True)
class TopicsReplaced:
    """A member has committed for a topic that was deleted and made anew since the group's generation was given its
    assignments."""


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection was lost. The syncs and heartbeats held for it are dropped, so that their members can time out. If
    the client has closed it, perhaps because it does not wait that long, its heartbeats are no longer held."""

    tokens: frozenset[object]
    by_client: bool = False


Event = Join | Sync | Heartbeat | Released | Leave | Stored | TopicsReplaced | ConnectionLost


@dataclass(frozen=True, slots=True)
class Joined:
    """The response to a :class:`Join`. Only the leader gets ``members``, each as (member id, instance id, metadata)."""

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
    """The response to a :class:`Heartbeat`."""

    token: object
    error: Error


@dataclass(frozen=True, slots=True)
class Held:
    """Hold the :class:`Heartbeat`. If it is still unanswered after ``limit_s``, send :class:`Released`."""

    token: object
    member_id: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Left:
    """The response to a :class:`Leave`, with one error for each member in the order of the request."""

    token: object
    error: Error
    members: tuple[tuple[str, str | None, Error], ...] = ()


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Write the group to the log, with ``assignments`` by member id and the identities of the topics in them
    (``topic_ids``), and report the outcome with :class:`Stored`.
    If a returning static member is waiting for the outcome, ``because`` describes its return. ``by_leader`` is true if
    the leader's sync is waiting for the outcome."""

    generation_id: int
    assignments: Mapping[str, bytes]
    because: StaticReturn | None = None
    by_leader: bool = False
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StaticReturn:
    """The return of a static member under a new id, with the state to restore if the change cannot be stored. Before
    JoinGroup version 9, the response names the previous leader, so that the member does not compute an assignment."""

    join: Join
    old_id: str
    new_id: str
    old_leader_id: str | None
    before: tuple[tuple[Protocol, ...], float, float]


Instruction = Joined | Synced | Answered | Held | Left | StoreGroup
