"""Examples of documents, as docs/operations.md shows them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from kafka_coord.cli.coordinator import ListedCommand
from kafka_coord.cli.groups.copying import CopyDocument
from kafka_coord.cli.groups.log import LogEntryDocument
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.groups.group import Document, GroupDocument, GroupRow, MemberRow, OffsetRow, Time
from kafka_coord.groups.log import EntryKind
from kafka_coord.model import GroupKind, PartitionSet
from kafka_coord.model.assignment import CommandType
from kafka_coord.monitor.audit.report import AuditDocument, AuditFindingDocument, AuditRule
from kafka_coord.monitor.doctor.findings import FindingDocument, Severity

NOON = Time(1_769_860_800_000)

GROUP = GroupDocument(
    group="delays",
    state=GroupState.STABLE,
    generation=12,
    kind=GroupKind.MANAGED,
    status="stable",
    decided_at=NOON,
    reason="member c3 joined",
    coordinator=1,
    log_partition=None,
    assignor="sticky",
    member_count=3,
    pending=0,
    rebalance_timeout_ms=60_000,
    offsets_retention_ms=None,
    lag_warning_ms=None,
    paused=None,
    requests=[],
    members=[],
    offsets=[
        OffsetRow(
            topic="flights",
            partition=0,
            owner="c1",
            holding="owned",
            committed_offset=27423,
            committed_ms=NOON,
            start_offset=0,
            end_offset=27423,
            lag=0,
            gone=0,
            lag_s=0.0,
            lag_s_by=None,
            unresolved=None,
        )
    ],
    lag=0,
    worst_lag=0,
    lag_unknown=0,
    gone=0,
    lag_s=0.0,
    lag_s_by=None,
    lag_note=None,
    unreadable=[],
)

MEMBER = MemberRow(
    consumer="c1",
    registered=True,
    host="worker-3",
    client="kafka-coord-python/0.1.0 pid=4711",
    channel="zookeeper",
    gateway=None,
    address=None,
    heard_ms_ago=None,
    software=None,
    protocol=None,
    epoch=None,
    held_ms=None,
    incarnation=8589934603,
    since_ms=NOON,
    subscription="flights",
    mode="incremental",
    capacity=1,
    rack=None,
    rejoin_grace_ms=0,
    owned=PartitionSet({"flights": [0, 1, 2, 3, 7]}),
    target=PartitionSet({"flights": [0, 1, 2, 3, 7]}),
    pending=[],
    refused={},
)

ROW = GroupRow(
    group="delays",
    state=GroupState.STABLE,
    generation=12,
    members=3,
    partitions=12,
    assignor="sticky",
    pending=0,
    unreadable=0,
    kind=GroupKind.MANAGED,
    coordinator=1,
    log_partition=None,
)

COMMAND = ListedCommand(
    group="delays",
    consumer="c2",
    command="stop-0000000017",
    type=CommandType.STOP_FETCHER,
    since_ms=NOON,
    generation=12,
    epoch=7,
    incarnation=8589934604,
    for_live=True,
    partitions=PartitionSet({"flights": [3]}),
    reason="member c3 joined",
    age_ms=12,
)

COPY = CopyDocument(
    group="delays", topic="flights", partition=3, source_offset=27423, target_offset=None, verdict="copy"
)

RECORD = LogEntryDocument(
    offset=1042,
    at=NOON,
    kind=EntryKind.OFFSET,
    group="delays",
    removed=False,
    value={
        "topic": "flights",
        "partition": 3,
        "committed_offset": 27423,
        "leader_epoch": None,
        "metadata": "",
        "committed_at": str(NOON),
    },
)

FINDING = FindingDocument(
    severity=Severity.WARNING,
    check="pauses",
    what="group delays has been paused by alice@host (disks) for 12 min (since 11:48:00 UTC)",
    todo="kafka-coord groups resume delays",
    group="delays",
)

AUDIT = AuditDocument(
    violations=[
        AuditFindingDocument(
            rule=AuditRule.OFFSET_BACK,
            what="flights-0 went back from 100 to 99",
            group="delays",
            zxid="0x10000025b",
            when="2026-01-31T12:00:00.123Z",
            who="c1 of delays, session 0x200017669f80002",
        )
    ],
    warnings=[],
    checked={"transactions": 4216, "grants": 316, "commands": 97, "commits": 15569},
)

EXAMPLES: dict[str, tuple[Document, dict[str, Any]]] = {
    "groups describe --offsets": (GROUP, GROUP.only({"state": False, "members": False, "offsets": True})),
    "groups describe --members": (MEMBER, MEMBER.row()),
    "groups list": (ROW, ROW.row()),
    "channel list": (COMMAND, COMMAND.row()),
    "groups import": (COPY, asdict(COPY)),
    "groups log dump": (RECORD, RECORD.row()),
    "doctor": (FINDING, asdict(FINDING)),
    "audit": (AUDIT, {name: value for name, value in asdict(AUDIT).items() if name != "history"}),
}
"""Each example with the fields of it that the command prints."""
