"""A process with a plain consumer that writes to the table of the Spark applications in its group."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pyarrow as pa

from kafka_coord import Record
from kafka_coord.dev.demo import colleague

SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])


def as_they_are(records: Sequence[Record]) -> pa.Table:
    columns = zip(*((one.topic, one.partition, one.offset, one.value) for one in records), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


if __name__ == "__main__":
    sys.exit(colleague.main(rows=as_they_are))
