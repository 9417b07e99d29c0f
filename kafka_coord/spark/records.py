"""Sets aside the records that cannot be decoded, so that the query can process all others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from kafka_coord.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

PLACE = ("topic", "partition", "offset")
_CORRUPT = "_undecodable"
_DECODED = "_decoded"


class Decoded(NamedTuple):
    """The two halves of the source's rows. Both contain topic, partition and offset, and timestamp if the rows do.
    ``good`` also contains the decoded columns, and ``bad`` the raw ``value``, and ``key`` if the rows do."""

    good: DataFrame
    bad: DataFrame


def decoded(rows: DataFrame, schema: StructType | str) -> Decoded:
    """Splits the source's rows into those whose value is JSON of the given schema (a ``StructType`` or a DDL string)
    and all others.

    A value is bad if it is missing, is not a JSON object, or contains a field of the wrong type. A missing field is
    null, as in Spark's ``from_json``. Both halves are lazy, and each row is in exactly one half. If you use both
    halves, ``persist`` the rows first, or Spark reads them twice.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    target = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(target, StructType):
        raise SettingsError(f"{schema!r} is not a record schema; list its columns, as in 'carrier string'")
    taken = {*PLACE, "timestamp", _CORRUPT, _DECODED} & set(target.fieldNames())
    if taken:
        raise SettingsError(f"column {sorted(taken)[0]!r} of the schema is already a column of the source's rows")
    # In the column named here, from_json stores the whole text of a value that it cannot decode.
    extended = StructType([*target.fields]).add(_CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = rows.withColumn(_DECODED, f.from_json(f.col("value").cast("string"), extended, options))
    # A missing or blank value needs its own checks, because from_json returns null for it, or a struct of nulls in
    # which the corrupt column is null too.
    is_bad = (
        f.col(_DECODED).isNull()
        | f.col(f"{_DECODED}.{_CORRUPT}").isNotNull()
        | (f.trim(f.col("value").cast("string")) == "")
    )
    at = [*PLACE, *(["timestamp"] if "timestamp" in rows.columns else [])]
    good = parsed.where(~is_bad).select(*at, *(f.col(f"{_DECODED}.`{name}`").alias(name) for name in target.names))
    key = ["key"] if "key" in rows.columns else []
    return Decoded(good, parsed.where(is_bad).select(*at, *key, "value"))


def keep_aside(bad: DataFrame, directory: str | Path) -> int:
    """Appends the bad rows to the parquet table in ``directory`` and returns their number. Logs the number if there are
    any. Use it within ``foreachBatch``. A retried micro-batch appends its rows again, so identify rows by topic,
    partition and offset. Raises Spark's errors.
    """
    bad = bad.persist()
    try:
        count = bad.count()
        if count:
            first = bad.select(*PLACE).first()
            bad.coalesce(1).write.mode("append").parquet(str(directory))
            place = f"{first[0]}-{first[1]} at {first[2]}" if first else "nowhere"
            log.warning("set aside %d undecodable records, such as %s directory=%s", count, place, directory)
        return count
    finally:
        bad.unpersist()
