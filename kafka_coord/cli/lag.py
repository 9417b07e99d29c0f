"""Connections to the brokers, for the commands that show lag, reset offsets or read the groups log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from kafka_coord.cli.output import note
from kafka_coord.errors import BrokerError
from kafka_coord.model import PartitionSet, TopicPartition, Unreadable
from kafka_coord.monitor.client_groups.log import LogReader
from kafka_coord.monitor.groups import EndOffsets
from kafka_coord.monitor.lag import BrokerOffsets, OffsetReader, bootstrap_servers
from kafka_coord.settings import Settings
from kafka_coord.zk.store import Store


def note_left_out(broker: Unreadable) -> None:
    """Reports a broker that cannot be used; the command uses the others."""
    note(f"skipped a broker: {broker.path} cannot be read: {broker.reason}")


class BrokerLog:
    """The live brokers. Connects at the first question, so a command that asks nothing needs no broker.

    A question raises :class:`BrokerError` if no usable broker is registered.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._properties = settings.kafka.properties
        self._reader: OffsetReader | None = None

    def latest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._connected().latest(partitions)

    def earliest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._connected().earliest(partitions)

    def at_time(self, partitions: PartitionSet, timestamp_ms: int) -> BrokerOffsets:
        return self._connected().at_time(partitions, timestamp_ms)

    def _connected(self) -> OffsetReader:
        if self._reader is None:
            bootstrap = bootstrap_servers(self._store, self._properties, note_left_out)
            self._reader = OffsetReader(bootstrap, self._properties)
        return self._reader

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.close()


def end_offsets_reader(log: BrokerLog) -> EndOffsets:
    """Reads end offsets. Turns a failure into a sentence."""

    def read(partitions: PartitionSet) -> tuple[Mapping[TopicPartition, int], str]:
        if not partitions:
            return {}, ""
        try:
            found = log.latest(partitions)
        except BrokerError as error:
            return {}, f"lag is unknown: {error}"
        return found.offsets, found.note

    return read


@contextmanager
def open_log(store: Store, settings: Settings, partition: int) -> Iterator[LogReader]:
    """One partition of the groups log, read from the brokers."""
    properties = settings.kafka.properties
    log = LogReader(bootstrap_servers(store, properties, note_left_out), properties, partition)
    try:
        yield log
    finally:
        log.close()


def log_progress(log: LogReader) -> Callable[[int], None]:
    """Reports the progress of reading on standard error."""
    return lambda offset: note(f"read up to offset {offset} of {log.extent.end}")
