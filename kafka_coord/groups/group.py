"""What operators see of groups: the values that ``-o json``, HTTP and the metrics encode, and how times are written.

A field's docstring says what its name does not. ``scripts/shapes`` writes them into ``openapi.json`` and
docs/operations.md. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import UNSET, Meta, Struct, UnsetType, field, json, structs, to_builtins

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import MalformedValue
from kafka_coord.model import (
    NO_PARTITIONS,
    Cause,
    Command,
    CommandId,
    GroupKind,
    GroupSettings,
    PartitionSet,
    RequestType,
    TopicPartition,
    Unreadable,
)
from kafka_coord.model.assignment import CommandType
from kafka_coord.model.codec import enc_hook
from kafka_coord.model.histories import commands_of
from kafka_coord.model.offsets import Lag, LogRange
from kafka_coord.model.sequences import some

if TYPE_CHECKING:
    from kafka_coord.model import Action, Decision, Pause, Request
    from kafka_coord.model.histories import Election


_DAY_S = 86_400


def iso_time(ms: int | None) -> str | None:
    """Formats milliseconds since 1970 as ``2026-01-31T12:00:00.123Z``. Returns ``None`` for ``None``, 0, and a time
    that ``datetime`` cannot represent."""
    if not ms:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def duration(ms: int) -> str:
    """Formats a duration as ``47 s``, ``12 min``, ``5 h`` or ``3 d``."""
    seconds = max(0, ms) // 1000
    for least, size, unit in ((2 * _DAY_S, _DAY_S, "d"), (7_200, 3_600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def lasting(began_ms: int, now_ms: int) -> str:
    """Formats the time since ``began_ms`` as ``for 12 min (since 10:45:03 UTC)``."""
    return f"for {duration(now_ms - began_ms)} (since {_clock(began_ms, now_ms)})"


def ago(at_ms: int, now_ms: int) -> str:
    """Formats a past time as ``12 min ago (10:45:03 UTC)``."""
    return f"{duration(now_ms - at_ms)} ago ({_clock(at_ms, now_ms)})"


def _clock(at_ms: int, now_ms: int) -> str:
    try:
        at, now = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (at_ms, now_ms))
    except (ValueError, OverflowError, OSError):  # read from a znode that anyone may have written
        return f"{at_ms} ms since 1970"
    return at.strftime("%H:%M:%S UTC" if at.date() == now.date() else "%Y-%m-%d %H:%M UTC")


def paused_by(pause: Pause) -> str:
    """Formats a pause as ``by alice@host since 2026-…: moving disks``, without the parts that are unknown."""
    if not (pause.by or pause.since_ms or pause.reason):  # then its znode is unreadable
        return "(the operator's name cannot be read)"
    since = f" since {iso_time(pause.since_ms)}" if pause.since_ms else ""
    why = f": {pause.reason}" if pause.reason else ""
    return f"by {pause.by or 'unknown'}{since}{why}"


class Time(int):
    """Milliseconds since 1970. It is encoded and printed as :func:`iso_time` formats it."""

    @classmethod
    def of(cls, ms: int | None) -> Self | None:
        return cls(ms) if ms else None

    def to_json(self) -> str | None:
        return iso_time(self)

    @classmethod
    def from_json(cls, value: str, where: str) -> Self:
        try:
            return cls(round(datetime.fromisoformat(value).timestamp() * 1000))
        except (TypeError, ValueError) as error:
            raise MalformedValue(where, f"{value!r} is not a time") from error

    def __str__(self) -> str:
        return iso_time(self) or ""


@dataclass(frozen=True, slots=True)
class Unowned:
    """Partitions that have had no owner since at least ``since_ms`` (ms since 1970; ``None`` if unknown)."""

    partitions: PartitionSet = NO_PARTITIONS
    since_ms: int | None = None


class Verdict(StrEnum):
    """The verdicts, in order of severity. The verdict on a group is the worst of those on its partitions and on its
    total lag."""

    KEEPING_UP = "keeping up"
    UNKNOWN = "unknown"
    """There are too few samples, or the committed offset or the end offset is unknown, or the offset does not move and
    it is unknown whether any record follows it. A group in which one partition is unknown is not keeping up."""
    BEHIND = "behind"
    """The committed offset moves, but the lag has never shrunk, or has grown overall."""
    REWOUND = "rewound"
    """The committed offset was moved back."""
    STALLED = "stalled"
    """The partition has an owner and lag, but its offset does not move."""
    STOPPED = "stopped"
    """The partition has lag, but no owner."""


class AgeBy(StrEnum):
    """What an age follows from: the next record's timestamp, or the rate at which the partition's log grew."""

    TIMESTAMP = "timestamp"
    RATE = "rate"


Partitions = Annotated[PartitionSet, Meta(description="Maps each topic to its partitions, such as 0-3,7")]
LagSum = Annotated[int | None, Meta(description="The sum of the known lags")]
WorstLag = Annotated[int | None, Meta(description="The largest known lag of a partition")]
LagUnknown = Annotated[int, Meta(description="The number of partitions whose lag is unknown")]
Gone = Annotated[int | None, Meta(description="The number of records that were deleted before the group read them")]
LagSeconds = Annotated[float | None, Meta(description="The age of the oldest waiting record in seconds")]
LagSecondsBy = Annotated[AgeBy | None, Meta(description="What that age follows from")]


def encode(value: Any) -> bytes:
    """Returns a document, or a structure of documents, as JSON."""
    return json.encode(value, enc_hook=enc_hook)


class Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that is encoded as a JSON object, by :func:`encode`. A field that is ``UNSET`` is left out."""

    def row(self, **more: Any) -> dict[str, Any]:
        """Returns the fields, and ``more``, as a row of a table."""
        return to_builtins(self, enc_hook=enc_hook) | more  # type: ignore[no-any-return]

    def fields(self) -> dict[str, Any]:
        """Returns the fields, by their names in the code."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


NOT_SUBSCRIBED = "not subscribed"


class OffsetRow(Document, kw_only=True, frozen=True):
    """One partition of a group"""

    topic: str
    partition: int
    owner: str | None
    """The consumer's name; ``null`` if the partition has no owner."""
    holding: str | None
    """``owned``, ``stopping``, ``not subscribed`` (the group has members, but none subscribes to the topic; the
    partition is in no total) or ``null``."""
    committed_offset: int | None
    """``null`` if nothing is committed."""
    committed_ms: Time | None = field(default=None, name="committed_at")
    """Always ``null`` for a client-assigned group."""
    start_offset: int | None = None
    """``null`` if unknown; ``lag_note`` gives the reason."""
    end_offset: int | None = None
    """``null`` if unknown; ``lag_note`` gives the reason."""
    lag: int | None = None
    """The unread records that the log still holds."""
    gone: int | None = None
    """The unread records that were deleted."""
    lag_s: LagSeconds = None
    lag_s_by: LagSecondsBy = None
    unresolved: str | None = None
    """Why the partition has no position yet, although a consumer was told to start it at its end (ADR 40); the text is
    empty if no reason is known."""
    unread: bool | UnsetType = UNSET
    """``true`` if the lag may consist of offsets without a record, which could not be read."""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def first_left(self) -> int:
        """The first offset after the committed one that the log still holds, from which the lag counts."""
        return (self.committed_offset or 0) + (self.gone or 0)


class OfLag(Document, frozen=True):
    """What every document says of the lag of several partitions"""

    lag: LagSum
    worst_lag: WorstLag
    lag_unknown: LagUnknown
    gone: Gone
    lag_s: LagSeconds
    lag_s_by: LagSecondsBy


class LagTotal(OfLag, frozen=True):
    """The lag of several partitions"""

    @classmethod
    def of_rows(cls, rows: Iterable[OffsetRow]) -> LagTotal:
        """Returns the total of the partitions that count (:func:`counted`)."""
        rows = counted(rows)
        total = cls.of(None if row.lag is None else Lag(row.lag, row.gone or 0) for row in rows)
        ages = [(row.lag_s, row.lag_s_by) for row in rows if row.lag is not None]
        known = [(age_s, by) for age_s, by in ages if age_s is not None]
        if not known or len(known) < len(ages):
            return total
        age_s, by = max(known, key=lambda one: one[0])
        return structs.replace(total, lag_s=age_s, lag_s_by=by)

    @classmethod
    def of(cls, lags: Iterable[Lag | None]) -> LagTotal:
        """Returns the total of ``lags``, where ``None`` means unknown."""
        lags = list(lags)
        known = [one for one in lags if one is not None]
        unknown = len(lags) - len(known)
        if not known:
            return LagTotal(None, None, unknown, None, None, None)
        lag = [one.lag for one in known]
        gone = sum(one.gone for one in known)
        return LagTotal(sum(lag), max(lag), unknown, gone, None, None)


NOT_MEASURED: dict[str, Any] = dict.fromkeys(LagTotal.__struct_fields__)
"""The fields about the lag of a group whose partitions were not queried."""


def rounded(age_s: float | None) -> float | None:
    """Rounds an age to what is worth showing."""
    return None if age_s is None else round(age_s, 1)


def counted(rows: Iterable[OffsetRow]) -> list[OffsetRow]:
    """Returns the rows without those of topics that no member subscribes to."""
    return [row for row in rows if row.holding != NOT_SUBSCRIBED]


LogRanges = Callable[[PartitionSet], tuple[Mapping[TopicPartition, LogRange], str]]
"""Returns the known starts and ends of logs, and a message that says why the rest are unknown (or ``""``)."""


class GroupRow(Document, kw_only=True, frozen=True):
    """``kafka-coord groups list --lag -o json``, with the lag only if it was measured, and the verdict only for the
    groups that are furthest behind"""

    group: str
    state: GroupState
    generation: int | None = None
    """``null`` for a client-assigned group."""
    members: int
    partitions: int
    assignor: str
    pending: int = 0
    """The number of unacknowledged commands."""
    unreadable: int = 0
    """The number of znodes of the group that cannot be decoded."""
    kind: GroupKind
    """``managed``, ``client-assigned`` or ``native``."""
    coordinator: int | None
    """The broker id of the instance that coordinates the group."""
    log_partition: int | None = None
    """The partition of ``__kafka_coord_groups`` that stores a client-assigned group."""
    lag: LagSum | UnsetType = UNSET
    worst_lag: WorstLag | UnsetType = UNSET
    lag_unknown: LagUnknown | UnsetType = UNSET
    gone: Gone | UnsetType = UNSET
    lag_s: LagSeconds | UnsetType = UNSET
    lag_s_by: LagSecondsBy | UnsetType = UNSET
    verdict: Verdict | UnsetType = UNSET

    def with_lag(self, total: LagTotal | None) -> Self:
        return self if total is None else structs.replace(self, **total.fields())


class WaitingCommand(Document, kw_only=True, frozen=True):
    """An unacknowledged command, with the time when it was written. What its znode says is ``null`` if that cannot be
    decoded"""

    group: str
    consumer: str
    command: str
    type: CommandType
    since_ms: Time | None = field(name="since")
    generation: int | None = None
    epoch: int | None = None
    incarnation: int | None = None
    for_live: bool
    """``false`` if the command is for an earlier incarnation; the consumer will drop it."""
    partitions: Partitions = field(default_factory=PartitionSet)
    reason: str | None = None

    @classmethod
    def of(
        cls, group: str, consumer: str, named: CommandId, since_ms: int, command: Command | None, *, for_live: bool
    ) -> Self:
        """Returns the command at the znode ``named``. ``command`` is ``None`` if that cannot be decoded."""
        told = ("generation", "epoch", "incarnation", "partitions", "reason") if command is not None else ()
        return cls(
            group=group,
            consumer=consumer,
            command=named.name,
            type=named.type,
            since_ms=Time.of(since_ms),
            for_live=for_live,
            **{name: getattr(command, name) for name in told},
        )

    def waited_ms(self, now_ms: int) -> int:
        """Returns how long the command has been outstanding. The result is never negative, even if the clocks
        differ."""
        return max(0, now_ms - (self.since_ms or 0))


class MemberRow(Document, kw_only=True, frozen=True):
    """One member, live or gone"""

    consumer: str
    """For a stock Kafka client, its ``group.instance.id`` or its member id."""
    registered: bool
    """``false`` if the consumer is gone, but its partitions have not been released yet, or its place is being kept
    (``rejoin_grace_ms``)."""
    host: str | None
    client: str | None
    channel: str
    """``zookeeper``; ``kafka`` for a stock Kafka client; or ``socket`` for a consumer without ZooKeeper."""
    gateway: int | None = None
    """For ``kafka`` and ``socket``: the broker id of the instance that registered the consumer."""
    address: str | None = None
    """The consumer's address, only for these two."""
    heard_ms_ago: int | None = None
    """How long ago the coordinator (for a Kafka client: the instance that serves its group) last heard from the
    consumer; ``null`` unless that instance runs with ``--listen-http`` and responds."""
    software: str | None = None
    """The client's library; set only for Kafka clients, like the next three."""
    protocol: str | None = None
    """The group protocol."""
    epoch: int | None = None
    """The member epoch."""
    held_ms: int | None = None
    """How long the heartbeat has been held."""
    incarnation: int = 0
    since_ms: Time | None = field(default=None, name="since")
    """``null`` in a client-assigned group."""
    subscription: str
    mode: str
    capacity: int = 1
    rack: str | None
    rejoin_grace_ms: int = 0
    owned: Partitions
    stopping: Partitions = field(default_factory=PartitionSet)
    target: Partitions
    pending: list[WaitingCommand] = []
    """The commands that the consumer has not acknowledged yet, as in ``channel list``."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """The topics that the consumer is not allowed to read, each with the reason; the coordinator leaves the consumer
    out for them."""


class QueuedRequest(Document, kw_only=True, frozen=True):
    """A request in the queue"""

    request: str
    type: RequestType
    group: str | None
    consumer: str | None
    by: str | None
    since_ms: Time | None = field(name="since")
    result: str | None
    message: str | None
    reason: str | None

    @classmethod
    def of(cls, request: Request, since_ms: int) -> Self:
        """``since_ms`` is the time when it was created, by ZooKeeper's clock."""
        texts = ("group", "consumer", "by", "result", "message", "reason")
        return cls(
            request=request.request_id,
            type=request.type,
            since_ms=Time.of(since_ms),
            **{name: getattr(request, name) or None for name in texts},
        )

    @property
    def answered(self) -> bool:
        return self.result is not None

    def waited_ms(self, now_ms: int) -> int:
        """Returns how long ago the request was created. The result is never negative, even if the clocks differ."""
        return max(0, now_ms - (self.since_ms or 0))


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Everything about one group. ``status`` is the planner's summary, followed by any missing topics, unacknowledged
    commands, topics that members may not read, and partitions without a position. ``settings`` is ``None`` if the
    coordinator does not report the settings. ``lag_note`` says why lags are unknown, and ``heard_note`` why
    members' ``heard_ms_ago`` is unknown.
    """

    group: str
    kind: GroupKind
    state: GroupState
    status: str
    assignor: str
    coordinator: int | None
    members: tuple[MemberRow, ...]
    offsets: tuple[OffsetRow, ...]
    unowned: Unowned
    lag_note: str
    log_partition: int | None = None
    generation: int | None = None
    reason: str = ""
    decided_at_ms: int | None = None
    settings: GroupSettings | None = None
    pause: Pause | None = None
    paused_everywhere: bool = False
    of_earlier_topic: PartitionSet = NO_PARTITIONS
    heard_note: str = ""
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def pending(self) -> int:
        return sum(len(member.pending) for member in self.members)

    @property
    def lag(self) -> LagTotal:
        return LagTotal.of_rows(self.offsets)


class UnreadableDocument(Document, frozen=True):
    path: str
    reason: str


class PauseDocument(Document, frozen=True):
    by: str
    reason: str
    since: Time | None
    everywhere: bool | UnsetType = UNSET
    """Whether all groups are paused."""

    @classmethod
    def of(cls, pause: Pause, everywhere: bool | UnsetType = UNSET) -> Self:
        return cls(by=pause.by, reason=pause.reason, since=Time.of(pause.since_ms), everywhere=everywhere)


PARTS = {
    "state": "status decided_at reason coordinator log_partition assignor member_count pending rebalance_timeout_ms "
    "offsets_retention_ms lag_warning_ms paused requests",
    "members": "members",
    "offsets": "offsets lag worst_lag lag_unknown gone lag_s lag_s_by lag_note",
}
"""The fields that each option of ``groups describe`` selects. All others are always there."""


class GroupDocument(OfLag, kw_only=True, frozen=True):
    """``kafka-coord groups describe GROUP -o json``"""

    group: str
    state: GroupState
    generation: int | None
    """``null`` for a client-assigned group."""
    kind: GroupKind
    status: str
    decided_at: Time | None
    reason: str
    """Why the group was last rebalanced."""
    coordinator: int | None
    log_partition: int | None
    assignor: str
    member_count: int
    """The number of registered members."""
    pending: int
    rebalance_timeout_ms: int | None
    """``null`` for a client-assigned group."""
    offsets_retention_ms: int | None
    """``null`` for a client-assigned group, and if the brokers' setting applies."""
    lag_warning_ms: int | None
    """``null`` if the site's setting applies."""
    paused: PauseDocument | None
    requests: list[QueuedRequest]
    """The unanswered requests about the group."""
    members: list[MemberRow]
    offsets: list[OffsetRow]
    lag_note: str | None
    """Why lags are unknown."""
    unreadable: list[UnreadableDocument]

    @classmethod
    def of(cls, found: GroupDescription, requests: Sequence[QueuedRequest] = ()) -> Self:
        return cls(
            group=found.group,
            state=found.state,
            generation=found.generation,
            kind=found.kind,
            status=found.status,
            decided_at=Time.of(found.decided_at_ms),
            reason=found.reason,
            coordinator=found.coordinator,
            log_partition=found.log_partition,
            assignor=found.assignor,
            member_count=sum(member.registered for member in found.members),
            pending=found.pending,
            rebalance_timeout_ms=found.settings.rebalance_timeout_ms if found.settings else None,
            offsets_retention_ms=found.settings.offsets_retention_ms if found.settings else None,
            lag_warning_ms=found.settings.lag_warning_ms if found.settings else None,
            paused=PauseDocument.of(found.pause, found.paused_everywhere) if found.pause else None,
            requests=list(requests),
            members=list(found.members),
            offsets=list(found.offsets),
            **found.lag.fields(),
            lag_note=found.lag_note or None,
            unreadable=[UnreadableDocument(path=one.path, reason=one.reason) for one in found.unreadable],
        )

    def only(self, chosen: Mapping[str, bool]) -> dict[str, Any]:
        """Returns the fields without those of the parts that are not chosen. ``chosen`` has the keys of
        :data:`PARTS`."""
        left_out = {name for part, names in PARTS.items() if not chosen[part] for name in names.split()}
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in left_out}


class ActionPartDocument(Document, frozen=True):
    """What an action did to one of several groups"""

    group: str
    at: Time | None
    change: str | None


class ActionDocument(Document, kw_only=True, frozen=True):
    """``kafka-coord groups history GROUP --actions -o json``"""

    at: Time | None
    by: str | None
    action: str
    reason: str | None
    group: str | UnsetType = UNSET
    """In the cluster's history: the group, unless there are several."""
    change: str | None
    """What the action changed, such as ``flights 0: 8 → 0``."""
    parts: list[ActionPartDocument] | UnsetType = UNSET
    """If one command acted on several groups."""

    @classmethod
    def of(cls, action: Action, group: str | None = None) -> Self:
        return cls(
            at=Time.of(action.at_ms),
            by=action.by or None,
            action=action.kind,
            reason=action.reason or None,
            group=UNSET if group is None else group,
            change=action.change or None,
        )

    @classmethod
    def of_cluster(cls, actions: Iterable[Action]) -> list[Self]:
        """Returns one document for each command."""
        found = []
        for command in commands_of(actions):
            group, first = command[0]
            document = cls.of(first, group)
            if len(command) > 1:
                parts = [
                    ActionPartDocument(group=str(group), at=Time.of(one.at_ms), change=one.change or None)
                    for group, one in command
                ]
                change = f"{len(parts)} groups: {some([one.group for one in parts])}"
                document = structs.replace(document, group=UNSET, change=change, parts=parts)
            found.append(document)
        return found

    @property
    def unfolded(self) -> list[ActionDocument]:
        """One document for each group."""
        if self.parts is UNSET:
            return [self]
        return [structs.replace(self, **one.fields(), parts=UNSET) for one in self.parts]


class MovesDocument(Document, frozen=True):
    """What one consumer gained and lost, such as ``flights[0-3]``"""

    gained: str | UnsetType = UNSET
    lost: str | UnsetType = UNSET


class DecisionDocument(Document, frozen=True):
    """``kafka-coord groups history GROUP -o json``"""

    generation: int
    decided_at: Time | None
    epoch: int
    """For a client-assigned group, the term of the log's partition."""
    causes: list[Cause]
    """The most important first."""
    reason: str
    assignor: str
    members: int
    partitions: int
    moved: int
    """The number of partitions that moved from one consumer to another."""
    started: int
    stopped: int
    stopped_ms: int | None
    """The time until every stop was acknowledged."""
    settled_ms: int | None
    """The time until every partition had its owner."""
    moves: dict[str, MovesDocument]
    """Maps each consumer to what it gained and lost."""

    @classmethod
    def of(cls, decision: Decision) -> Self:
        return cls(
            generation=decision.generation,
            decided_at=Time.of(decision.decided_at_ms),
            epoch=decision.epoch,
            causes=list(decision.causes),
            reason=decision.reason,
            assignor=decision.assignor,
            members=decision.members,
            partitions=decision.partitions,
            moved=decision.moved,
            started=decision.started,
            stopped=decision.stopped,
            stopped_ms=decision.stopped_ms,
            settled_ms=decision.settled_ms,
            moves={
                consumer: MovesDocument(gained=moved.get("gained", UNSET), lost=moved.get("lost", UNSET))
                for consumer, moved in decision.moves.items()
            },
        )


class ElectionDocument(Document, frozen=True):
    epoch: int
    broker_id: int
    host: str | None
    elected: Time | None
    ended: Time | None
    why: str | None
    """Why the term ended."""

    @classmethod
    def of(cls, one: Election) -> Self:
        return cls(
            epoch=one.epoch,
            broker_id=one.broker_id,
            host=one.host or None,
            elected=Time.of(one.elected_ms),
            ended=Time.of(one.ended_ms),
            why=one.why or None,
        )


class ClusterHistoryDocument(Document, frozen=True):
    """``kafka-coord coordinator history -o json``"""

    elections: list[ElectionDocument]
    actions: list[ActionDocument]


class AnswerDocument(Document, frozen=True):
    """The outcome of an action"""

    request: str | None
    """``null`` if the action needed no request to the elected instance."""
    type: str
    group: str | None
    result: str
    message: str

    @classmethod
    def of(cls, answered: Request) -> Self:
        return cls(
            request=answered.request_id,
            type=answered.type,
            group=answered.group or None,
            result=answered.result,
            message=answered.message,
        )

    @classmethod
    def done(cls, kind: str, group: str, message: str, result: str = "done") -> Self:
        """Returns the document for an action that needed no request to the elected instance."""
        return cls(request=None, type=kind, group=group, result=result, message=message)
