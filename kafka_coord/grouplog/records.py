"""Encodes and decodes the records of the groups log, in the formats of Kafka's ``__consumer_offsets``.

A key begins with its version (int16): 0 and 1 stand for a committed offset, and 2 for a group. Versions above 99 belong
to this project: 100 for a claim, 101 for a keep-alive, 102 for the members that a term has heard, and 103 for a topic
that is gone. A value also begins with its version. A record without a value is a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.classic_groups.sessions import Heard, Key
from kafka_coord.errors import MalformedValue
from kafka_coord.model import (
    CommittedOffset,
    Departure,
    DepartureKind,
    is_topic_id,
    topic_id_from_bytes,
    topic_id_to_bytes,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import JsonObject, Number
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.messages import BadMessage, message
from kafka_coord.zk.root import ClusterRecord

OFFSET_KEY, GROUP_KEY, CLAIM_KEY, KEEP_ALIVE_KEY, HEARD_KEY, GONE_KEY = 1, 2, 100, 101, 102, 103
OFFSET_VALUE, TAGGED_OFFSET_VALUE, GROUP_VALUE, TAGGED_GROUP_VALUE = 3, 4, 3, 4
"""The versions of the values. Only values with tags, such as topic ids, get the newer versions."""
_VERSION, _PARTITION, _TIMESTAMP = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_GENERATION = struct.Struct(">q")
_CLAIM_KEY = _VERSION.pack(CLAIM_KEY)
_OFFSET_VALUE_START = struct.Struct(">hqih")
"""The version, the offset, the leader epoch, and the length of the metadata."""
_WRITTEN = _VERSION.pack(OFFSET_VALUE)
_TAGGED_VALUE_START = struct.Struct(">hqiB")
"""The version, the offset, the leader epoch, and one more than the length of the metadata, if that fits in a byte."""
_ONE_BYTE = 127
_WRITTEN_WITH_ID = _VERSION.pack(TAGGED_OFFSET_VALUE)
_TAGS = bytes((1, 0, 16))
"""One tag, namely 0 (``topicId``, as in later versions of Kafka), of 16 bytes."""
MAX_DEPARTED = 100
"""How many members that have gone a group's record names, so that it stays small."""
_ID_BYTES = 16
_NOTE_BYTES = 400 << 10
"""The maximum size of one record of the members that a term has heard, in bytes, if the broker accepts as much."""
_NOTE_OVERHEAD_BYTES = 128
"""An upper bound on the size of such a record without its members."""
_LEFT_BYTES = 30
"""An upper bound on the size of what is noted about a member, without the names."""
_NO_ID = bytes(8)
"""The first half of the id of a topic from before Kafka 2.8. The second half is the czxid of its znode."""


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    group: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    group: str
    value: GroupMetadata | None


class Claim(JsonObject, frozen=True, tag_field="version", tag=1):
    """The record that begins a term: which instance of which tree claims it, and the newest ``epoch`` of a coordinator
    that it knows. Its version is the format of the log. It has a key for each generation, so that compaction keeps the
    newest claim of each."""

    term: Number
    instance: str
    nonce: str
    tree: str
    generation: Number
    epoch: Number = 0

    @property
    def of_tree(self) -> str:
        return f"tree {self.tree}, generation {self.generation}"

    def is_of(self, tree: ClusterRecord) -> bool:
        return (self.tree, self.generation) == (tree.tree, tree.generation)

    def refuses(self, tree: ClusterRecord) -> bool:
        """Returns whether the tree may not claim what this one has claimed."""
        return self.generation >= tree.generation and not self.is_of(tree)


class GoneEntry(JsonObject, frozen=True, tag_field="version", tag=1):
    """Says when it was first found that a topic does not exist, in ms since 1970. ``since_ms`` is ``None`` if it exists
    again, or if no offsets belong to it any more."""

    topic: str
    since_ms: Number | None
    of_znode: ClassVar[tuple[str, ...]] = ("topic",)


Entry = OffsetEntry | GroupEntry | Claim | Heard | GoneEntry | None


def offset_records(group: str, offsets: Mapping[tuple[str, int], CommittedOffset | None]) -> list[LogRecord]:
    """Encodes offsets. A log can hold millions of them, so this code is hand-written: it is several times faster than
    the compiled encoders."""
    return [
        LogRecord(_offset_key_start(group, topic) + _PARTITION.pack(partition), _offset_value(value))
        for (topic, partition), value in offsets.items()
    ]


@lru_cache(maxsize=4096)
def _offset_key_start(group: str, topic: str) -> bytes:
    """Encodes a key without its last field, which is the partition."""
    key = message("OffsetCommitKey")(group=group, topic=topic)
    return _versioned("OffsetCommitKey", OFFSET_KEY, key)[: -_PARTITION.size]


def _offset_value(value: CommittedOffset | None) -> bytes | None:
    if value is None:
        return None
    offset, leader_epoch, committed_at_ms = value.offset, value.leader_epoch, value.committed_at_ms
    topic_id, expires_at_ms, metadata = value.topic_id, value.expires_at_ms, value.metadata.encode()
    if topic_id and expires_at_ms < 0 and len(metadata) < _ONE_BYTE:
        start = _TAGGED_VALUE_START.pack(TAGGED_OFFSET_VALUE, offset, leader_epoch, len(metadata) + 1)
        return b"".join((start, metadata, _TIMESTAMP.pack(committed_at_ms), _TAGS, topic_id_bytes(topic_id)))
    if topic_id or expires_at_ms >= 0:
        tagged = message("OffsetCommitValue")(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=value.metadata,
            commit_timestamp=committed_at_ms,
            topic_id=topic_id_bytes(topic_id) if topic_id else b"",
            expires_at=expires_at_ms,
        )
        return _versioned("OffsetCommitValue", TAGGED_OFFSET_VALUE, tagged)
    start = _OFFSET_VALUE_START.pack(OFFSET_VALUE, offset, leader_epoch, len(metadata))
    return start + metadata + _TIMESTAMP.pack(committed_at_ms)


@lru_cache(maxsize=4096)
def topic_id_bytes(identity: str) -> bytes:
    """Encodes a topic's identity: its id or, before Kafka 2.8, the czxid of its znode. Zeros stand for an unknown
    one."""
    if not identity:
        return bytes(_ID_BYTES)
    if is_topic_id(identity):
        return topic_id_to_bytes(identity)
    return _NO_ID + int(identity).to_bytes(8, "big")


@lru_cache(maxsize=4096)
def topic_id_text(written: bytes) -> str:
    if not any(written):
        return ""
    if written.startswith(_NO_ID):
        return str(int.from_bytes(written, "big"))
    return topic_id_from_bytes(written)


def group_record(
    group: GroupMetadata, assignments: Mapping[str, bytes], now_ms: int, topic_ids: Mapping[str, str] | None = None
) -> LogRecord:
    """Encodes the group in its current state, with the given assignments. ``topic_ids`` are the identities of the
    topics in the assignments."""
    form = message("GroupMetadataValue")
    member_of, topic_of, gone_of = (form.struct(name) for name in ("MemberMetadata", "GivenTopic", "GoneMember"))
    members = tuple(
        member_of(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=round(member.rebalance_timeout_s * 1000),
            session_timeout=round(member.session_timeout_s * 1000),
            subscription=member.metadata(group.protocol_name),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    )
    value = form(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=now_ms,
        members=members,
        topics=tuple(topic_of(name=name, topic_id=topic_id_bytes(one)) for name, one in (topic_ids or {}).items()),
        departed=tuple(
            gone_of(name=name, departure=str(how.kind), after_ms=how.after_ms, by=how.by)
            for name, how in list(group.departed.items())[:MAX_DEPARTED]
        ),
    )
    version = TAGGED_GROUP_VALUE if topic_ids or group.departed else GROUP_VALUE
    return LogRecord(_group_key(group.group_id), _versioned("GroupMetadataValue", version, value))


def group_removal(group_id: str) -> LogRecord:
    return LogRecord(_group_key(group_id), None)


def claim_record(claim: Claim) -> LogRecord:
    return LogRecord(_CLAIM_KEY + _GENERATION.pack(claim.generation), claim.to_bytes())


def is_claim(record: LogRecord) -> bool:
    return record.key is not None and record.key.startswith(_CLAIM_KEY) and record.value is not None


def read_claim(record: LogRecord) -> Claim:
    """Decodes a record for which :func:`is_claim` returns true. Raises :class:`MalformedValue`."""
    return Claim.from_bytes(record.value or b"", "the claim")


def heard_records(heard: Heard, most_bytes: int = _NOTE_BYTES) -> list[LogRecord]:
    """Encodes a note, in several records if it is long. The broker accepts records of up to ``most_bytes``. A later
    term's note replaces as many of them as it has itself; the others then no longer count, because they are of an older
    term."""
    parts: list[list[tuple[Key, int | None]]] = [[]]
    room = most = min(_NOTE_BYTES, most_bytes) - _NOTE_OVERHEAD_BYTES
    for key, left_ms in heard.left_ms.items():
        size = sum(len(name.encode()) for name in key) + _LEFT_BYTES
        if size > room and parts[-1]:
            parts.append([])
            room = most
        room -= size
        parts[-1].append((key, left_ms))
    return [_heard_record(number, heard.term, part) for number, part in enumerate(parts)]


def _heard_record(number: int, term: int, members: Sequence[tuple[Key, int | None]]) -> LogRecord:
    value = fields.dump(Heard(term, dict(members)).to_json())
    return LogRecord(_VERSION.pack(HEARD_KEY) + _PARTITION.pack(number), value)


def gone_record(gone: GoneEntry) -> LogRecord:
    key = _VERSION.pack(GONE_KEY) + gone.topic.encode()
    return LogRecord(key, None if gone.since_ms is None else gone.to_bytes())


def _read_gone(record: LogRecord, key: bytes) -> GoneEntry:
    topic = key[_VERSION.size :].decode("utf-8", "replace")
    if record.value is None:
        return GoneEntry(topic, None)
    return GoneEntry.from_bytes(record.value, "the note of a gone topic", topic=topic)


def keep_alive_record() -> LogRecord:
    """Returns a keep-alive. Its value is just a version, which Kafka ignores; Kafka's formatters would fail on an empty
    value."""
    return LogRecord(_VERSION.pack(KEEP_ALIVE_KEY), _VERSION.pack(KEEP_ALIVE_KEY))


def read_record(record: LogRecord) -> Entry:
    """Decodes a record. Returns ``None`` for a keep-alive or an unknown kind of record. Raises :class:`BadMessage`."""
    key, value = record.key, record.value
    if key is None or len(key) < _VERSION.size:
        raise BadMessage(f"offset {record.offset}: the record's key is missing or too short")
    (kind,) = _VERSION.unpack_from(key)
    if kind in {0, OFFSET_KEY}:
        if len(key) < _VERSION.size + _PARTITION.size:
            raise BadMessage(f"offset {record.offset}: an offset's key is {len(key)} bytes long")
        group, topic = _offset_key_read(key[: -_PARTITION.size])
        (partition,) = _PARTITION.unpack(key[-_PARTITION.size :])
        return OffsetEntry(group, topic, partition, _read_offset(value))
    if kind == GROUP_KEY:
        group = message("GroupMetadataKey").decode(key, kind, _VERSION.size).group
        return GroupEntry(group, _read_group(group, value))
    try:
        if is_claim(record):
            return read_claim(record)
        if kind == HEARD_KEY and value is not None:
            return Heard.from_json(fields.load(value, "the note of heard members"), "the note of heard members")
        if kind == GONE_KEY:
            return _read_gone(record, key)
    except MalformedValue as error:
        raise BadMessage(f"offset {record.offset}: cannot read {error}") from None
    return None


@lru_cache(maxsize=4096)
def _offset_key_read(start: bytes) -> tuple[str, str]:
    """Decodes the group and the topic from a key without its partition. The results are cached, since a load reads each
    pair many times."""
    kind, key = _VERSION.unpack_from(start)[0], start + bytes(_PARTITION.size)
    name, end = message("OffsetCommitKey").decode_at(key, kind, _VERSION.size)
    if end != len(key):
        raise BadMessage(f"an offset's key is {len(key)} bytes long, but its fields end after {end}")
    return name.group, name.topic


def _read_offset(value: bytes | None) -> CommittedOffset | None:
    """Decodes an offset. For speed, the version that this project writes is decoded by hand."""
    if value is None:
        return None
    if value[: _VERSION.size] == _WRITTEN and len(value) >= _OFFSET_VALUE_START.size + _TIMESTAMP.size:
        _, offset, leader_epoch, size = _OFFSET_VALUE_START.unpack_from(value)
        end = _OFFSET_VALUE_START.size + size
        if size >= 0 and len(value) == end + _TIMESTAMP.size:
            metadata = str(value[_OFFSET_VALUE_START.size : end], "utf-8", "replace")
            return CommittedOffset(offset, leader_epoch, metadata, *_TIMESTAMP.unpack_from(value, end))
    tail = _TIMESTAMP.size + len(_TAGS) + _ID_BYTES
    if value[: _VERSION.size] == _WRITTEN_WITH_ID and len(value) >= _TAGGED_VALUE_START.size + tail:
        _, offset, leader_epoch, size = _TAGGED_VALUE_START.unpack_from(value)
        end = _TAGGED_VALUE_START.size + size - 1
        if 0 < size <= _ONE_BYTE and len(value) == end + tail and value[-_ID_BYTES - len(_TAGS) : -_ID_BYTES] == _TAGS:
            metadata = str(value[_TAGGED_VALUE_START.size : end], "utf-8", "replace")
            (at_ms,) = _TIMESTAMP.unpack_from(value, end)
            return CommittedOffset(offset, leader_epoch, metadata, at_ms, topic_id_text(value[-_ID_BYTES:]))
    decoded = _read("OffsetCommitValue", value)
    expires_at_ms = max(decoded.expires_at, decoded.expire_timestamp)
    where = decoded.offset, decoded.leader_epoch, decoded.metadata, decoded.commit_timestamp
    return CommittedOffset(*where, topic_id_text(decoded.topic_id), expires_at_ms)


def _read_group(group_id: str, value: bytes | None) -> GroupMetadata | None:
    if value is None:
        return None
    decoded = _read("GroupMetadataValue", value)
    group = GroupMetadata(
        group_id,
        ClassicState.STABLE if decoded.members else ClassicState.EMPTY,
        state_since_ms=decoded.current_state_timestamp,
        generation_id=decoded.generation,
        protocol_type=decoded.protocol_type or None,
        protocol_name=decoded.protocol,
        topic_ids={one.name: topic_id_text(one.topic_id) for one in decoded.topics},
        departed={
            one.name: Departure(DepartureKind(one.departure), one.after_ms, one.by)
            for one in decoded.departed
            if one.departure in DepartureKind.__members__.values()
        },
    )
    for entry in decoded.members:
        member = MemberMetadata(
            entry.member_id,
            entry.group_instance_id,
            entry.client_id,
            entry.client_host,
            entry.session_timeout / 1000,
            (entry.rebalance_timeout if entry.rebalance_timeout >= 0 else entry.session_timeout) / 1000,
            (Protocol(decoded.protocol or "", entry.subscription),),
            assignment=entry.assignment,
            is_new=False,
        )
        group.add(member, decoded.protocol_type)
    group.leader_id = decoded.leader if decoded.leader in group.members else group.leader_id
    return group


def _read(name: str, value: bytes) -> Any:
    if len(value) < _VERSION.size:
        raise BadMessage(f"a {name} is too short to contain its version")
    (version,) = _VERSION.unpack_from(value)
    return message(name).decode(value, version, _VERSION.size)


def _group_key(group_id: str) -> bytes:
    return _versioned("GroupMetadataKey", GROUP_KEY, message("GroupMetadataKey")(group=group_id))


def _versioned(name: str, version: int, value: Any) -> bytes:
    return bytes(message(name).encode(value, version, bytearray(_VERSION.pack(version))))
