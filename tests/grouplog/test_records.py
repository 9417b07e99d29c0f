"""Records of offsets: hand-written packing equals Kafka's definitions."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.grouplog.records import OffsetEntry, read_record
from kafka_coord.model import CommittedOffset
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.messages import message
from tests.grouplog.offset_record import offset_record

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_INT32, _INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_VALUES = st.none() | st.builds(CommittedOffset, _INT64, _INT32, _TEXT, _INT64)
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
        )
        assert record.value == struct.pack(">h", 3) + message("OffsetCommitValue").encode(value, 3)
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


@pytest.mark.parametrize("cut", [1, 3, 8, 20])
def test_a_truncated_key_or_value_is_refused(cut: int):
    record = offset_record(OffsetEntry("group", "topic", 1, CommittedOffset(7, 1, "metadata", 9)))
    assert record.key is not None
    assert record.value is not None
    for broken in (LogRecord(record.key[:-cut], record.value), LogRecord(record.key, record.value[:-cut])):
        with pytest.raises(BadMessage):
            read_record(broken)
