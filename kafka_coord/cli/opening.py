"""Gives commands access to the instances, the brokers and the groups log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from kafka_coord.cli.connection import current_settings, open_store
from kafka_coord.cli.output import note
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.next_records import next_records_of
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


def lag_service(instances: AskedInstances, **limits: Any) -> LagService:
    """Returns a lag service for one command. It reads only timestamps: LAG counts offsets, as in Kafka's tools."""
    return LagService(next_records=next_records_of(instances.store, instances.properties, corrects=False, **limits))


@contextmanager
def open_cluster() -> Iterator[tuple[AskedInstances, BrokerLog]]:
    """Opens a ZooKeeper session like :func:`open_instances`, and a connection to the brokers."""
    with (
        open_instances() as instances,
        closing(BrokerLog(instances.store, instances.properties, note_left_out)) as brokers,
    ):
        yield instances, brokers
