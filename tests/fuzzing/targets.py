"""The decoders of input that others write, each with samples and the only error that it may raise."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

from kafka_coord.channel.frames import BadFrame, Decoder, Frame, Rpc, decode, encode
from kafka_coord.channel.messages import (
    ClusterMetadata,
    Ping,
    Register,
    Registered,
    Resume,
    read_command,
    read_coordinator,
    read_offsets,
    read_outstanding,
)
from kafka_coord.channel.operations import decode_command, decode_offset, in_order
from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.groups.reset import duration_ms, read_csv, time_ms
from kafka_coord.kafka.brokers import choose
from kafka_coord.model import (
    Assignment,
    Broker,
    CoordinatorInfo,
    GroupSettings,
    Ledger,
    Member,
    Pause,
    Request,
    Settled,
    is_identity,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.monitor.audit.tree import read_snapshot
from kafka_coord.monitor.audit.txnlog import Truncated, decode_txn, read_log
from kafka_coord.settings import host_and_port, load_settings
from kafka_coord.zk.acl import parse_identities
from kafka_coord.zk.brokers import decode_topic
from kafka_coord.zk.options import parse_connect_string
from kafka_coord.zk.store import Node, Stat
from tests.chaos import journal
from tests.fuzzing import tree_targets
from tests.fuzzing.mutations import Form
from tests.fuzzing.target import Target

_WHERE = "/here"


# --- values of znodes ------------------------------------------------------------------------------------------------

_STAT = Stat(7, 8, 1, 0, 0, 0, 0, 0, 0, 0)


def _bytes_of(*values: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def _json_target(
    name: str, decode: Callable[[fields.Json], Any], encode: Callable[[Any], Any], *samples: dict[str, Any]
) -> Target:
    """A decoded value must be writable again, and be read back as equal."""

    def through(raw: bytes) -> object:
        value = decode(fields.load(raw, _WHERE))
        written = fields.dump(encode(value))
        if len(written) <= fields.MAX_VALUE_BYTES:
            again = fields.dump(encode(decode(fields.load(written, _WHERE))))
            if again != written:
                raise AssertionError(f"written again it is {again[:100]!r}, not {written[:100]!r}")
        return value

    return Target(name, Form.JSON, _bytes_of(*({"version": 1} | sample for sample in samples)), through)


def _to_json(value: Any) -> Any:
    return value.to_json()


def _member(value: fields.Json) -> Member:
    member = Member.from_json(value, _WHERE, consumer="c1", incarnation=7)
    for topic in ("flights", "__consumer_offsets"):
        member.subscription.wants(topic)
    return member


def _history_to_json(decisions: Any) -> dict[str, Any]:
    return {"version": 1, "decisions": [decision.to_json() for decision in decisions]}


_REGISTRATION: dict[str, Any] = {"subscription": {"flights": 2, "routes": 1}, "pattern": "static", "timestamp": "17320"}
_PATTERN = {"subscription": {"flights|routes.*": 2}, "pattern": "white_list", "capacity": 2, "rack": "east"}
_PATTERN |= {"mode": "eager", "rejoin_grace_ms": 30_000, "session_timeout_ms": 10_000, "host": "h", "client": "c/1"}
_DECISION: dict[str, Any] = {"generation": 3, "epoch": 2, "reason": "member c3 joined", "assignor": "sticky"}
_DECISION |= {"decided_at_ms": 1732060800000, "members": 3, "partitions": 12, "moved": 4, "started": 4, "stopped": 4}
_DECISION |= {"stopped_ms": 12, "settled_ms": None, "moves": {"c3": {"gained": "flights[0-3]"}}}
_COMMAND = {"version": 1, "generation": 13, "epoch": 7, "incarnation": 8589934699, "reason": "member c3 joined"}
_STOP = _COMMAND | {"type": "stop-fetcher", "partitions": {"flights": [0, 3], "routes": [1]}}
_START = _COMMAND | {
    "type": "start-fetcher",
    "partitions": {"flights": {"5": {"offset": 1234, "stream": 0}, "7": {"offset": -1, "stream": 1}}},
}

_VALUES = (
    _json_target("registration", _member, _to_json, _REGISTRATION, _PATTERN),
    _json_target(
        "ledger",
        lambda value: Ledger.from_json(value, _WHERE, consumer="c1", znode_version=0),
        _to_json,
        {
            "incarnation": 8589934699,
            "generation": 3,
            "owned": {"flights": "0-3,7", "routes": "1"},
            "stopping": {"flights": "8"},
            "streams": {"flights": {"1": "2-3"}},
            "topic_ids": {"flights": "abc 12"},
            "place": {"version": 1} | _PATTERN,
        },
    ),
    _json_target(
        "assignment",
        lambda value: Assignment.from_json(value, _WHERE, znode_version=0),
        _to_json,
        {
            "generation": 12,
            "epoch": 7,
            "inputs": "digest",
            "assignor": "sticky",
            "reason": "member c3 joined",
            "timestamp_ms": 1732060800000,
            "members": {"c1": {"flights": "0-3,7"}, "c2": {"flights": "4-6", "routes": "0"}},
            "streams": {"c1": {"flights": {"1": "2-3"}}},
        },
    ),
    _json_target(
        "request",
        lambda value: Request.from_json(value, _WHERE),
        _to_json,
        {"type": "evict", "group": "delays", "consumer": "c1", "reason": "hangs", "by": "a@b", "timestamp_ms": 1},
        {"type": "reset-offsets", "group": "delays", "offsets": {"flights": {"0": 12, "3": 0}}, "result": "done"},
        {"type": "delete-offsets", "group": "delays", "partitions": {"flights": "0-3"}, "message": "x"},
    ),
    _json_target("pause", lambda v: Pause.from_json(v, _WHERE), _to_json, {"by": "a", "reason": "b", "since_ms": 12}),
    _json_target(
        "group-settings",
        lambda value: GroupSettings.from_json(value, _WHERE),
        _to_json,
        {"assignor": "range", "rebalance_timeout_ms": 60_000, "offsets_retention_ms": 1},
    ),
    _json_target(
        "coordinator",
        lambda value: CoordinatorInfo.from_json(value, _WHERE),
        _to_json,
        {"brokerid": 1, "epoch": 7, "timestamp": "1732060800000", "endpoints": {"channel": "h:1", "http": "h:2"}},
    ),
    _json_target(
        "settled",
        lambda value: Settled.from_json(value, _WHERE),
        _to_json,
        {
            "zxids": {"group": 12, "ids": 13, "owners": 14, "channel": 15, "assignment": 0},
            "topics": "digest",
            "members": 2,
            "wanted": ["flights", "routes"],
            "patterns": [["white_list", "flights|routes.*"], ["black_list", "x"]],
        },
    ),
    _json_target(
        "history",
        lambda value: Trail.from_json(value, _WHERE).decisions,
        _history_to_json,
        {"decisions": [_DECISION, _DECISION | {"moves": {}}]},
    ),
)


def _command(raw: bytes) -> object:
    return decode_command(raw, "/channel/c1/of-no-type").partitions


def _offset(raw: bytes) -> object:
    offset = decode_offset(raw, _WHERE)
    if not 0 <= offset < 1 << 63:
        raise AssertionError(f"{offset} is no offset")
    return offset


def _kafka_topic(raw: bytes) -> object:
    return decode_topic("flights", Node(raw, _STAT), {1: "east", 2: "west"})


def _kafka_broker(raw: bytes) -> object:
    return choose((Broker.from_znode(raw, 1, _WHERE),), "PLAINTEXT", None)


def _names(raw: bytes) -> object:
    written = raw.decode("utf-8", "surrogateescape")
    return in_order(written.split("\n")), is_identity(written)


_ZNODES = (
    *_VALUES,
    Target("command", Form.JSON, _bytes_of(_STOP, _START), _command),
    Target("offset", Form.TEXT, (b"1234", b"0", b"9223372036854775807"), _offset),
    Target("names", Form.TEXT, (b"stop-0000000004\nstart-0000000005\nx", b"abc-_ 12"), _names, ()),
    Target(
        "kafka-topic",
        Form.JSON,
        _bytes_of({"version": 3, "topic_id": "abc-_9", "partitions": {"0": [1, 2], "11": [2, 1]}}),
        _kafka_topic,
    ),
    Target(
        "kafka-broker",
        Form.JSON,
        _bytes_of(
            {"version": 1, "host": "h", "port": 9092},
            {
                "version": 5,
                "host": None,
                "port": -1,
                "endpoints": ["PLAINTEXT://h:9092", "SSL://[::1]:9093"],
                "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL"},
                "rack": "east",
            },
        ),
        _kafka_broker,
    ),
)

# --- what operators write --------------------------------------------------------------------------------------------

_SETTINGS = b"""[zookeeper]
hosts = "zk1:2181,zk2:2181/kafka"
session_timeout_ms = 10000
tls = false
digest = "user:password"
acl = "creator-only"

[serve]
broker_id = 1
listen_http = "0.0.0.0:9404"
log_level = "INFO"

[kafka]
security.protocol = "SASL_SSL"
sasl.mechanism = 'SCRAM-SHA-512'
"""
_MORE_SETTINGS = b"""zookeeper = {hosts = "[::1]:2181", tls = true, tls_ca_file = "/dev/null", tls_verify = "yes"}
serve = {broker_id = "7", look_interval_ms = 60_000}
kafka = {a = {b = 1.5, c = true}, "d.e" = "x"}
"""
_IDENTITIES = b"""coordinators = ["digest:coordinator:3zpCJSEkTHOmpyrRJKDsoGyH1Ao="]
operators = ["sasl:alice", "x509:CN=ops,O=Example"]
readers = ["world:anyone", "ip:10.0.0.0/8"]
[consumers]
delays = ["digest:delays:1ZVDWOp9QMyKQQeVQMn5SFnWnb8="]
"*" = ["digest:others:R8V0yvn9cJqN6b1J5iFVs6h4JpA="]
"""


def _in_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """For a decoder that takes the name of a file or directory."""

    def through(raw: bytes) -> object:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
            file = Path(directory) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(raw)
            return read(file)

    return through


def _text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    """For a decoder that takes text from the command line: bytes that are not UTF-8 become surrogates."""
    return lambda raw: decode(raw.decode("utf-8", "surrogateescape"))


def _identities(raw: bytes) -> object:
    plan = parse_identities(raw, "identities.toml")
    return [plan.of(path) for path in ("/consumers", "/consumers/groups/delays/ids", "/consumers/groups/x/ids/c")]


def _csv(raw: bytes) -> object:
    return read_csv(raw.decode("utf-8", "replace").splitlines(), ["delays"], "offsets.csv")


def _host_and_port(raw: bytes) -> object:
    return host_and_port(raw.decode("utf-8", "surrogateescape"))


_WRITTEN = (
    Target(
        "settings-file",
        Form.TEXT,
        (_SETTINGS, _MORE_SETTINGS),
        _in_file(lambda file: load_settings(environ={}, file=file), "settings.toml"),
        (SettingsError,),
    ),
    Target("identities-file", Form.TEXT, (_IDENTITIES,), _identities, (SettingsError,)),
    Target(
        "connect-string",
        Form.TEXT,
        (b"zk1:2181,zk2:2181/kafka", b"[::1]:2181", b"localhost", b"h:1/a/b/c"),
        _text(parse_connect_string),
        (SettingsError,),
    ),
    Target("listen-address", Form.TEXT, (b"host:9092", b"[::1]:9092", b"0.0.0.0:0"), _host_and_port, (ValueError,)),
    Target("offsets-file", Form.TEXT, (b"flights,0,12\nflights,1,0\n", b'delays,"flights",3,9\n\n'), _csv),
    Target("duration", Form.TEXT, (b"P1DT2H30M", b"PT15.5S"), _text(duration_ms), (SettingsError,)),
    Target(
        "time", Form.TEXT, (b"2026-01-31T12:00:00.000", b"2026-01-31T12:00:00+02:00"), _text(time_ms), (SettingsError,)
    ),
)

# --- what comes over sockets -----------------------------------------------------------------------------------------

_REGISTER: dict[str, Any] = {"v": 1, "id": 1, "type": "register", "group": "delays", "consumer_id": "c1"}
_REGISTER |= {"subscription": {"flights": 1}, "session_timeout_ms": 10_000, "client": "x/1", "resume_key": "k"}
FRAMES: tuple[dict[str, Any], ...] = (
    {"v": 1, "id": 1, "type": "cluster-metadata"},
    _REGISTER,
    {"v": 1, "id": 1, "type": "resume", "group": "g", "consumer_id": "c", "incarnation": 7, "resume_key": "k"},
    {"v": 1, "id": 2, "type": "ping", "heard": 1, "done": 0},
    {"v": 1, "id": 3, "type": "commit", "offsets": {"flights": {"0": 12, "3": 0}}},
    {"v": 1, "id": 4, **_STOP, "command": "stop-0000000003", "type": "stop-fetcher"},
    {"v": 1, "id": 5, **_START, "command": "start-0000000004", "type": "start-fetcher"},
    {
        "v": 1,
        "id": 1,
        "type": "answer",
        "instance": 2,
        "brokers": [{"id": 1, "endpoints": ["PLAINTEXT://b1:9092"]}],
        "instances": ["b1:7171"],
        "protocols": {"INTERNAL": "SASL_SSL"},
        "coordinator": {"instance": 1, "epoch": 7, "endpoint": "b1:7171"},
        "consumer_id": "c1",
        "incarnation": 7,
        "session_timeout_ms": 10_000,
        "ping_interval_ms": 3_333,
        "epoch": 7,
        "outstanding": ["stop-0000000003"],
        "offsets": {"flights": {"0": 1}},
    },
    {"v": 1, "id": 0, "type": "error", "code": "not-coordinator", "message": "x", "coordinator": None},
)
_READERS: dict[str, tuple[Callable[[fields.Json], object], ...]] = {
    "register": (Register.from_json,),
    "resume": (Resume.from_json,),
    "ping": (Ping.from_json,),
    "commit": (lambda frame: read_offsets(frame, "commit"),),
    "stop-fetcher": (read_command,),
    "start-fetcher": (read_command,),
    "answer": (
        ClusterMetadata.from_json,
        Registered.from_json,
        read_outstanding,
        lambda frame: read_offsets(frame, "answer"),
    ),
    "error": (lambda frame: read_coordinator(frame, "error"),),
}


def _understood(frame: Frame) -> object:
    """All readers that a received frame may reach; each refuses on its own."""
    for read in _READERS.get(frame["type"], ()):
        with suppress(MalformedValue):
            read(frame)
    with suppress(BadFrame):
        Rpc().take(frame)
    with suppress(RecursionError):  # the deepest frames that can be decoded; nobody sends on what he received
        return encode(frame)
    return None


def _stream(raw: bytes) -> object:
    return [_understood(frame) for frame in Decoder().feed(raw)]


def _body(raw: bytes) -> object:
    return _understood(decode(raw))


_SOCKETS = (
    Target("socket-stream", Form.BINARY, tuple(encode(frame) for frame in FRAMES), _stream, (BadFrame,)),
    Target("socket-frame", Form.JSON, _bytes_of(*FRAMES), _body, (BadFrame,)),
)

# --- files that programs write, and somebody may have damaged --------------------------------------------------------

_TXN = Struct(">qiqqi")


def _jute(*parts: bytes | int) -> bytes:
    return b"".join(
        part.to_bytes(4, "big", signed=True) if isinstance(part, int) else len(part).to_bytes(4, "big") + part
        for part in parts
    )


_CREATE = _jute(b"/consumers/x", b"data", 1, 31, b"world", b"anyone") + b"\1" + _jute(7)
_SET = _jute(b"/consumers/x", b"data", 3)
_MULTI = _jute(3, 1, len(_CREATE)) + _CREATE + _jute(5, len(_SET)) + _SET + _jute(2, 6, b"/x")
_TXNS = (
    _TXN.pack(1, 1, 7, 1_000, 1) + _CREATE,
    _TXN.pack(1, 1, 7, 1_000, 5) + _SET,
    _TXN.pack(1, 1, 7, 1_000, 14) + _MULTI,
)
_SNAPSHOT = b"ZKSN" + b"\0\0\0\2" + bytes(8) + _jute(0, 1) + bytes(8) + _jute(1, 31, b"world", b"anyone")
_SNAPSHOT += _jute(b"", b"") + bytes(8 + 68) + _jute(b"/x", b"data") + bytes(8 + 68) + _jute(b"/") + bytes(8)


def _consume(found: Any) -> object:
    return sum(1 for _ in found)


def _lines(*values: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


_OPENED = {"t": 1.0, "k": "opened", "consumer": "c1", "group": "g", "pid": 1, "session_timeout_ms": 3000}
_CONSUMED = _lines(
    _OPENED,
    {"t": 2.0, "k": "started", "o": [["flights", 0, None], ["flights", 1, 7]]},
    {"t": 3.0, "k": "handed", "s": 2.5, "r": [["flights", 0, 0, 10, 100]]},
    {"t": 4.0, "k": "committed", "o": [["flights", 0, 10]]},
    {"t": 5.0, "k": "stopped", "p": [["flights", 0]]},
    {"t": 6.0, "k": "closed"},
)
_EVENTS = _lines(
    {"t": 1.0, "wall": 2.0, "kind": "kill", "target": "consumer:c1", "phase": "point", "detail": {}},
    {"t": 0.5, "wall": 1.5, "kind": "stop", "target": "all", "phase": "begin", "detail": {"a": 1}},
)
_journal = partial(Target, form=Form.TEXT)

_PROGRAMS = (
    Target("log-record", Form.BINARY, _TXNS, decode_txn, (Truncated,)),
    Target(
        "log-file",
        Form.BINARY,
        (b"ZKLG" + b"\0\0\0\2" + bytes(8) + bytes(32), b"ZKLG" + b"\0\0\0\2" + bytes(8)),
        _in_file(lambda file: _consume(read_log(file)), "log.1"),
    ),
    Target(
        "snapshot-file", Form.BINARY, (_SNAPSHOT,), _in_file(lambda file: _consume(read_snapshot(file)), "snapshot.1")
    ),
    _journal(
        name="consumer-journal",
        samples=(_CONSUMED,),
        decode=_in_file(lambda file: journal.read_consumers(file.parent.parent), "consumers/c1.1.jsonl"),
    ),
    _journal(
        name="events-journal",
        samples=(_EVENTS,),
        decode=_in_file(lambda f: journal.read_events(f.parent), "events.jsonl"),
    ),
)

TARGETS: tuple[Target, ...] = (*_ZNODES, *_WRITTEN, *_SOCKETS, *_PROGRAMS, *tree_targets.TARGETS)
"""All targets."""
