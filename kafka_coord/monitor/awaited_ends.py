"""Lists the ends of partitions for an elected instance, which uses its own rights."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.monitor.lag import OffsetReader, bootstrap_servers
from kafka_coord.zk.store import Store


class AwaitedEnds:
    """Connects to the brokers on first use. ``properties`` are librdkafka settings. Not thread-safe."""

    def __init__(self, store: Store, properties: Mapping[str, str]) -> None:
        self._store = store
        self._properties = properties
        self._reader: OffsetReader | None = None

    def ends(self, partitions: PartitionSet) -> Mapping[TopicPartition, int]:
        """Returns the ends that the brokers returned. Raises :class:`BrokerError` if no broker can be asked.

        These are the last stable offsets. A consumer that reads uncommitted records may therefore begin some records
        early, but a consumer that reads committed records skips none of a transaction that is open now.
        """
        if self._reader is None:
            bootstrap = bootstrap_servers(self._store, self._properties)
            self._reader = OffsetReader(bootstrap, self._properties, read_committed=True)
        found = self._reader.latest(partitions)
        if not found.offsets:  # the brokers may have other addresses by now
            self.close()
        return found.offsets

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
