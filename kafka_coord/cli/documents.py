"""The documents of ``-o json`` and ``-o yaml``, in the shapes of docs/operations.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_coord.cli.output import iso_time
from kafka_coord.model import Pause
from kafka_coord.monitor.channel import WaitingCommand
from kafka_coord.monitor.groups import GroupDescription, GroupRow, MemberRow
from kafka_coord.monitor.offsets import OffsetRow


def group_document(row: GroupRow) -> dict[str, Any]:
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
    }


def describe_document(found: GroupDescription, chosen: Mapping[str, bool]) -> dict[str, Any]:
    """One object, always with the same fields; ``members`` and ``offsets`` only if requested."""
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
        }
    if chosen["members"]:
        document["members"] = [member_document(member) for member in found.members]
    if chosen["offsets"]:
        document["offsets"] = [offset_document(row) for row in found.offsets]
        document["lag_note"] = found.lag_note or None
    document["unreadable"] = [{"path": one.path, "reason": one.reason} for one in found.unreadable]
    return document


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
        "end_offset": row.end_offset,
        "lag": row.lag,
    }
