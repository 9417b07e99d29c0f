"""Tests that values as they were written before the codec are read, and written again as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.channel.messages import Coordinator, MetadataQuestion, Ping, Registered, Resume
from kafka_coord.grouplog.records import Claim, GoneEntry
from kafka_coord.model import Action, CoordinatorInfo, Decision, GroupSettings, Pause, Request
from kafka_coord.model.codec import JsonObject
from kafka_coord.model.histories import ClusterHistory
from kafka_coord.model.json_fields import dump, load_object
from kafka_coord.model.member import Departure
from kafka_coord.model.retention import Retention
from kafka_coord.model.settled import Zxids
from kafka_coord.model.unresolved import Refusals
from kafka_coord.zk.successor import Successor

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
}
"""The first name with which a sample's begins counts."""
LEFT_OUT = {"instance": "epoch"}
"""A field that is no longer written if it has its default."""


@pytest.mark.parametrize("sample", GOLDEN)
def test_a_value_is_read_and_written_again_as_it_was(sample: str) -> None:
    stored = next(found for name, found in TYPES.items() if sample.startswith(name))
    of_znode = {"topic": "flights"} if stored is GoneEntry else {}
    read = stored.from_json(GOLDEN[sample], "/sample", **of_znode)
    written = load_object(dump(read.to_json()), "/sample")
    assert written == {name: one for name, one in GOLDEN[sample].items() if name != LEFT_OUT.get(sample)}
    assert stored.from_json(written, "/sample", **of_znode) == read
