"""Defines the documents that ``-o json`` prints and the JSON API serves.

A field's docstring says what its name does not. ``scripts/shapes`` writes them into ``openapi.json`` and
docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import Cause, GroupKind, RequestType
from kafka_coord.monitor.lag_trend import Verdict
from kafka_coord.monitor.moments import iso_time

if TYPE_CHECKING:
    from kafka_coord.model import Action, Decision, Pause, Request
    from kafka_coord.model.histories import Election
    from kafka_coord.monitor.channel import WaitingCommand
    from kafka_coord.monitor.groups import GroupDescription, GroupRow, MemberRow
    from kafka_coord.monitor.offsets import LagTotal, OffsetRow
    from kafka_coord.monitor.requests import QueuedRequest

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time in UTC, as :func:`iso_time` formats it."""

Partitions = Annotated[dict[str, str], Meta(description="Maps each topic to its partitions, such as 0-3,7")]


LagSum = Annotated[int | None, Meta(description="The sum of the known lags")]
WorstLag = Annotated[int | None, Meta(description="The largest known lag of a partition")]
LagUnknown = Annotated[int, Meta(description="The number of partitions whose lag is unknown")]
Gone = Annotated[int | None, Meta(description="The number of records that were deleted before the group read them")]


class Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that is encoded as a JSON object. A field that is ``UNSET`` is left out."""

    def row(self, **more: Any) -> dict[str, Any]:
        """Returns the fields, and ``more``, as a row of a table."""
        return to_builtins(self) | more  # type: ignore[no-any-return]


def lag_fields(total: LagTotal | None) -> dict[str, Any]:
    """Returns the four fields about the lag. They are ``None`` if the brokers were not queried."""
    if total is None:
        return dict.fromkeys(("lag", "worst_lag", "lag_unknown", "gone"))
    return {"lag": total.lag, "worst_lag": total.worst, "lag_unknown": total.unknown, "gone": total.gone}


class GroupRowDocument(Document, frozen=True):
    """``kafka-coord groups list --lag -o json``, with the lag only if it was measured, and the verdict only for the
    groups that are furthest behind"""

    group: str
    state: GroupState
    generation: int | None
    """``null`` for a client-assigned group."""
    members: int
    partitions: int
    assignor: str
    pending: int
    """The number of unacknowledged commands."""
    unreadable: int
    """The number of znodes of the group that cannot be decoded."""
    kind: GroupKind
    """``managed`` or ``client-assigned``."""
    coordinator: int | None
    """The broker id of the instance that coordinates the group."""
    log_partition: int | None
    """The partition of ``__kafka_coord_groups`` that stores a client-assigned group."""
    lag: LagSum | UnsetType = UNSET
    worst_lag: WorstLag | UnsetType = UNSET
    lag_unknown: LagUnknown | UnsetType = UNSET
    gone: Gone | UnsetType = UNSET
    verdict: Verdict | UnsetType = UNSET

    @classmethod
    def of(cls, row: GroupRow, **more: Any) -> Self:
        return cls(
            group=row.group,
            state=row.state,
            generation=row.generation,
            members=row.members,
            partitions=row.partitions,
            assignor=row.assignor,
            pending=row.pending,
            unreadable=row.unreadable,
            kind=row.kind,
            coordinator=row.coordinator,
            log_partition=row.log_partition,
            **(lag_fields(row.lag) if row.lag is not None else {}),
            **more,
        )


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
        return cls(by=pause.by, reason=pause.reason, since=iso_time(pause.since_ms), everywhere=everywhere)


class RequestDocument(Document, frozen=True):
    request: str
    type: RequestType
    group: str | None
    consumer: str | None
    by: str | None
    since: Time | None
    result: str | None
    message: str | None
    reason: str | None

    @classmethod
    def of(cls, one: QueuedRequest, **more: Any) -> Self:
        request = one.request
        return cls(
            request=request.request_id,
            type=request.type,
            group=request.group or None,
            consumer=request.consumer or None,
            by=request.by or None,
            since=iso_time(one.since_ms),
            result=request.result or None,
            message=request.message or None,
            reason=request.reason or None,
            **more,
        )


class CommandDocument(Document, frozen=True):
    group: str
    consumer: str
    command: str
    type: str
    since: Time | None
    generation: int | None
    epoch: int | None
    incarnation: int | None
    for_live: bool
    """``false`` if the command is for an earlier incarnation; the consumer will drop it."""
    partitions: Partitions
    reason: str | None

    @classmethod
    def of(cls, waiting: WaitingCommand, **more: Any) -> Self:
        command = waiting.command
        return cls(
            group=waiting.group,
            consumer=waiting.consumer,
            command=waiting.id.name,
            type=waiting.id.type,
            since=iso_time(waiting.since_ms),
            generation=command.generation if command else None,
            epoch=command.epoch if command else None,
            incarnation=command.incarnation if command else None,
            for_live=waiting.for_live,
            partitions=waiting.partitions.to_json(),
            reason=command.reason if command else None,
            **more,
        )


class MemberDocument(Document, frozen=True):
    consumer: str
    """For a stock Kafka client, its ``group.instance.id`` or its member id."""
    registered: bool
    """``false`` if the consumer is gone, but its partitions have not been released yet, or its place is being kept
    (``rejoin_grace_ms``)."""
    host: str | None
    client: str | None
    channel: str
    """``zookeeper``; ``kafka`` for a stock Kafka client; or ``socket`` for a consumer without ZooKeeper."""
    gateway: int | None
    """For ``kafka`` and ``socket``: the broker id of the instance that registered the consumer."""
    address: str | None
    """The consumer's address, only for these two."""
    heard_ms_ago: int | None
    """How long ago the coordinator (for a Kafka client: the instance that serves its group) last heard from the
    consumer; ``null`` unless that instance runs with ``--listen-http`` and responds."""
    software: str | None
    """The client's library; set only for Kafka clients, like the next three."""
    protocol: str | None
    """The group protocol."""
    epoch: int | None
    """The member epoch."""
    held_ms: int | None
    """How long the heartbeat has been held."""
    incarnation: int
    since: Time | None
    """``null`` in a client-assigned group."""
    subscription: str
    mode: str
    capacity: int
    rack: str | None
    rejoin_grace_ms: int
    owned: Partitions
    stopping: Partitions
    target: Partitions
    pending: list[CommandDocument]
    """The commands that the consumer has not acknowledged yet, as in ``channel list``."""
    refused: dict[str, str]
    """The topics that the consumer is not allowed to read, each with the reason; the coordinator leaves the consumer
    out for them."""

    @classmethod
    def of(cls, member: MemberRow) -> Self:
        return cls(
            consumer=member.consumer,
            registered=member.registered,
            host=member.host,
            client=member.client,
            channel=member.channel,
            gateway=member.gateway,
            address=member.address,
            heard_ms_ago=member.heard_ms_ago,
            software=member.software,
            protocol=member.protocol,
            epoch=member.epoch,
            held_ms=member.held_ms,
            incarnation=member.incarnation,
            since=iso_time(member.since_ms),
            subscription=member.subscription,
            mode=member.mode,
            capacity=member.capacity,
            rack=member.rack,
            rejoin_grace_ms=member.rejoin_grace_ms,
            owned=member.owned.to_json(),
            stopping=member.stopping.to_json(),
            target=member.target.to_json(),
            pending=[CommandDocument.of(command) for command in member.pending],
            refused=dict(member.refused),
        )


class OffsetDocument(Document, frozen=True):
    topic: str
    partition: int
    owner: str | None
    """The consumer's name; ``null`` if the partition has no owner."""
    holding: str | None
    """``owned``, ``stopping``, ``not subscribed`` (the group has members, but none subscribes to the topic; the
    partition is in no total) or ``null``."""
    committed_offset: int | None
    """``null`` if nothing is committed."""
    committed_at: Time | None
    """Always ``null`` for a client-assigned group."""
    start_offset: int | None
    """``null`` if unknown; ``lag_note`` gives the reason."""
    end_offset: int | None
    """``null`` if unknown; ``lag_note`` gives the reason."""
    lag: int | None
    """The unread records that the log still holds."""
    gone: int | None
    """The unread records that were deleted."""
    unresolved: str | None
    """Why the partition has no position yet, although a consumer was told to start it at its end (ADR 40); the text is
    empty if no reason is known."""

    @classmethod
    def of(cls, row: OffsetRow, **more: Any) -> Self:
        return cls(
            topic=row.topic,
            partition=row.partition,
            owner=row.owner,
            holding=row.holding or None,
            committed_offset=row.committed_offset,
            committed_at=iso_time(row.committed_ms),
            start_offset=row.start_offset,
            end_offset=row.end_offset,
            lag=row.lag,
            gone=row.gone,
            unresolved=row.unresolved,
            **more,
        )


PARTS = {
    "state": "status decided_at reason coordinator log_partition assignor member_count pending rebalance_timeout_ms "
    "offsets_retention_ms paused requests",
    "members": "members",
    "offsets": "offsets lag worst_lag lag_unknown gone lag_note",
}
"""The fields that each option of ``groups describe`` selects. All others are always there."""


class GroupDocument(Document, frozen=True):
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
    paused: PauseDocument | None
    requests: list[RequestDocument]
    """The unanswered requests about the group."""
    members: list[MemberDocument]
    offsets: list[OffsetDocument]
    lag: LagSum
    worst_lag: WorstLag
    lag_unknown: LagUnknown
    gone: Gone
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
            decided_at=iso_time(found.decided_at_ms),
            reason=found.reason,
            coordinator=found.coordinator,
            log_partition=found.log_partition,
            assignor=found.assignor,
            member_count=sum(member.registered for member in found.members),
            pending=found.pending,
            rebalance_timeout_ms=found.settings.rebalance_timeout_ms if found.settings else None,
            offsets_retention_ms=found.settings.offsets_retention_ms if found.settings else None,
            paused=PauseDocument.of(found.pause, found.paused_everywhere) if found.pause else None,
            requests=[RequestDocument.of(one) for one in requests],
            members=[MemberDocument.of(member) for member in found.members],
            offsets=[OffsetDocument.of(row) for row in found.offsets],
            **lag_fields(found.lag),
            lag_note=found.lag_note or None,
            unreadable=[UnreadableDocument(path=one.path, reason=one.reason) for one in found.unreadable],
        )

    def only(self, chosen: Mapping[str, bool]) -> dict[str, Any]:
        """Returns the fields without those of the parts that are not chosen. ``chosen`` has the keys of
        :data:`PARTS`."""
        left_out = {name for part, names in PARTS.items() if not chosen[part] for name in names.split()}
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in left_out}


class ActionDocument(Document, frozen=True):
    """``kafka-coord groups history GROUP --actions -o json``"""

    at: Time | None
    by: str | None
    action: str
    reason: str | None
    change: str | None
    """What the action changed, such as ``flights 0: 8 → 0``."""

    @classmethod
    def of(cls, action: Action) -> Self:
        return cls(
            at=iso_time(action.at_ms),
            by=action.by or None,
            action=action.kind,
            reason=action.reason or None,
            change=action.change or None,
        )


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
            decided_at=iso_time(decision.decided_at_ms),
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
            elected=iso_time(one.elected_ms),
            ended=iso_time(one.ended_ms),
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
    def done(cls, kind: str, group: str, message: str) -> Self:
        """Returns the document for an action that needed no request to the elected instance."""
        return cls(request=None, type=kind, group=group, result="done", message=message)
