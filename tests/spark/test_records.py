"""Tests of records that cannot be decoded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.spark.fetching import decoded, keep_aside

SCHEMA = "carrier string, delay double"
VALUES = [
    b'{"carrier": "UA", "delay": 12.5}',
    b'{"carrier": "AA"}',
    b"{}",
    b'{"carrier": "UA", "delay": "late"}',
    b"not JSON",
    b"[1, 2]",
    b'"UA"',
    b"null",
    b"  ",
    b"",
    None,
    b"\xff\xfe\x00",
    b'{"carrier": "UA", "delay": 1.0',
]
GOOD = 3


@pytest.fixture
def rows(spark: Any) -> Any:
    listed = [("flights", 0, offset, None, value) for offset, value in enumerate(VALUES)]
    return spark.createDataFrame(listed, "topic string, partition int, offset bigint, key binary, value binary")


def test_each_record_is_either_decoded_or_kept_aside_with_its_position(
    spark: Any, rows: Any, tmp_path: Path, caplog: Any
):
    found = decoded(rows, SCHEMA)
    assert [tuple(row) for row in found.good.orderBy("offset").collect()] == [
        ("flights", 0, 0, "UA", 12.5),
        ("flights", 0, 1, "AA", None),
        ("flights", 0, 2, None, None),
    ]
    with caplog.at_level(logging.WARNING):
        assert keep_aside(found.bad, tmp_path / "bad") == len(VALUES) - GOOD
    assert "set aside 10 undecodable records, such as flights-0 at 3" in caplog.text
    kept = {row["offset"]: row["value"] for row in spark.read.parquet(str(tmp_path / "bad")).collect()}
    assert sorted(kept) == list(range(GOOD, len(VALUES)))
    assert [None if kept[at] is None else bytes(kept[at]) for at in sorted(kept)] == VALUES[GOOD:]


def test_without_bad_records_nothing_is_written(rows: Any, tmp_path: Path):
    assert keep_aside(decoded(rows.where("offset < 3"), SCHEMA).bad, tmp_path / "bad") == 0
    assert not (tmp_path / "bad").exists()


def test_a_schema_that_would_hide_a_records_position_is_refused(rows: Any):
    with pytest.raises(SettingsError, match="'offset' of the schema"):
        decoded(rows, "carrier string, offset bigint")
    with pytest.raises(SettingsError, match="not a record schema"):
        decoded(rows, "string")
