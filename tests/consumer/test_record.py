"""Tests of records whose keys and values are read by functions of the application."""

from __future__ import annotations

import json
import pickle
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_coord.consumer.record import Deserializers, Record


def message(value: bytes | None, key: bytes | None = b"k") -> Any:
    fields = {"topic": "flights", "partition": 0, "offset": 7, "key": key, "value": value}
    fields |= {"timestamp": (0, 0), "headers": None}
    return SimpleNamespace(**{name: partial(fields.get, name) for name in fields})


def test_each_deserializer_runs_once_and_only_when_it_is_needed() -> None:
    calls: list[bytes] = []

    def read(data: bytes) -> Any:
        calls.append(data)
        return json.loads(data)

    record = Deserializers(value=read).record()(message(b'{"n": 1}'))
    assert calls == []
    assert (record.value, record.value, record.key) == ({"n": 1}, {"n": 1}, b"k")
    assert calls == [b'{"n": 1}']
    assert Deserializers(key=bytes.decode, value=read).record()(message(None, None)).value is None
    copied = pickle.loads(pickle.dumps(record))  # noqa: S301 - pickled by this test
    assert (copied, copied.value, copied.raw_value) == (record, {"n": 1}, b'{"n": 1}')
    assert type(Deserializers().record()(message(b"1"))) is Record


def test_an_unreadable_value_raises_an_error_that_names_its_record_when_it_is_used() -> None:
    record = Deserializers(value=json.loads).record()(message(b"{"))
    for _ in range(2):
        with pytest.raises(ValueError, match="Expecting property name") as failure:
            _ = record.value
    assert failure.value.__notes__ == ["This was the value of Record(flights-0@7 key=b'k' value=b'{')."]
    assert record.raw_value == b"{"
