"""The decoders of what only some trees have, of the groups log's records, and of a backup."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.classic_groups.metadata import GroupMetadata, MemberMetadata, Protocol
from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.grouplog.manager import PartitionState
from kafka_coord.grouplog.records import (
    GoneEntry,
    gone_record,
    group_record,
    heard_records,
    offset_records,
    read_record,
)
from kafka_coord.groups.backup import read_file
from kafka_coord.groups.restore import plan_restore
from kafka_coord.model import CommittedOffset, Coverage, Holds, TopicOfOffsets
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import JsonObject
from kafka_coord.model.histories import ClusterHistory
from kafka_coord.model.member import Departure, Refusals
from kafka_coord.model.offsets import Retention
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.consumer_protocol import encoded_subscription
from kafka_coord.wire.messages import BadMessage
from kafka_coord.zk.instance import Successor
from kafka_coord.zk.kinds import decode_kinds
from kafka_coord.zk.root import ClusterRecord
from kafka_coord.zk.store import Node, Stat
from tests.fuzzing.mutations import Form
from tests.fuzzing.target import Target

_WHERE = "/here"
GOLDEN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "model/golden.json").read_text())
"""Values as they were always written."""
_TYPES: dict[str, type[JsonObject]] = {
    "retention": Retention,
    "refusals": Refusals,
    "departure": Departure,
    "successor": Successor,
    "cluster history": ClusterHistory,
    "committed offset with details": CommittedOffset,
}
_HELD = {"version": 1, "for_ms": 40_000, "consumers": {"c1": {"partitions": {"flights": "0-2"}, "process": "p"}}}
_TREE = {"version": 1, "tree": "00ff", "generation": 2, "source": "brokers", "since_ms": 1, "kafka": "k", "making": "x"}
_KINDS = {"a": {"kind": "native"}, "b/é": {"kind": "client-assigned", "moving": "a move", "fenced": "a stay"}}
_HEADER = {"kafka_coord_backup": 1, "release": "0.1.0", "made_ms": 1, "zookeeper": ["zk1:2181"], "chroot": ""}
_HEADER |= {"tree": "00ff", "generation": 1, "kafka": None, "instances": [], "is_still": True}
_HEADER |= {"longest_session_ms": 5, "groups": 1, "offsets": 1}
_ALONE = {"znodes": {"/consumers/coordinator_epoch": "7", "/consumers/kafka/3": '{"version":1,"term":4}'}}
_ONE = {"group": "g", "znodes": {"/consumers/groups/g": "", "/consumers/groups/g/offsets/t": "abc-_ 12"}}
_ONE |= {"binary": {"/consumers/groups/g/offsets/t/0": "/w=="}}


def _json(*values: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def log_record(raw: bytes) -> LogRecord:
    """Returns a record of the groups log: its key, the key's length first, and its value."""
    length = raw[0] if raw else 0
    return LogRecord(raw[1 : 1 + length], raw[1 + length :])


def _replayed(raw: bytes) -> object:
    """Loads a partition of the groups log that has one record."""
    state = PartitionState(GroupLimits())
    state.replay(read_record(log_record(raw)))
    state.serve(0.0)
    return state


def _logged() -> Iterator[bytes]:
    group = GroupMetadata("delays", generation_id=3, protocol_name="range")
    range_ = (Protocol("range", encoded_subscription("flights")),)
    group.add(MemberMetadata("delays-1", "i1", "client", "/127.0.0.1", 45.0, 300.0, range_), "consumer")
    records = offset_records("billing", {("flights", 3): CommittedOffset(7, 3, "m")})
    records += [group_record(group, {"delays-1": b"x"}, 5, {"flights": "4711"}), gone_record(GoneEntry("flights", 5))]
    records += heard_records(Heard(3, {("delays", "delays-1"): None, ("delays", "delays-2"): 9}))
    for one in records:
        yield bytes([len(one.key or b"")]) + (one.key or b"") + (one.value or b"")


LOGGED = tuple(_logged())


def _backup(body: bytes) -> object:
    """Reads a file whose checksum is right, and plans its restore."""
    last = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        file = Path(directory) / "x.backup"
        file.write_bytes(body + last)
        return sum(1 for _ in plan_restore(*read_file(file)).znodes())


TARGETS = (
    *(
        Target(name, Form.JSON, _json(GOLDEN[name]), partial(form.from_bytes, where=_WHERE))
        for name, form in _TYPES.items()
    ),
    Target("coverage", Form.JSON, _json(GOLDEN["coverage"]), lambda raw: Coverage.from_bytes(raw, _WHERE)),
    Target("held", Form.JSON, _json(_HELD), lambda raw: Holds.from_bytes(raw, _WHERE)),
    Target("tree", Form.JSON, _json(_TREE), ClusterRecord.from_znode),
    Target(
        "kinds",
        Form.JSON,
        _json({"version": 1, "groups": _KINDS}),
        lambda raw: decode_kinds(7, Node(raw, Stat(7, 8, 1, 0, 0, 0, 0, 0, 0, 0))),
    ),
    Target(
        "heard",
        Form.JSON,
        _json({"version": 1, "term": 7, "left_ms": {"g": {"m": None, "n": 5}}}),
        lambda raw: Heard.from_json(fields.load(raw, _WHERE), _WHERE),
    ),
    Target("topic-of-offsets", Form.TEXT, (b"abc-_ 12 1732060800000", b"16"), TopicOfOffsets.read, ()),
    Target("entry-of-log", Form.BINARY, LOGGED, _replayed, (BadMessage,)),
    Target("backup-file", Form.TEXT, (b"\n".join((*_json(_HEADER, _ALONE, _ONE), b"")),), _backup),
)
