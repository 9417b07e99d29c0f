"""The documents of ``-o json`` and HTTP are, byte for byte, the samples in documents.json, and as their types say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.groups import group as documents
from kafka_coord.groups.cluster import Cluster, ClusterDocument, GroupNames
from kafka_coord.groups.group import (
    GroupDescription,
    GroupRow,
    LagTotal,
    MemberRow,
    OffsetRow,
    QueuedRequest,
    Time,
    Unowned,
    WaitingCommand,
)
from kafka_coord.model import (
    Action,
    Cause,
    CoordinatorInfo,
    Decision,
    GroupKind,
    GroupSettings,
    PartitionSet,
    Pause,
    Request,
    RequestType,
    StopFetcher,
    TopicInfo,
    Unreadable,
)
from kafka_coord.model.assignment import CommandId, CommandType
from kafka_coord.model.codec import dec_hook, enc_hook
from kafka_coord.model.histories import Election
from kafka_coord.model.operations import Process
from kafka_coord.monitor.dashboard.documents import UnassignedGroupDocument
from kafka_coord.monitor.doctor.findings import Finding, FindingDocument, Severity

SAMPLES = Path(__file__).with_name("documents.json")
NOON_MS = 1_769_860_800_123
FLIGHTS = PartitionSet({"flights": range(4), "routes": [7]})

STOP = WaitingCommand.of(
    *("delays", "c1", CommandId(17, CommandType.STOP_FETCHER, "stop-0000000017"), NOON_MS),
    StopFetcher(12, 7, 8_589_934_604, PartitionSet({"flights": [3]}), "member c3 joined — “é”"),
    for_live=True,
)
DAMAGED = WaitingCommand.of(
    *("delays", "c1", CommandId(18, CommandType.START_FETCHER, "start-0000000018"), 0, None), for_live=False
)
MEMBER = MemberRow(
    consumer="c1",
    registered=True,
    host="worker-3",
    client="kafka-coord-python/0.1.0 pid=4711",
    channel="kafka",
    subscription="flights",
    mode="incremental",
    rack="eu-1a",
    owned=FLIGHTS,
    target=FLIGHTS,
    stopping=PartitionSet({"flights": [3]}),
    pending=[STOP, DAMAGED],
    gateway=2,
    address="10.0.0.5:40112",
    incarnation=8_589_934_604,
    since_ms=Time(NOON_MS),
    capacity=3,
    rejoin_grace_ms=10_000,
    heard_ms_ago=12,
    software="apache-kafka-java 3.9.2",
    protocol="classic",
    epoch=4,
    held_ms=850,
    refused={"secret": "not authorized"},
)
GONE = MemberRow(
    consumer="c2",
    registered=False,
    host=None,
    client=None,
    channel="zookeeper",
    subscription="flights",
    mode="eager",
    rack=None,
    owned=FLIGHTS,
    target=PartitionSet(),
)
OFFSET = OffsetRow(
    topic="flights",
    partition=3,
    owner="c1",
    holding="stopping",
    committed_offset=27_423,
    committed_ms=Time(NOON_MS),
    start_offset=9,
    end_offset=27_500,
    lag=77,
    gone=0,
)
UNKNOWN = OffsetRow(topic="flights", partition=4, owner=None, holding=None, committed_offset=None, unresolved="")
REQUEST = Request(RequestType.EVICT, "delays", "c1", "stuck", "alice@host", request_id="request-0000000012")
ANSWERED = Request(RequestType.RESIGN, result="done", message="resigned", request_id="request-0000000013")
MANAGED = GroupDescription(
    group="delays",
    kind=GroupKind.MANAGED,
    state=GroupState.PAUSED,
    status="paused by alice@host",
    assignor="sticky",
    coordinator=1,
    members=(MEMBER, GONE),
    offsets=(OFFSET, UNKNOWN),
    unowned=Unowned(PartitionSet({"flights": [4]}), NOON_MS),
    lag_note="the offsets of 1 of 2 partitions are unknown: no response in time",
    generation=12,
    reason="member c3 joined",
    decided_at_ms=NOON_MS,
    settings=GroupSettings(rebalance_timeout_ms=60_000, offsets_retention_ms=5_000, lag_warning_ms=90_000),
    pause=Pause("alice@host", "disks", NOON_MS),
    paused_everywhere=True,
    unreadable=(Unreadable("/consumers/groups/delays/offsets/flights/4", "b'x' is not an offset"),),
)
CLIENTS = GroupDescription(
    group="orders",
    kind=GroupKind.CLIENT_ASSIGNED,
    state=GroupState.EMPTY,
    status="no members",
    assignor="",
    coordinator=None,
    members=(),
    offsets=(),
    unowned=Unowned(),
    lag_note="",
    log_partition=7,
)
ROW = GroupRow(
    group="delays",
    kind=GroupKind.MANAGED,
    state=GroupState.STABLE,
    members=3,
    partitions=12,
    assignor="sticky",
    coordinator=1,
    generation=12,
    pending=2,
    unreadable=1,
)
CLUSTER = Cluster(
    initialised=True,
    coordinator=CoordinatorInfo(1, 7, "0", {"http": "kafka-1:9404"}),
    undecided="",
    since_ms=NOON_MS,
    instances={
        1: CoordinatorInfo(1, 0, "0", {"http": "kafka-1:9404"}, Process("kafka-1", 42, "0.1.0", NOON_MS)),
        2: CoordinatorInfo(2, 0, "0", ready=False, waiting_for="replicas of the groups log"),
    },
    brokers=(1, 3),
    topics={"flights": TopicInfo("flights", frozenset(range(4)), "id")},
    topics_changed_ms={},
    pause=Pause("bob@host", "", 0),
    names=GroupNames(legal=("delays",)),
    unreadable=(),
)
NOBODY = Cluster(False, None, "nobody is elected", None, {}, (), {}, {}, None, GroupNames(), ())
DECISION = Decision(
    generation=12,
    epoch=7,
    reason="member c3 joined",
    assignor="sticky",
    decided_at_ms=NOON_MS,
    members=3,
    partitions=12,
    moved=4,
    started=1,
    stopped=2,
    stopped_ms=850,
    moves={"c1": {"lost": "flights[3]"}, "c3": {"gained": "flights[3]", "lost": ""}, "c4": {}},
    causes=(Cause.MEMBER_JOINED, Cause.OPERATOR),
)


_PARTS = ("state", "members", "offsets")


def made() -> Mapping[str, Any]:
    """Each document by the name of its sample."""
    described = documents.GroupDocument.of(MANAGED, [QueuedRequest.of(REQUEST, NOON_MS)])
    parts = {f"describe {part}": described.only({one: one == part for one in _PARTS}) for part in _PARTS}
    return parts | {
        "describe": described,
        "describe a client-assigned group": documents.GroupDocument.of(CLIENTS),
        "row": ROW,
        "row with lag": ROW.with_lag(LagTotal(5, 4, 1, 0, None, None)),
        "unassigned": UnassignedGroupDocument.of(MANAGED, ""),
        "unassigned, undecided": UnassignedGroupDocument.of(MANAGED, "nobody is elected"),
        "cluster": ClusterDocument.of(CLUSTER),
        "cluster without a coordinator": ClusterDocument.of(NOBODY),
        "election": documents.ElectionDocument.of(Election(1, "kafka-1", 7, NOON_MS, NOON_MS + 5, "it resigned")),
        "election that lasts": documents.ElectionDocument.of(Election(1, "", 8, NOON_MS)),
        "decision": documents.DecisionDocument.of(DECISION),
        "action": documents.ActionDocument.of(Action("pause", "alice@host", NOON_MS, "disks", "flights 0: 8 → 0")),
        "action of nobody": documents.ActionDocument.of(Action("resume", "", 0)),
        "request": QueuedRequest.of(REQUEST, NOON_MS),
        "answered request": QueuedRequest.of(ANSWERED, 0),
        "answer": documents.AnswerDocument.of(ANSWERED),
        "done": documents.AnswerDocument.done("pause", "delays", "group delays paused"),
        "finding": FindingDocument.of(Finding(Severity.WARNING, "lag", "it grows", "add consumers", "delays")),
        "finding without a remedy": FindingDocument.of(Finding(Severity.OK, "topics", "4 topics")),
    }


def test_every_document_is_as_its_sample() -> None:
    found = {name: json.loads(documents.encode(one)) for name, one in made().items()}
    assert found == json.loads(SAMPLES.read_text())


@pytest.mark.parametrize("name", [name for name, one in made().items() if isinstance(one, msgspec.Struct)])
def test_every_document_is_as_its_type_says(name: str) -> None:
    document = made()[name]
    assert msgspec.json.decode(documents.encode(document), type=type(document), dec_hook=dec_hook) == document


def test_printed_json_looks_as_json_always_does() -> None:
    for document in made().values():
        plain = msgspec.to_builtins(document, enc_hook=enc_hook)
        printed = msgspec.json.format(documents.encode(document), indent=2).decode()
        assert printed == json.dumps(plain, indent=2, ensure_ascii=False)
