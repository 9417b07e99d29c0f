"""A frozen snapshot of a group, which is the input to ``plan``."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_coord.model.assignment import Assignment, CommandId, Holds, Ledger
from kafka_coord.model.member import Departure, Member, Refusals
from kafka_coord.model.operations import GroupSettings, Pause, Request

_TOPIC_ID, _CZXID = re.compile(r"[A-Za-z0-9_-]{22}"), re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic, as Kafka's own znode describes it.

    ``identity`` distinguishes a recreated topic from its predecessor: it is the topic's id alone or, if the topic has
    none (before Kafka 2.8), the czxid of its znode (ADR 42). ``former_identity`` is that czxid if the topic has an id,
    because what was stored before the upgrade to 2.8 contains it. ``replica_racks`` maps each partition to the known
    racks of its replicas.
    """

    name: str
    partitions: frozenset[int]
    identity: str
    replica_racks: Mapping[int, frozenset[str]] = field(default_factory=dict)
    former_identity: str = ""

    @property
    def czxid(self) -> int:
        """When the topic's znode was created, as a zxid, or 0 if that is not known."""
        czxid = self.former_identity or self.identity
        return int(czxid) if czxid.isdecimal() else 0

    def is_same(self, identity: str) -> bool:
        """Returns whether ``identity``, which was stored earlier, belongs to this topic and not to an earlier one of
        the same name. If Kafka has lost the topic's id (a downgrade, or an older tool that wrote its znode), the topic
        counts as the same, because nothing shows that it was deleted."""
        if not self.former_identity:
            return same_topic(self.identity, identity)
        return bool(identity) and identity in {self.identity, self.former_identity}


def same_topic(identity: str, other: str) -> bool:
    """Returns whether two identities may belong to the same topic: they are equal, or only one of them is a topic id.
    Only an upgrade or downgrade of Kafka changes the form. :meth:`TopicInfo.is_same` is stricter."""
    if identity == other:
        return bool(identity)
    return is_topic_id(identity) != is_topic_id(other) and (identity.isdecimal() or other.isdecimal())


def is_topic_id(identity: str) -> bool:
    """Returns whether a topic's identity is Kafka's id (128 bits in URL-safe base64), not a czxid."""
    return _TOPIC_ID.fullmatch(identity) is not None


def topic_id_to_bytes(topic_id: str) -> bytes:
    """Returns Kafka's id as it stands in requests and records."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_from_bytes(written: bytes) -> str:
    return base64.urlsafe_b64encode(written).decode().rstrip("=")


def is_identity(written: str) -> bool:
    """Returns whether ``written`` has the format of a topic's identity: its id or the czxid of its znode. The format is
    strict, because offsets stored under a different identity are removed."""
    return is_topic_id(written) or _CZXID.fullmatch(written) is not None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A znode that could not be decoded. It is reported and left unchanged.

    ``incarnation`` is the czxid of an unreadable registration, or 0 if it is unknown. It distinguishes a consumer that
    returned with an unreadable registration from its previous incarnation, whose ledger still exists.
    """

    path: str
    reason: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Channel:
    """The channel of one consumer: the outstanding commands, in order, and any znodes that are not commands."""

    commands: tuple[CommandId, ...] = ()
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot of one group. All maps are keyed by consumer name unless stated otherwise.

    - ``topics``: all of Kafka's topics, as the listeners last saw them.
    - ``in_grace``: the consumers whose registration is gone but whose place is kept.
    - ``overdue``: the consumers that have not acknowledged a command within the rebalance timeout.
    - ``retired``: the consumers that have been gone long enough for their channel to be removed.
    - ``retention_passed``: whether the group has been empty for longer than its offset retention period.
    - ``departures``: how the members of the stored target went that are no longer registered.
    - ``nothing_kept``: whether the group has been found empty, and without offsets or anything that was asked for.
    - ``generation_floor``: if the stored target was lost, the highest generation found elsewhere.
    - ``unreadable``: all znodes that could not be read. While a znode below ``offsets`` is unreadable, its partition or
      topic is not started.
    - ``refusals``: the topics that consumers are not allowed to read, also those of earlier incarnations.
    - ``holds``: what the members of a restored group held, or ``None``. ``holds_over``: whether it no longer counts.
    - ``offsets_zxid``: the zxid of the last change below ``offsets``, or ``None`` if it was not read.

    ``coordinator.deadlines`` computes ``in_grace`` to ``retention_passed``, and ``holds_over``; ``plan`` has no clock.
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
    retention_passed: bool = False
    departures: Mapping[str, Departure] = field(default_factory=dict)
    nothing_kept: bool = False
    generation_floor: int = 0
    unreadable: tuple[Unreadable, ...] = ()
    offsets_zxid: int | None = None
    refusals: Mapping[str, Refusals] = field(default_factory=dict)
    holds: Holds | None = None
    holds_over: bool = False

    def refused(self, consumer: str) -> Mapping[str, str]:
        """Returns the topics that a registered consumer is not allowed to read, each with the reason."""
        refusals, member = self.refusals.get(consumer), self.members.get(consumer)
        if refusals is None or member is None or refusals.incarnation != member.incarnation:
            return {}
        return refusals.topics

    @property
    def decided_ms(self) -> int:
        """The time at which the target was decided (ms since 1970), or 0 if there is no target."""
        return self.assignment.timestamp_ms if self.assignment is not None else 0
