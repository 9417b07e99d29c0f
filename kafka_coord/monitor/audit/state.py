"""Holds the decoded state of all groups at one point in the log: what the rules check, and the pauses, topics, requests
and settings that they use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from kafka_coord.model import (
    Assignment,
    Command,
    CommandId,
    GroupSettings,
    Ledger,
    Member,
    PartitionSet,
    Request,
    RequestType,
    StartFetcher,
    StopFetcher,
    TopicInfo,
    TopicOfOffsets,
    TopicPartition,
    is_identity,
    same_topic,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.offsets import Retention
from kafka_coord.monitor.audit.tree import Change, Checked, Step, TreeNode
from kafka_coord.zk import layout
from kafka_coord.zk import store as zk
from kafka_coord.zk.brokers import decode_topic
from kafka_coord.zk.layout import Root
from kafka_coord.zk.root import ClusterRecord

MAX_PASS_MS = 60_000
"""The assumed maximum duration of a pass, in ms, if the coordinator's session timeout is unknown."""


class Instant(NamedTuple):
    """The time of a write: its transaction, and the server's wall clock (in ms since 1970, or 0 if unknown)."""

    zxid: int
    time_ms: int


NEVER = Instant(0, 0)


class AuditedRegistration(NamedTuple):
    """A live registration. ``incarnation`` is its czxid. ``member`` is ``None`` if its value cannot be decoded."""

    incarnation: int
    session_id: int
    member: Member | None = None


class Outstanding(NamedTuple):
    """A command znode. ``command`` is ``None`` if its value cannot be decoded."""

    id: CommandId
    command: Command | None
    since: Instant = NEVER


@dataclass(slots=True)
class AuditedGroup:
    """The state of a group after the last step."""

    name: str
    registrations: dict[str, AuditedRegistration] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    commands: dict[str, dict[str, Outstanding]] = field(default_factory=dict)
    """consumer → znode name → command"""
    holders: dict[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    """partition → the consumers whose ledgers list it, alive or not"""
    target: Assignment | None = None
    generation: int = 0
    """The highest generation of any target."""
    told: dict[str, int] = field(default_factory=dict)
    """consumer → the generation of the newest command written for it"""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The stored offsets that can be read"""
    first_ends: set[TopicPartition] = field(default_factory=set)
    """The partitions whose stored offset is the first end that an instance has listed"""
    unreadable_offsets: dict[TopicPartition, Instant] = field(default_factory=dict)
    """partition → the time when its stored offset became unreadable"""
    earlier_offsets: set[TopicPartition] = field(default_factory=set)
    """The partitions whose stored offsets belong to a deleted topic of the same name"""
    identities: dict[str, str] = field(default_factory=dict)
    """topic → the identity of the topic that its stored offsets belong to"""
    unreadable_ledgers: set[str] = field(default_factory=set)
    deleted_by_hand: dict[str, Ledger] = field(default_factory=dict)
    """The ledgers that were deleted by hand. The coordinator may write them back."""
    freed: dict[TopicPartition, int] = field(default_factory=dict)
    """partition → the transaction that last freed it: its stop was acknowledged, or its holder's registration ended"""
    gone_since: dict[tuple[str, int], Instant] = field(default_factory=dict)
    """(consumer, incarnation) → the time when its registration was removed. The incarnation alone is not enough,
    because consumers that a gateway registers in one transaction share it."""
    farewells: dict[str, bytes] = field(default_factory=dict)
    """consumer → the value of its channel"""
    unreadable_until: dict[str, tuple[Instant, int]] = field(default_factory=dict)
    """consumer → the time when its unreadable registration was repaired or removed, and the incarnation of that
    registration"""
    given_up: set[str] = field(default_factory=set)
    """The consumers that an operator asked to evict, so their places may be given away"""
    paused_since: Instant | None = None
    target_since: Instant = NEVER
    settings: GroupSettings | None = field(default_factory=GroupSettings)
    """``None`` if they cannot be decoded"""
    shortest_timeout_ms: int = GroupSettings().rebalance_timeout_ms
    """The shortest rebalance timeout so far. A coordinator may notice a change late and still apply an earlier
    timeout."""
    removing: bool = False
    """Whether the coordinator has begun to remove the group."""

    def live(self, consumer: str) -> Ledger | None:
        """Returns the consumer's ledger if it belongs to the registered incarnation."""
        ledger, registered = self.ledgers.get(consumer), self.registrations.get(consumer)
        if ledger is None or registered is None or ledger.incarnation != registered.incarnation:
            return None
        return ledger

    def live_holders(self, partition: TopicPartition) -> tuple[str, ...]:
        return tuple(consumer for consumer in self.holders.get(partition, ()) if self.live(consumer) is not None)

    def set_ledger(self, consumer: str, ledger: Ledger | None) -> None:
        before, after = self.ledgers.get(consumer), ledger
        had = before.held if before is not None else PartitionSet()
        has = after.held if after is not None else PartitionSet()
        for tp in had - has:
            left = tuple(name for name in self.holders[tp] if name != consumer)
            if left:
                self.holders[tp] = left
            else:
                del self.holders[tp]
        for tp in has - had:
            self.holders[tp] = (*self.holders.get(tp, ()), consumer)
        if ledger is None:
            self.ledgers.pop(consumer, None)
        else:
            self.ledgers[consumer] = ledger

    def note_offset(self, tp: TopicPartition, offset: int | None, written: Instant | None) -> None:
        """Records a changed offset. ``offset`` is the new value, or ``None`` if it is unreadable. ``written`` is
        ``None`` if the offset was deleted."""
        self.earlier_offsets.discard(tp)
        self.unreadable_offsets.pop(tp, None)
        self.offsets.pop(tp, None)
        self.first_ends.discard(tp)
        if offset is not None:
            self.offsets[tp] = offset
        elif written is not None:
            self.unreadable_offsets[tp] = written

    def outstanding(self, consumer: str) -> Iterator[Outstanding]:
        return iter(self.commands.get(consumer, {}).values())


class Names:
    """Maps a session to its owners: the instance or the consumers that created its ephemerals."""

    def __init__(self) -> None:
        self._known: dict[int, list[str]] = {}

    def learn(self, session_id: int, name: str) -> None:
        known = self._known.setdefault(session_id, [])
        if name not in known and len(known) < 4:
            known.append(name)

    def is_instance(self, session_id: int) -> bool:
        """Returns whether the session belongs to an instance."""
        return any(name.startswith("instance ") for name in self._known.get(session_id, ()))

    def of(self, session_id: int) -> str:
        known = self._known.get(session_id)
        return f"{', '.join(known)}, session {session_id:#x}" if known else f"session {session_id:#x}"


@dataclass(slots=True)
class ZooKeeperState:
    """The complete state of the znodes at one point in the log."""

    groups: dict[str, AuditedGroup] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    epoch: int = 0
    """The highest epoch so far."""
    epoch_known: bool = False
    epoch_version: int = -1
    epoch_session: int | None = None
    """The session that won the newest epoch, or ``None`` if unknown."""
    incarnations: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """(session, group, consumer) → the newest incarnation that the session registered"""
    all_paused_since: Instant | None = None
    retention: Retention | None = field(default_factory=Retention)
    """The brokers' retention, or ``None`` if it is unreadable."""
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    """The topics whose znodes can be decoded: Kafka's own or, once they are read there, those of the mirror"""
    other_topics: dict[str, TopicInfo] = field(default_factory=dict)
    """The topics at the place that is not read now"""
    root: Root = Root.KAFKA
    is_made: bool = True
    """False while a command still makes the tree. Nobody serves it until then."""
    topics_since: dict[str, Instant] = field(default_factory=dict)
    """topic → the time when the current topic with this name was created"""
    deleted_topics: set[str] = field(default_factory=set)
    requests: dict[str, Request] = field(default_factory=dict)
    """znode name → the operator's request, excluding requests that were answered before this step"""
    answered: list[str] = field(default_factory=list)
    """The names of the requests that this step answers"""
    session_timeouts_ms: dict[int, int] = field(default_factory=dict)
    """session → its timeout, if the caller supplied it. Otherwise, a pass may take up to :data:`MAX_PASS_MS`."""
    clock_set_back: int = 0
    """The last transaction at which the wall clock went backwards. Durations across it are unknown."""

    def group(self, name: str) -> AuditedGroup:
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = AuditedGroup(name)
        return found

    def set_root(self, root: Root) -> None:
        """Makes the topics those that are read at ``root``."""
        if root is not self.root:
            self.root, self.topics, self.other_topics = root, self.other_topics, self.topics

    def set_topic(self, name: str, node: TreeNode | None, root: Root = Root.KAFKA) -> None:
        """Records a topic at ``root``. Raises :class:`MalformedValue` if it cannot be decoded; the topic then counts as
        absent."""
        topics = self.topics if root is self.root else self.other_topics
        topics.pop(name, None)
        if node is None:
            return
        stat = zk.Stat(node.czxid, node.mzxid, node.version, 0, 0, 0, 0, len(node.data), 0, 0)
        topics[name] = decode_topic(name, zk.Node(node.data, stat), {})


class Evicted(NamedTuple):
    """An evicted member before the step: its live ledger, and the time of its oldest outstanding command."""

    incarnation: int
    ledger: Ledger | None
    oldest_command: Instant | None


@dataclass(slots=True)
class StepContext:
    """The current step, prepared for the rules, and the state that it changes."""

    step: Step
    state: ZooKeeperState
    fence: Checked | None = None
    in_term: bool = False
    """Whether the step checks a term of the groups log, as every write by an instance for its Kafka clients does."""
    checked: dict[str, int] = field(default_factory=dict)
    """path → the version that the step checks"""
    gone: set[tuple[str, str]] = field(default_factory=set)
    """(group, consumer): the registrations that this step removed"""
    registered: set[tuple[str, str]] = field(default_factory=set)
    """(group, consumer): the registrations that this step created or changed. If a gateway replaced a registration, it
    is also in ``gone``"""
    removed: set[str] = field(default_factory=set)
    """The paths of the commands that this step removed"""
    commanded: list[tuple[str, str, Outstanding]] = field(default_factory=list)
    """(group, consumer, command): the decodable commands that this step wrote"""
    ledgers_before: dict[tuple[str, str], Ledger | None] = field(default_factory=dict)
    """(group, consumer): the previous values of the ledgers that this step wrote or removed"""
    evicted: dict[tuple[str, str], Evicted] = field(default_factory=dict)
    """(group, consumer): the members that the coordinator evicts in this step"""
    dropped: dict[tuple[str, str], list[Outstanding]] = field(default_factory=dict)
    """(group, consumer): the commands that an instance removed in this step, other than by acknowledging them"""
    freed: set[tuple[str, TopicPartition]] = field(default_factory=set)
    """(group, partition): the granted partitions that no live consumer held before this step"""
    granted: list[tuple[str, str, PartitionSet]] = field(default_factory=list)
    """(group, consumer, partitions): the partitions that are new in the consumer's ledger"""
    elected: bool = False
    committers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """group → the members whose registration and token the step checks (a cache)"""

    @classmethod
    def of(cls, step: Step, state: ZooKeeperState) -> StepContext:
        context = cls(step, state)
        for check in step.checks:
            context.checked[check.path] = check.version
            if check.path == layout.COORDINATOR_EPOCH:
                context.fence = check
            elif check.path.startswith(f"{layout.LOG_PARTITIONS}/"):
                context.in_term = True
        return context

    @property
    def by_instance(self) -> bool:
        """Whether an instance wrote the step, as the coordinator or for its Kafka clients."""
        return self.fence is not None or self.in_term

    @property
    def instant(self) -> Instant:
        return Instant(self.step.zxid, self.step.time_ms)

    def asked(self, group: str, kind: RequestType) -> Iterator[Request]:
        """Yields the unanswered requests of one kind for one group."""
        return (one for one in self.state.requests.values() if one.group == group and one.type is kind)

    def paused_since(self, group: AuditedGroup) -> Instant | None:
        """Returns the time when the group's current pause began, or ``None`` if the group is not paused."""
        pauses = (self.state.all_paused_since, group.paused_since)
        return min((since for since in pauses if since is not None), default=None)

    def elapsed_ms(self, since: Instant) -> int | None:
        """Returns the time from ``since`` to this step by the servers' wall clock, or ``None`` if unknown."""
        if not since.time_ms or since.zxid < self.state.clock_set_back:
            return None
        return self.step.time_ms - since.time_ms

    def must_have_seen(self, since: Instant) -> bool:
        """Returns whether the coordinator that wrote this step must have read the tree after ``since``.

        A coordinator reads and writes under one lease of its session, so a pass that began before ``since`` ends no
        later than two session timeouts after it.
        """
        session_ms = self.state.session_timeouts_ms.get(self.step.session_id, MAX_PASS_MS // 2)
        elapsed = self.elapsed_ms(since)
        return elapsed is not None and elapsed > 2 * session_ms

    def told(self, group: str, consumer: str, kind: type[StartFetcher] | type[StopFetcher]) -> PartitionSet:
        """Returns the partitions that this step tells the consumer to start or stop, depending on ``kind``."""
        return PartitionSet.union(
            written.command.partitions
            for in_group, name, written in self.commanded
            if (in_group, name) == (group, consumer) and isinstance(written.command, kind)
        )

    def fences_a_member_of(self, group: str) -> bool:
        """Returns whether the step checks the token of a consumer of the group."""
        return any(path.startswith(f"{layout.channels(group)}/") for path in self.checked)

    def fenced_as(self, group: str, consumer: str) -> bool:
        """Returns whether the step checks the consumer's registration and its token (docs/protocol.md, section 4)."""
        return layout.registration(group, consumer) in self.checked and layout.channel(group, consumer) in self.checked


ROOTS = (layout.CONSUMERS, layout.BROKER_TOPICS)
"""The only paths that the audit replays. All others in the log belong to Kafka or to other applications."""

_MAX_KNOWN = 200_000


class Kind(Enum):
    EPOCH = auto()
    COORDINATOR = auto()
    INSTANCE = auto()
    REQUEST = auto()
    ALL_PAUSED = auto()
    RETENTION = auto()
    TOPIC = auto()
    MIRRORED_TOPIC = auto()
    CLUSTER = auto()
    GROUP = auto()
    MEMBERS = auto()
    """``ids``, the parent of all registrations."""
    REGISTRATION = auto()
    LEDGER = auto()
    CHANNEL = auto()
    COMMAND = auto()
    TARGET = auto()
    HISTORY = auto()
    SETTLED = auto()
    TOPIC_OFFSETS = auto()
    OFFSET = auto()
    PAUSED = auto()
    OTHER = auto()


class Znode(NamedTuple):
    """A parsed path. ``name`` is a consumer, topic or instance. ``leaf`` is a command or a partition."""

    kind: Kind
    group: str = ""
    name: str = ""
    leaf: str = ""


_OTHER = Znode(Kind.OTHER)
_SINGLE = {
    layout.COORDINATOR_EPOCH: Znode(Kind.EPOCH),
    layout.COORDINATOR: Znode(Kind.COORDINATOR),
    layout.PAUSED: Znode(Kind.ALL_PAUSED),
    layout.RETENTION: Znode(Kind.RETENTION),
    layout.CLUSTER: Znode(Kind.CLUSTER),
}
_BELOW_GROUP = {
    ("ids", 0): Kind.MEMBERS,
    ("ids", 1): Kind.REGISTRATION,
    ("owners", 1): Kind.LEDGER,
    ("channel", 1): Kind.CHANNEL,
    ("channel", 2): Kind.COMMAND,
    ("offsets", 1): Kind.TOPIC_OFFSETS,
    ("offsets", 2): Kind.OFFSET,
    ("assignment", 0): Kind.TARGET,
    ("history", 0): Kind.HISTORY,
    ("settled", 0): Kind.SETTLED,
    ("paused", 0): Kind.PAUSED,
}
_PARENTS = (
    (f"{layout.COORDINATORS}/", Kind.INSTANCE),
    (f"{layout.REQUESTS}/", Kind.REQUEST),
    (f"{layout.BROKER_TOPICS}/", Kind.TOPIC),
    (f"{layout.MIRRORED_TOPICS}/", Kind.MIRRORED_TOPIC),
)
_GROUPS = f"{layout.GROUPS}/"


class Znodes:
    """Parses paths and caches the results, because the same paths recur."""

    def __init__(self) -> None:
        self._known: dict[str, Znode] = {}

    def of(self, path: str) -> Znode:
        znode = self._known.get(path)
        if znode is None:
            znode = _znode(path)
            if znode.kind not in {Kind.COMMAND, Kind.REQUEST}:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[path] = znode
        return znode


def _znode(path: str) -> Znode:
    if path.startswith(_GROUPS):
        group, *rest = path[len(_GROUPS) :].split("/")
        if not rest:
            return Znode(Kind.GROUP, group)
        kind = _BELOW_GROUP.get((rest[0], len(rest) - 1))
        return Znode(kind, group, *rest[1:]) if kind is not None else Znode(Kind.OTHER, group)
    for prefix, kind in _PARENTS:
        if path.startswith(prefix):
            name, _, below = path[len(prefix) :].partition("/")
            return Znode(kind, name=name) if not below else _OTHER
    return _SINGLE.get(path, _OTHER)


def note_instance(context: StepContext, znode: Znode, change: Change) -> None:
    """Records the name of a running instance."""
    if change.new is not None and change.new.session_id:
        context.state.names.learn(change.new.session_id, f"instance {znode.name}")


def note_pause(context: StepContext, znode: Znode, change: Change) -> None:
    """Records a pause of one group or of all groups. An unreadable pause is still a pause."""
    if change.new is not None and change.old is not None:
        return
    since = context.instant if change.new is not None else None
    if znode.kind is Kind.ALL_PAUSED:
        context.state.all_paused_since = since
    else:
        context.state.group(znode.group).paused_since = since


def note_retention(context: StepContext, _znode: Znode, change: Change) -> None:
    """Records the brokers' retention. Raises :class:`MalformedValue`."""
    context.state.retention = None
    found = fields.load(change.new.data, change.path) if change.new is not None else None
    context.state.retention = Retention() if found is None else Retention.from_json(found, change.path)


def note_topic(context: StepContext, znode: Znode, change: Change) -> None:
    """Records a topic, Kafka's own or one of the mirror. Raises :class:`MalformedValue`."""
    root = Root.MIRROR if znode.kind is Kind.MIRRORED_TOPIC else Root.KAFKA
    if root is not context.state.root:
        pass
    elif change.new is None:
        context.state.topics_since.pop(znode.name, None)
        context.state.deleted_topics.add(znode.name)
    elif change.old is None:
        context.state.topics_since[znode.name] = context.instant
    context.state.set_topic(znode.name, change.new, root)


def note_cluster(context: StepContext, _znode: Znode, change: Change) -> None:
    """Records where topics are read from now on, and whether the tree is being made. Raises
    :class:`MalformedValue`."""
    record = ClusterRecord.from_znode(change.new.data) if change.new is not None else None
    context.state.set_root(record.root if record is not None else Root.KAFKA)
    context.state.is_made = record is None or not record.making


def note_request(context: StepContext, znode: Znode, change: Change) -> None:
    """Records an operator's request. A withdrawn request stays recorded, because the coordinator may still execute it.
    Raises :class:`MalformedValue`."""
    if change.new is None:
        return
    request = Request.from_bytes(change.new.data, change.path)
    if request.answered:
        context.state.answered.append(znode.name)
        return
    context.state.requests[znode.name] = request
    if request.type is RequestType.EVICT and request.group in context.state.groups:
        context.state.group(request.group).given_up.add(request.consumer)


def note_group(context: StepContext, znode: Znode, change: Change) -> None:
    """Records a group and its settings. Raises :class:`MalformedValue`."""
    if change.new is None:
        context.state.groups.pop(znode.group, None)
        return
    group = context.state.group(znode.group)
    group.settings = None
    where = layout.group(znode.group)
    value = change.new.data
    settings = GroupSettings.from_bytes(value, where) if value else GroupSettings()
    group.settings = settings
    group.shortest_timeout_ms = min(group.shortest_timeout_ms, settings.rebalance_timeout_ms)


def note_offsets_of_topic(context: StepContext, znode: Znode, change: Change) -> None:
    """Records the identity in ``offsets/<topic>``, which shows which topic of that name the offsets belong to."""
    group, topic = context.state.group(znode.group), znode.name
    before = group.identities.pop(topic, "")
    if change.new is None:
        return
    after = group.identities[topic] = TopicOfOffsets.read(change.new.data).identity
    if is_identity(before) and is_identity(after) and not same_topic(before, after):
        group.earlier_offsets.update(tp for tp in group.offsets if tp.topic == topic)
