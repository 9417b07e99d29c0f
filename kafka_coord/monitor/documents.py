"""Builds the documents for ``-o json`` and the JSON API, whose shapes docs/operations.md defines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands that only print a time also import this module
    from kafka_coord.model import Action, Decision, Pause, Request
    from kafka_coord.model.histories import Election
    from kafka_coord.monitor.channel import WaitingCommand
    from kafka_coord.monitor.cluster import Cluster
    from kafka_coord.monitor.doctor import Finding
    from kafka_coord.monitor.groups import GroupDescription, GroupRow, MemberRow
    from kafka_coord.monitor.offsets import LagTotal, OffsetRow
    from kafka_coord.monitor.requests import QueuedRequest


def group_document(row: GroupRow) -> dict[str, Any]:
    """Returns one entry of a list of groups. The entry contains the lag fields only if the brokers were queried."""
    return {
        "group": row.group,
        "state": str(row.state),
        "generation": row.generation,
        "members": row.members,
        "partitions": row.partitions,
        "assignor": row.assignor,
        "pending": row.pending,
        "unreadable": row.unreadable,
        "kind": str(row.kind),
        "coordinator": row.coordinator,
        "log_partition": row.log_partition,
        **(lag_document(row.lag) if row.lag is not None else {}),
    }


def lag_document(total: LagTotal) -> dict[str, Any]:
    return {"lag": total.lag, "worst_lag": total.worst, "lag_unknown": total.unknown, "gone": total.gone}


def describe_document(
    found: GroupDescription, chosen: Mapping[str, bool], requests: Sequence[QueuedRequest] = ()
) -> dict[str, Any]:
    """Returns the document for one group. ``chosen`` selects the parts ``state``, ``members`` and ``offsets``."""
    document: dict[str, Any] = {
        "group": found.group,
        "state": str(found.state),
        "generation": found.generation,
        "kind": str(found.kind),
    }
    if chosen["state"]:
        document |= {
            "status": found.status,
            "decided_at": iso_time(found.decided_at_ms),
            "reason": found.reason,
            "coordinator": found.coordinator,
            "log_partition": found.log_partition,
            "assignor": found.assignor,
            "member_count": sum(member.registered for member in found.members),
            "pending": found.pending,
            "rebalance_timeout_ms": found.settings.rebalance_timeout_ms if found.settings else None,
            "offsets_retention_ms": found.settings.offsets_retention_ms if found.settings else None,
            "paused": pause_document(found.pause) | {"everywhere": found.paused_everywhere} if found.pause else None,
            "requests": [request_document(one) for one in requests],
        }
    if chosen["members"]:
        document["members"] = [member_document(member) for member in found.members]
    if chosen["offsets"]:
        document["offsets"] = [offset_document(row) for row in found.offsets]
        document |= lag_document(found.lag)
        document["lag_note"] = found.lag_note or None
    document["unreadable"] = [{"path": one.path, "reason": one.reason} for one in found.unreadable]
    return document


def action_document(action: Action) -> dict[str, Any]:
    return {
        "at": iso_time(action.at_ms),
        "by": action.by or None,
        "action": action.kind,
        "reason": action.reason or None,
        "change": action.change or None,
    }


def request_document(one: QueuedRequest) -> dict[str, Any]:
    request = one.request
    return {
        "request": request.request_id,
        "type": str(request.type),
        "group": request.group or None,
        "consumer": request.consumer or None,
        "by": request.by or None,
        "since": iso_time(one.since_ms),
        "result": request.result or None,
        "message": request.message or None,
        "reason": request.reason or None,
    }


def unassigned_document(found: GroupDescription, undecided: str) -> dict[str, Any]:
    """Returns a group's partitions without an owner. ``undecided`` is :attr:`Cluster.undecided`."""
    return {
        "group": found.group,
        "kind": str(found.kind),
        "state": str(found.state),
        "partitions": found.unowned.partitions.to_json(),
        "count": len(found.unowned.partitions),
        "why": (undecided if found.members else "") or found.status,
        "since": iso_time(found.unowned.since_ms),
    }


def pause_document(pause: Pause) -> dict[str, Any]:
    return {"by": pause.by, "reason": pause.reason, "since": iso_time(pause.since_ms)}


def member_document(member: MemberRow) -> dict[str, Any]:
    return {
        "consumer": member.consumer,
        "registered": member.registered,
        "host": member.host,
        "client": member.client,
        "channel": member.channel,
        "gateway": member.gateway,
        "address": member.address,
        "heard_ms_ago": member.heard_ms_ago,
        "software": member.software,
        "protocol": member.protocol,
        "epoch": member.epoch,
        "held_ms": member.held_ms,
        "incarnation": member.incarnation,
        "since": iso_time(member.since_ms),
        "subscription": member.subscription,
        "mode": member.mode,
        "capacity": member.capacity,
        "rack": member.rack,
        "rejoin_grace_ms": member.rejoin_grace_ms,
        "owned": member.owned.to_json(),
        "stopping": member.stopping.to_json(),
        "target": member.target.to_json(),
        "pending": [command_document(command) for command in member.pending],
        "refused": dict(member.refused),
    }


def command_document(waiting: WaitingCommand) -> dict[str, Any]:
    command = waiting.command
    return {
        "group": waiting.group,
        "consumer": waiting.consumer,
        "command": waiting.id.name,
        "type": str(waiting.id.type),
        "since": iso_time(waiting.since_ms),
        "generation": command.generation if command else None,
        "epoch": command.epoch if command else None,
        "incarnation": command.incarnation if command else None,
        "for_live": waiting.for_live,
        "partitions": waiting.partitions.to_json(),
        "reason": command.reason if command else None,
    }


def offset_document(row: OffsetRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "owner": row.owner,
        "holding": row.holding or None,
        "committed_offset": row.committed_offset,
        "committed_at": iso_time(row.committed_ms),
        "start_offset": row.start_offset,
        "end_offset": row.end_offset,
        "lag": row.lag,
        "gone": row.gone,
        "unresolved": row.unresolved,
    }


def status_document(cluster: Cluster) -> dict[str, Any]:
    elected = cluster.coordinator
    instances = [
        {
            "broker_id": broker_id,
            "elected": elected is not None and elected.broker_id == broker_id,
            "broker_up": broker_id in cluster.brokers,
            "ready": info.ready,
            "waiting_for": info.waiting_for or None,
            "host": info.process.host if info.process else None,
            "pid": info.process.pid if info.process else None,
            "release": info.process.release if info.process else None,
            "started": iso_time(info.process.started_ms) if info.process else None,
            "endpoints": dict(info.endpoints),
        }
        for broker_id, info in cluster.instances.items()
    ]
    return {
        "coordinator": elected.broker_id if elected else None,
        "epoch": elected.epoch if elected else None,
        "since": iso_time(cluster.since_ms),
        "endpoints": dict(elected.endpoints) if elected else {},
        "instances": instances,
        "brokers": list(cluster.brokers),
        "groups": len(cluster.groups),
        "topics": len(cluster.topics),
        "paused": pause_document(cluster.pause) if cluster.pause else None,
        "undecided": cluster.undecided or None,
    }


def election_document(one: Election) -> dict[str, Any]:
    return {
        "epoch": one.epoch,
        "broker_id": one.broker_id,
        "host": one.host or None,
        "elected": iso_time(one.elected_ms),
        "ended": iso_time(one.ended_ms),
        "why": one.why or None,
    }


def decision_document(decision: Decision) -> dict[str, Any]:
    document = decision.to_json()
    decided = iso_time(document.pop("decided_at_ms"))
    return {"generation": document.pop("generation"), "decided_at": decided, **document}


def finding_document(one: Finding) -> dict[str, Any]:
    return {
        "severity": str(one.severity),
        "check": one.check,
        "what": one.what,
        "todo": one.todo or None,
        "group": one.group or None,
    }


def iso_time(ms: int | None) -> str | None:
    """Formats milliseconds since 1970 as ``2026-01-31T12:00:00.123Z``. Returns ``None`` for ``None``, 0, and a time
    that ``datetime`` cannot represent."""
    if not ms:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def answer_document(answered: Request) -> dict[str, Any]:
    return {
        "request": answered.request_id,
        "type": str(answered.type),
        "group": answered.group or None,
        "result": answered.result,
        "message": answered.message,
    }


def done_document(kind: str, group: str, message: str) -> dict[str, Any]:
    """Returns the document for an action that needed no request to the elected instance."""
    return {"request": None, "type": kind, "group": group, "result": "done", "message": message}
