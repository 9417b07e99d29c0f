"""Gives commands access to the instances, the brokers and the groups log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from kafka_coord.cli.connection import current_settings, open_store
from kafka_coord.cli.output import note
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.kafka.offsets import BrokerLog
from kafka_coord.model import Unreadable


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
def open_groups() -> Iterator[GroupDirectory]:
    """Opens a ZooKeeper session for a command about groups of any kind."""
    with open_instances() as instances:
        yield GroupDirectory(instances)


@contextmanager
def open_cluster() -> Iterator[tuple[AskedInstances, BrokerLog]]:
    """Opens a ZooKeeper session like :func:`open_instances`, and a connection to the brokers."""
    with (
        open_instances() as instances,
        closing(BrokerLog(instances.store, instances.properties, note_left_out)) as brokers,
    ):
        yield instances, brokers
