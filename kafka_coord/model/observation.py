"""What one look at a group gives: everything ``plan`` may know, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_coord.model.command import CommandId
from kafka_coord.model.ledger import Assignment, Ledger
from kafka_coord.model.member import Member
from kafka_coord.model.operations import GroupSettings, Pause, Request


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as Kafka's own znode describes it.

    ``identity`` tells a recreated topic from its predecessor (:func:`same_topic`): Kafka's topic id, where Kafka is new
    enough to write one, and the czxid of the topic's znode. ``replica_racks`` maps a partition to the racks its
    replicas are in, where racks are known.
    """

    name: str
    partitions: frozenset[int]
    identity: str
    replica_racks: Mapping[int, frozenset[str]] = field(default_factory=dict)


def same_topic(identity: str, other: str) -> bool:
    """Whether two identities are of one topic: of the same topic id, or of the same znode.

    One of them is enough. A topic gets its first id when Kafka is upgraded to 2.8, and another one when an older tool
    wrote its znode (KAFKA-14190); its znode is another one when ZooKeeper's content was moved to other servers.
    """
    return (identity == other and bool(identity)) or not set(identity.split()).isdisjoint(other.split())


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A znode that could not be decoded: reported and left alone.

    ``incarnation`` is the czxid of an unreadable registration (0: not known), so that a consumer that came back with
    a registration nobody can read is told from the one whose ledger is still there.
    """

    path: str
    reason: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Channel:
    """The channel of one consumer: its outstanding commands in order, and the znodes in it that are none."""

    commands: tuple[CommandId, ...] = ()
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at one group. All maps are by consumer name unless said otherwise.

    ``topics`` are all topics Kafka has (the registry's view, kept by its listeners). ``in_grace`` are consumers whose
    registration is gone but whose place is kept, ``overdue`` those with a command unacknowledged past the rebalance
    timeout, ``retired`` those gone so long that their channel may be removed, and ``expired`` says that the group has
    been empty past its offsets retention. ``coordinator.deadlines`` finds these four, so ``plan`` needs no clock.
    ``generation_floor`` is the highest generation known from elsewhere where the stored target was lost.
    ``unreadable`` are all znodes that could not be read. One below ``offsets`` keeps its partition or topic from being
    started.
    """

    group: str
    epoch: int
    members: Mapping[str, Member]
    ledgers: Mapping[str, Ledger]
    channels: Mapping[str, Channel]
    assignment: Assignment | None
    topics: Mapping[str, TopicInfo]
    settings: GroupSettings = field(default_factory=GroupSettings)
    pause: Pause | None = None
    requests: tuple[Request, ...] = ()
    in_grace: frozenset[str] = frozenset()
    overdue: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    expired: bool = False
    generation_floor: int = 0
    unreadable: tuple[Unreadable, ...] = ()
