"""Records of offsets: hand-written packing equals Kafka's definitions."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.classic_groups.metadata import GroupMetadata
from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.grouplog.records import (
    GroupEntry,
    OffsetEntry,
    group_record,
    heard_records,
    read_record,
    topic_id_bytes,
)
from kafka_coord.model import CommittedOffset, Departure, DepartureKind
from kafka_coord.model.member import LEFT
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.messages import BadMessage, message
from tests.grouplog.offset_record import offset_record

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_INT32, _INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_TEXT_OF_ANY_LENGTH = _TEXT | st.sampled_from([125, 126, 127, 128, 300]).map(lambda length: "x" * length)
_IDS = st.sampled_from(["", "4711", "TMyOC9fMQO2RvZzC_cfMOw", "-" * 21 + "w"])
_VALUES = st.none() | st.builds(
    CommittedOffset, _INT64, _INT32, _TEXT_OF_ANY_LENGTH, _INT64, _IDS, st.just(-1) | st.integers(0, 2**63 - 1)
)
_ENTRIES = st.builds(OffsetEntry, _TEXT, _TEXT, _INT32, _VALUES)


@given(_ENTRIES)
def test_an_offsets_record_is_as_kafkas_definitions_say(entry: OffsetEntry):
    record = offset_record(entry)
    key = message("OffsetCommitKey")(group=entry.group, topic=entry.topic, partition=entry.partition)
    assert record.key == struct.pack(">h", 1) + message("OffsetCommitKey").encode(key, 1)
    if entry.value is None:
        assert record.value is None
    else:
        value = message("OffsetCommitValue")(
            offset=entry.value.offset,
            leader_epoch=entry.value.leader_epoch,
            metadata=entry.value.metadata,
            commit_timestamp=entry.value.committed_at_ms,
            topic_id=topic_id_bytes(entry.value.topic_id) if entry.value.topic_id else b"",
            expires_at=entry.value.expires_at_ms,
        )
        version = 4 if entry.value.topic_id or entry.value.expires_at_ms >= 0 else 3
        assert record.value == struct.pack(">h", version) + message("OffsetCommitValue").encode(value, version)
    assert read_record(record) == entry


@pytest.mark.parametrize("partition", [0, 1, -1])
def test_the_start_of_a_key_is_kept_for_each_group_and_topic(partition: int):
    entries = [OffsetEntry(group, topic, partition, None) for group in "ab" for topic in "ab"]
    assert [read_record(offset_record(entry)) for entry in entries * 2] == entries * 2


def test_a_value_of_another_version_is_read_as_well():
    form = message("OffsetCommitValue")
    key = offset_record(OffsetEntry("g", "t", 1, None)).key
    for version, epoch in ((0, -1), (1, -1), (2, -1), (3, 5)):
        value = struct.pack(">h", version) + form.encode(form(offset=7, leader_epoch=epoch, metadata="m"), version)
        found = read_record(LogRecord(key, value))
        assert isinstance(found, OffsetEntry)
        assert found.value is not None
        assert (found.value.offset, found.value.leader_epoch, found.value.metadata) == (7, epoch, "m")


def test_the_record_of_a_group_contains_the_topic_ids_of_its_generation():
    ids = {"flights": "TMyOC9fMQO2RvZzC_cfMOw", "a topic from before 2.8": "4711"}
    for topic_ids in (ids, {}):
        entry = read_record(group_record(GroupMetadata("delays"), {}, 5, topic_ids))
        assert isinstance(entry, GroupEntry)
        assert entry.value is not None
        assert entry.value.topic_ids == topic_ids


@pytest.mark.parametrize("left_ms", [{}, {("delays", "a"): None, ("delays", "b"): 31_000, ("g", "a"): 0}])
def test_a_note_of_who_was_heard_is_read_as_it_was_written(left_ms: dict[tuple[str, str], int | None]):
    (record,) = heard_records(Heard(7, left_ms))
    assert read_record(record) == Heard(7, left_ms)


@pytest.mark.parametrize("most_bytes", [1_000, 20_000, GroupLimits().append_bytes])
def test_a_long_note_is_split_into_records_that_the_broker_accepts(most_bytes: int):
    left_ms = {("delays", f"{'x' * 200}-{number}"): number for number in range(5_000)}
    records = heard_records(Heard(7, left_ms), most_bytes)
    assert len({record.key for record in records}) == len(records) > 1
    assert all(len(record.key or b"") + len(record.value or b"") + 32 <= most_bytes for record in records)
    found = [one for record in records if isinstance(one := read_record(record), Heard)]
    assert {key: left for one in found for key, left in one.left_ms.items()} == left_ms


@pytest.mark.parametrize("value", [b"", b"[]", b'{"term": 7}', b'{"term": 7, "left_ms": {"g": {"a": "soon"}}}'])
def test_a_note_that_cannot_be_read_is_refused(value: bytes):
    (record,) = heard_records(Heard(7, {}))
    with pytest.raises(BadMessage, match="cannot read the note of heard members"):
        read_record(LogRecord(record.key, value))


@pytest.mark.parametrize("cut", range(1, 21))
def test_a_truncated_key_or_value_is_refused(cut: int):
    record = offset_record(OffsetEntry("group", "topic", 1, CommittedOffset(7, 1, "metadata", 9)))
    assert record.key is not None
    assert record.value is not None
    for broken in (LogRecord(record.key[:-cut], record.value), LogRecord(record.key, record.value[:-cut])):
        with pytest.raises(BadMessage):
            read_record(broken)


def test_a_groups_record_says_how_members_went() -> None:
    group = GroupMetadata("delays")
    group.departed = {
        "a": LEFT,
        "b": Departure(DepartureKind.EXPIRED, 45_000),
        "c": Departure(DepartureKind.EVICTED, by="x"),
    }
    entry = read_record(group_record(group, {}, 5))
    assert isinstance(entry, GroupEntry)
    assert entry.value is not None
    assert entry.value.departed == group.departed
