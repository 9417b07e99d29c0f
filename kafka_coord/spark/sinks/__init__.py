"""Where a query's rows go so that each record's are there exactly once, whatever crashes and whoever owns what.

The offsets that were written are noted in the sink itself, in the same atomic step as their rows: what a crash has
Spark repeat is recognised and left out.
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
