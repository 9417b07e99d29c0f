"""Record batches are read back as written, and broken ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.wire.batches import LogRecord, decode_batches, encode_batch
from kafka_coord.wire.messages import BadMessage

BYTES = st.none() | st.binary(max_size=300)
RECORDS = st.lists(st.builds(LogRecord, key=BYTES, value=BYTES), min_size=1, max_size=20)


@given(RECORDS, st.integers(0, 1 << 62), st.integers(0, 0x7FFF), st.integers(0, 1 << 30))
def test_a_batch_comes_back_as_it_was(records: list[LogRecord], producer: int, epoch: int, sequence: int) -> None:
    data = encode_batch(records, now_ms=7, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)

    (batch,) = decode_batches(data)

    assert [(one.key, one.value) for one in batch.records] == [(one.key, one.value) for one in records]
    assert [one.offset for one in batch.records] == list(range(len(records)))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (producer, epoch, sequence)
    assert batch.end == len(records)


def test_a_truncated_batch_is_left_for_the_next_fetch() -> None:
    data = encode_batch([LogRecord(b"k", b"v")], now_ms=7)
    assert len(list(decode_batches(data + data[:-1]))) == 1


@given(st.data())
def test_a_bit_that_flipped_is_noticed(data: st.DataObject) -> None:
    good = encode_batch([LogRecord(b"key", b"value")], now_ms=7, producer_id=5, producer_epoch=1, base_sequence=0)
    at = data.draw(st.integers(21, len(good) - 1))  # after the checksum
    spoilt = bytearray(good)
    spoilt[at] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(BadMessage, match="checksum"):
        list(decode_batches(bytes(spoilt)))
