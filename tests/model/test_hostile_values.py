"""Tests that decoding any bytes of a znode succeeds or raises MalformedValue, quickly and without much memory."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_coord.channel.messages import read_offsets
from kafka_coord.errors import MalformedValue, UnknownVersion
from kafka_coord.model import (
    Action,
    Assignment,
    CommittedOffset,
    CoordinatorInfo,
    GroupSettings,
    Ledger,
    Member,
    Pause,
    Request,
    command_from_json,
    parse_command_id,
)
from kafka_coord.model.histories import ClusterHistory, Election, Trail
from kafka_coord.model.json_fields import MAX_VALUE_BYTES, dump, load
from tests.model import values

DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "registration": lambda value: Member.from_json(value, "/x", consumer="c", incarnation=1),
    "ledger": lambda value: Ledger.from_json(value, "/x", consumer="c", znode_version=0),
    "assignment": lambda value: Assignment.from_json(value, "/x", znode_version=0),
    "command": lambda value: command_from_json(value, "/x"),
    "request": lambda value: Request.from_json(value, "/x"),
    "settings": lambda value: GroupSettings.from_json(value, "/x"),
    "pause": lambda value: Pause.from_json(value, "/x"),
    "coordinator": lambda value: CoordinatorInfo.from_json(value, "/x"),
    "committed offset": lambda value: CommittedOffset.from_json(value, "/x"),
    "history": lambda value: (Trail.from_json(value, "/x").decisions, Trail.from_json(value, "/x").actions),
    "cluster history": lambda value: ClusterHistory.from_json(value, "/x"),
}
GOOD: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "registration": values.members.map(lambda found: found.to_json()),
    "ledger": values.ledgers().map(lambda found: found.to_json()),
    "assignment": values.assignments().map(lambda found: found.to_json()),
    "command": (values.stops | values.starts).map(lambda found: found.to_json()),
    "request": values.requests.map(lambda found: found.to_json()),
    "settings": values.group_settings.map(lambda found: found.to_json()),
    "pause": values.pauses.map(lambda found: found.to_json()),
    "coordinator": values.coordinators.map(lambda found: found.to_json()),
    "committed offset": values.committed_offsets.map(lambda found: found.to_json()),
    "history": values.decisions.map(
        lambda found: {
            "version": 1,
            "decisions": [found.to_json()],
            "actions": [Action("evict", "alice@here", 1, "stuck", "c1").to_json()],
        }
    ),
    "cluster history": st.just(
        ClusterHistory(
            (Election(1, "kafka-1", 7, 1, 2, "resigned"),), (Action("resign", "alice@here", 1, "why"),)
        ).to_json()
    ),
}
kinds = pytest.mark.parametrize("kind", sorted(DECODERS))
_SETTINGS = settings(max_examples=40)


def decode(kind: str, raw: bytes) -> Any:
    """Decodes a value. Returns ``None`` if that raises MalformedValue. Any other error is raised."""
    try:
        return DECODERS[kind](load(raw, "/x"))
    except MalformedValue as refused:
        error = refused
    assert error.where == "/x"
    assert error.reason
    assert len(str(error)) < 2_000
    str(error).encode()
    return None


@kinds
@_SETTINGS
@given(st.data())
def test_a_valid_value_with_one_defect_is_decoded_or_refused(kind, data):
    """Replaces, removes or adds one part of a valid value."""
    value = json.loads(dump(data.draw(GOOD[kind])))
    at: Any = value
    while True:
        inside = at.items() if isinstance(at, dict) else enumerate(at)
        deeper = [found for key, found in inside if isinstance(found, dict | list) and found]
        if not deeper or data.draw(st.booleans()):
            break
        at = data.draw(st.sampled_from(deeper))
    keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
    key = data.draw(st.sampled_from(keys))
    if key == "version" or data.draw(st.booleans()):
        at[key] = data.draw(values.json_values)
    elif isinstance(at, dict):
        at[data.draw(st.text(max_size=5))] = at.pop(key)
    else:
        at.pop(key)

    decode(kind, json.dumps(value).encode())


@kinds
@_SETTINGS
@given(st.dictionaries(st.text(max_size=6), values.json_values, max_size=5), st.data())
def test_any_json_is_decoded_or_refused(kind, value, data):
    good = data.draw(GOOD[kind])
    fields = data.draw(st.sets(st.sampled_from(sorted(good))))
    mixed = {**value, **{field: data.draw(values.json_values) for field in fields}, "version": 1}

    decode(kind, json.dumps(mixed).encode())


@kinds
@_SETTINGS
@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(kind, raw):
    decode(kind, raw)


@kinds
@_SETTINGS
@given(st.data())
def test_a_truncated_value_is_decoded_or_refused(kind, data):
    raw = dump(data.draw(GOOD[kind]))

    assert decode(kind, raw[: data.draw(st.integers(0, len(raw) - 1))]) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"{}",
        b'{"version":true}',
        b'{"version":"1"}',
        b'{"version":1.0}',
        b'{"version":NaN}',
        b'{"version":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"version":1,"a":' * 50_000,
        b"\xff\xfe\x00",
        b'{"version":1,"reason":"\xed\xa0\x80"}',
        b'{"version":1,"reason":"\\ud800"}',
        b'{"version":1,"\\udfff":1}',
        '{"version":1}'.encode("utf-16"),
        b"\xef\xbb\xbf" + b'{"version":1}',
        b'{"version":1,"pad":"' + b"x" * MAX_VALUE_BYTES + b'"}',
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_bytes_that_are_no_json_object_are_refused(raw):
    with pytest.raises(MalformedValue):
        load(raw, "/x")


def test_the_error_for_a_later_version_differs_from_that_for_garbage():
    with pytest.raises(UnknownVersion, match="version 2; this release supports version 1"):
        load(b'{"version":2}', "/x")


def test_unknown_fields_are_ignored():
    value = load(b'{"version":1,"by":"op","colour":"green"}', "/x")

    assert Pause.from_json(value, "/x") == Pause(by="op")


_BOMBS = {
    "ledger, one range": ("ledger", {"incarnation": 1, "owned": {"t": "0-2147483647"}}),
    "ledger, many topics": ("ledger", {"incarnation": 1, "owned": {f"t{n}": "0-999999" for n in range(20_000)}}),
    "ledger, the same again": ("ledger", {"incarnation": 1, "owned": {"t": ",".join(["0-999998"] * 50_000)}}),
    "ledger, streams": (
        "ledger",
        {"incarnation": 1, "streams": {f"t{n}": {str(s): "0-999999" for s in range(1, 100)} for n in range(300)}},
    ),
    "ledger, streams of what is held": (
        "ledger",
        {"incarnation": 1, "owned": {"t": "0-99999"}, "streams": {"t": {str(s): "0-99999" for s in range(1, 1000)}}},
    ),
    "assignment, many members": (
        "assignment",
        {
            "generation": 1,
            "epoch": 1,
            "inputs": "",
            "assignor": "",
            "members": {f"c{n}": {"t": "0-999999"} for n in range(20_000)},
        },
    ),
    "assignment, streams": (
        "assignment",
        {
            "generation": 1,
            "epoch": 1,
            "inputs": "",
            "assignor": "",
            "members": {f"c{n}": {"t": str(n)} for n in range(8_000)},
            "streams": {f"c{n}": {"t": {"1": "0-999999"}} for n in range(8_000)},
        },
    ),
    "request": ("request", {"type": "look", "group": "g", "partitions": {f"t{n}": "0-999999" for n in range(20_000)}}),
    "request, offsets": (
        "request",
        {"type": "reset-offsets", "group": "g", "offsets": {f"t{n}": {"0-999999": 1} for n in range(20_000)}},
    ),
}


@contextmanager
def _memory_limited(mib: int) -> Iterator[None]:
    """Lets this process allocate at most ``mib`` MiB more. Then Python raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (mib << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("bomb", _BOMBS)
def test_a_small_value_cannot_use_much_memory(bomb):
    kind, value = _BOMBS[bomb]
    raw = dump({"version": 1, **value})
    assert len(raw) <= MAX_VALUE_BYTES
    began = time.process_time()
    with _memory_limited(300):
        assert decode(kind, raw) is None
    assert time.process_time() - began < 10


class _Asked(dict[str, Any]):
    """A value that notes the fields that its decoder asks for."""

    def __init__(self, value: dict[str, Any]) -> None:
        super().__init__(value)
        self.fields = {"version"}

    def get(self, field, default=None):
        self.fields.add(field)
        return super().get(field, default)

    def __getitem__(self, field):
        self.fields.add(field)
        return super().__getitem__(field)

    def __contains__(self, field):
        self.fields.add(field)
        return super().__contains__(field)


def _is_json(raw: bytes) -> bool:
    try:
        load(raw, "/x")
    except MalformedValue:
        return False
    return True


@kinds
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_deeply_nested_values_are_refused_without_a_recursion_error(kind, opening, closing):
    least = dump({"version": 1} | _LEAST[kind])[:-1]
    asked = _Asked(_LEAST[kind])
    DECODERS[kind](asked)

    def nested(field: str, depth: int) -> bytes:
        return least + b',"%s":%s0%s}' % (field.encode(), opening * depth, closing * depth)

    deepest = next(depth for depth in range(sys.getrecursionlimit(), 0, -1) if _is_json(nested("other", depth)))
    for depth in range(deepest - 10, deepest + 2):  # a decoder that recurses deeper than json fails at these
        for field in asked.fields:
            decode(kind, nested(field, depth))


_LEAST: dict[str, dict[str, Any]] = {
    "registration": {"subscription": {"t": 1}},
    "ledger": {"incarnation": 1},
    "assignment": {"generation": 1, "epoch": 1, "inputs": "", "assignor": "", "members": {}},
    "command": {"type": "stop-fetcher", "generation": 1, "epoch": 1, "incarnation": 1, "partitions": {}},
    "request": {"type": "look", "group": "g"},
    "settings": {"assignor": "range"},
    "pause": {"by": ""},
    "coordinator": {"brokerid": 1, "epoch": 1, "timestamp": ""},
    "history": {"decisions": []},
    "cluster history": {"elections": [], "actions": []},
    "committed offset": {"offset": 1},
}


@pytest.mark.parametrize("field", ["version", "by", "since_ms"])
def test_the_error_for_a_large_invalid_value_is_short(field):
    raw = dump({"version": 1} | {field: ["x" * 100] * 8_000})
    with pytest.raises(MalformedValue) as refused:
        Pause.from_json(load(raw, "/x"), "/x")
    assert len(str(refused.value)) < 200


def test_a_reason_that_is_too_long_is_shortened():
    assert len(str(MalformedValue("/x", "y" * 1_000_000))) < 1_100


def test_a_target_with_two_owners_of_a_partition_is_refused():
    value = {"generation": 1, "epoch": 1, "inputs": "", "assignor": "", "members": {"a": {"t": "0"}, "b": {"t": "0"}}}

    with pytest.raises(MalformedValue, match="t"):
        Assignment.from_json(value, "/x", znode_version=0)


def test_a_ledger_with_a_partition_that_is_both_owned_and_stopping_is_refused():
    with pytest.raises(MalformedValue, match="both owned and stopping"):
        Ledger.from_json(
            {"incarnation": 1, "owned": {"t": "0-3"}, "stopping": {"t": "3"}}, "/x", consumer="c", znode_version=0
        )


def test_a_partition_that_is_named_twice_is_refused():
    command = {"type": "start-fetcher", "generation": 1, "epoch": 1, "incarnation": 1}
    with pytest.raises(MalformedValue, match="partitions"):
        command_from_json({**command, "partitions": {"t": {"7": {"offset": 1}, "07": {"offset": 2}}}}, "/x")
    with pytest.raises(MalformedValue, match="offsets"):
        read_offsets({"offsets": {"t": {"7": 1, "07": 2}}}, "commit")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stop-0000000012", 12),
        ("start-0000000013", 13),
        ("start-2147483648", 2147483648),
        ("stop-", None),
        ("stop-1x", None),
        ("stop--1", None),
        ("stop-²", None),
        ("halt-1", None),
        ("", None),
        ("start-" + "9" * 5000, None),
    ],
)
def test_command_names_are_parsed(name, expected):
    found = parse_command_id(name)

    assert (found.sequence if found is not None else None) == expected
