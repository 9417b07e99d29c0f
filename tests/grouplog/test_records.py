"""Records of offsets: what is packed by hand equals what Kafka's definitions say."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.grouplog.records import CommittedOffset, OffsetEntry, offset_record, read_record
from kafka_coord.wire.messages import message

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
