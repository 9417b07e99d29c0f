"""A plain consumer, as a process, that writes into the table Spark applications of its group write to."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow as pa

from kafka_coord import Consumer
from kafka_coord.dev.stopping import stopping_event
from kafka_coord.pipeline.sinks import TableWriter

SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("zookeeper", "group", "topic", "name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--session-timeout-ms", type=int, required=True)
    given = parser.parse_args()
    stopping = stopping_event()
    table = TableWriter(given.table, group=given.group)
    with Consumer(
        given.zookeeper,
        group=given.group,
        topics=[given.topic],
        consumer_id=given.name,
        auto_offset_reset="earliest",
        session_timeout_ms=given.session_timeout_ms,
    ) as consumer:
        while not stopping.is_set():
            records = consumer.consume(2_000, 0.5)
            if records:  # in the table before more is asked for: only then do they count as consumed
                rows = [(one.topic, one.partition, one.offset, one.value) for one in records]
                columns = [
                    pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
                ]
                table.append_arrow(pa.Table.from_arrays(columns, schema=SCHEMA))
                stopping.wait(0.3)  # a few records more in the next
    return 0


if __name__ == "__main__":
    sys.exit(main())
