"""Runs a plain consumer that shares a group and a table with Spark applications, in its own process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow

from kafka_coord import Consumer, Record
from kafka_coord.dev.cluster.process import stopping_event
from kafka_coord.dev.demo.worker import Pace, member_arguments, membership, run_process
from kafka_coord.dev.jobs.flights import as_arrow
from kafka_coord.spark.sinks import TableWriter

_WAIT_S = 0.5


def main(
    arguments: Sequence[str] | None = None, *, rows: Callable[[Sequence[Record]], pyarrow.Table] = as_arrow
) -> int:
    """Runs the process. ``rows`` converts records to rows. Returns 0 after a clean leave, or else the error's exit
    code."""
    parser = member_arguments("kafka_coord.dev.demo.colleague", __doc__)
    parser.add_argument("--table", required=True, type=Path)
    parser.add_argument(
        "--batch", required=True, type=int, help="records per append; there is about one append a second"
    )

    def run(given: argparse.Namespace) -> None:
        stopping, pace = stopping_event(), Pace(given.batch)
        table = TableWriter(given.table, group=given.group)
        with Consumer(**membership(given)) as consumer:
            while not stopping.is_set():
                records = consumer.consume(given.batch, _WAIT_S)
                if records:  # before the next call of consume(), which marks these records as consumed
                    table.append_arrow(rows(records))
                    pace.worked(len(records), stopping)

    return run_process(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
