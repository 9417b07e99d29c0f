"""End offsets for the commands that show lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kafka_coord.errors import BrokerError
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.monitor.groups import EndOffsets
from kafka_coord.monitor.lag import OffsetReader, bootstrap_servers
from kafka_coord.settings import Settings
from kafka_coord.zk.store import Store


@contextmanager
def offset_reader(store: Store, settings: Settings) -> Iterator[OffsetReader]:
    """A connection to the live brokers; raises :class:`BrokerError` where none is registered."""
    properties = settings.kafka.properties
    reader = OffsetReader(bootstrap_servers(store, properties), properties)
    try:
        yield reader
    finally:
        reader.close()


def end_offsets_reader(store: Store, settings: Settings) -> EndOffsets:
    """Asks the brokers only when called, and turns what goes wrong into a sentence."""

    def read(partitions: PartitionSet) -> tuple[Mapping[TopicPartition, int], str]:
        if not partitions:
            return {}, ""
        try:
            with offset_reader(store, settings) as reader:
                found = reader.latest(partitions)
        except BrokerError as error:
            return {}, f"lag is unknown: {error}"
        return found.offsets, found.note

    return read
