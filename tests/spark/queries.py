"""Records what a query received, and reads what its group has committed."""

from __future__ import annotations

from typing import Any

from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.offsets import read_committed
from kafka_coord.zk.session import connect


class Seen:
    """The contents of a query's micro-batches."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.values: list[bytes] = []
        self.batches = 0

    def __call__(self, rows: Any, _batch_id: int) -> None:
        found = rows.select("partition", "offset", "value").collect()
        self.values += [bytes(row[2]) for row in found]
        self.records += [(row[0], row[1]) for row in found]  # last, because tests wait for them
        self.batches += 1


def committed(zookeeper: str, group: str) -> dict[int, int]:
    store = connect(zookeeper)
    try:
        found = read_committed(store, group, read_cluster(store).topics)
        return {tp.partition: offset for tp, offset in found.offsets.items()}
    finally:
        store.close()
