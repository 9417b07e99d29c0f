"""Sinks that store each record of a query exactly once, even across crashes and rebalances.

A sink stores rows together with their offsets in one atomic step. If Spark repeats a batch after a crash, the sink
recognises the rows that it already contains and skips them.
"""

from kafka_coord.spark.sinks.batches import BetweenBatches, MicroBatch, exactly_once, offsets_of
from kafka_coord.spark.sinks.database import DatabaseTable
from kafka_coord.spark.sinks.parquet import Appended, ParquetTable, TableWriter, read_table

__all__ = [
    "Appended",
    "BetweenBatches",
    "DatabaseTable",
    "MicroBatch",
    "ParquetTable",
    "TableWriter",
    "exactly_once",
    "offsets_of",
    "read_table",
]
