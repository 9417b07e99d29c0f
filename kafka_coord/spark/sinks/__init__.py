"""Sinks that store each record of a query exactly once, through crashes and rebalances.

A sink stores the offsets it has written in the same atomic step as their rows. After a crash, Spark repeats a batch.
The sink recognises the rows that it already has, and skips them.
"""

from kafka_coord.spark.sinks.batches import Batch, exactly_once, offsets_of
from kafka_coord.spark.sinks.database import DatabaseTable
from kafka_coord.spark.sinks.parquet import Appended, ParquetTable, TableWriter, read_table

__all__ = [
    "Appended",
    "Batch",
    "DatabaseTable",
    "ParquetTable",
    "TableWriter",
    "exactly_once",
    "offsets_of",
    "read_table",
]
