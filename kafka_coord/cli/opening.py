"""Gives commands access to the instances, the brokers and the groups log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from kafka_coord.cli.connection import current_settings, open_store
from kafka_coord.cli.output import note
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.log import LogBounds, read_log
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.offsets import BrokerLog
from kafka_coord.model import Unreadable
from kafka_coord.wire.batches import LogRecord


def note_left_out(broker: Unreadable) -> None:
    """Reports a broker that cannot be used. The command continues with the other brokers."""
    note(f"skipped a broker: {broker.path} cannot be read: {broker.reason}")


@contextmanager
def open_instances() -> Iterator[AskedInstances]:
    """Opens a ZooKeeper session for a command that queries the running instances."""
    settings = current_settings()
    with open_store(settings) as store:
        yield AskedInstances(store, settings.kafka.properties)


@contextmanager
def open_cluster() -> Iterator[tuple[AskedInstances, BrokerLog]]:
    """Opens a ZooKeeper session like :func:`open_instances`, and a connection to the brokers."""
    with (
        open_instances() as instances,
        closing(BrokerLog(instances.store, instances.properties, note_left_out)) as brokers,
    ):
        yield instances, brokers


def read_groups_log(
    instances: AskedInstances,
    partition: int,
    wanted: Callable[[LogRecord], bool] | None,
    *,
    first: int | None = None,
    last: int | None = None,
) -> tuple[LogBounds, Sequence[LogRecord]]:
    """Reads one partition of the groups log with :func:`read_log`, and prints the progress on standard error."""
    bootstrap = bootstrap_servers(instances.store, instances.properties, note_left_out)
    return read_log(
        bootstrap,
        instances.properties,
        partition,
        wanted,
        lambda offset, end: note(f"read up to offset {offset} of {end}"),
        first=first,
        last=last,
    )
