"""Tests that values as they were written before the codec are read, and written again as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.channel.messages import (
    ClusterMetadata,
    Coordinator,
    MetadataQuestion,
    Ping,
    Register,
    Registered,
    Resume,
    read_command,
    read_unresolved,
    write_command,
    write_unresolved,
)
from kafka_coord.grouplog.records import Claim, GoneEntry
from kafka_coord.model import (
    Action,
    Assignment,
    CommittedOffset,
    CoordinatorInfo,
    Coverage,
    Decision,
    GroupSettings,
    Ledger,
    Member,
    Pause,
    Request,
    Settled,
    StartFetcher,
    StopFetcher,
)
from kafka_coord.model.codec import JsonObject
from kafka_coord.model.histories import ClusterHistory
from kafka_coord.model.json_fields import dump, load_object
from kafka_coord.model.member import Departure, Refusals, Zxids
from kafka_coord.model.offsets import Retention
from kafka_coord.zk.instance import Successor

GOLDEN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("golden.json").read_text())
TYPES: dict[str, type[JsonObject]] = {
    "settings": GroupSettings,
    "pause": Pause,
    "request": Request,
    "coordinator in": Coordinator,
    "coordinator": CoordinatorInfo,
    "instance": CoordinatorInfo,
    "decision": Decision,
    "action": Action,
    "cluster history": ClusterHistory,
    "departure": Departure,
    "farewell": Departure,
    "retention": Retention,
    "refusals": Refusals,
    "zxids": Zxids,
    "successor": Successor,
    "claim": Claim,
    "gone topic": GoneEntry,
    "metadata question": MetadataQuestion,
    "registered": Registered,
    "resume": Resume,
    "ping": Ping,
    "registration": Member,
    "ledger": Ledger,
    "target": Assignment,
    "stop": StopFetcher,
    "start": StartFetcher,
    "committed offset": CommittedOffset,
    "settled": Settled,
    "cluster metadata": ClusterMetadata,
    "register": Register,
}
"""The first name with which a sample's begins counts."""
OF_ZNODE: dict[type[JsonObject], dict[str, Any]] = {
    GoneEntry: {"topic": "flights"},
    Member: {"consumer": "c1", "incarnation": 77},
    Ledger: {"consumer": "c1", "znode_version": 3},
    Assignment: {"znode_version": 3},
}
LEFT_OUT = {"instance": "epoch"}
"""A field that is no longer written if it has its default."""


@pytest.mark.parametrize("sample", [one for one in GOLDEN if not one.startswith(("frame of", "coverage"))])
def test_a_value_is_read_and_written_again_as_it_was(sample: str) -> None:
    stored = next(found for name, found in TYPES.items() if sample.startswith(name))
    of_znode = OF_ZNODE.get(stored, {})
    read = stored.from_json(GOLDEN[sample], "/sample", **of_znode)
    written = load_object(dump(read.to_json()), "/sample")
    assert written == {name: one for name, one in GOLDEN[sample].items() if name != LEFT_OUT.get(sample)}
    assert stored.from_json(written, "/sample", **of_znode) == read


def test_what_is_no_object_of_its_own_is_read_and_written_again_as_it_was():
    for sample in ("frame of a start", "frame of a stop"):
        frame = GOLDEN[sample]
        assert {"type": frame["type"], **write_command(*read_command(frame))} == frame
    assert write_unresolved(read_unresolved(GOLDEN["frame of unresolved"])) == GOLDEN["frame of unresolved"]
    coverage = Coverage.from_bytes(dump(GOLDEN["coverage"]), "/sample")
    assert load_object(coverage.to_bytes(), "/sample") == GOLDEN["coverage"]
