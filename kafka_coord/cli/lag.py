"""Opens the groups log for commands, and reports unusable brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka_coord.cli.output import note
from kafka_coord.model import Unreadable
from kafka_coord.monitor.client_groups.log import LogReader
from kafka_coord.monitor.lag import bootstrap_servers
from kafka_coord.settings import Settings
from kafka_coord.zk.store import Store


def note_left_out(broker: Unreadable) -> None:
    """Reports a broker that cannot be used. The command continues with the other brokers."""
    note(f"skipped a broker: {broker.path} cannot be read: {broker.reason}")


@contextmanager
def open_log(store: Store, settings: Settings, partition: int) -> Iterator[LogReader]:
    """Opens one partition of the groups log."""
    properties = settings.kafka.properties
    log = LogReader(bootstrap_servers(store, properties, note_left_out), properties, partition)
    try:
        yield log
    finally:
        log.close()


def log_progress(log: LogReader) -> Callable[[int], None]:
    """Returns a callback that reports the reader's progress on standard error."""
    return lambda offset: note(f"read up to offset {offset} of {log.extent.end}")
