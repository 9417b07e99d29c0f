"""Reads the Kafka brokers registered below ``/brokers/ids`` and reports what is wrong with unusable registrations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Broker, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, ReadResult, Store

_MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Brokers:
    """The registered brokers. A broker whose registration is unreadable is left out of ``live`` and listed in
    ``unreadable``."""

    live: tuple[Broker, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


def broker_number(name: str) -> int | None:
    """Returns the broker id in a znode's name, or ``None`` if the name is not an id."""
    return fields.decimal(name, _MAX_ID)


def numbers(listing: ReadResult) -> tuple[int, ...]:
    """Returns the broker ids among the names in a listing, sorted."""
    names = listing if isinstance(listing, tuple) else ()
    return tuple(sorted(number for name in names if (number := broker_number(name)) is not None))


def decode_brokers(names: Sequence[str], nodes: Sequence[ReadResult | Unreadable]) -> Brokers:
    """Decodes registrations. ``nodes`` holds the results of reading ``names``, in the same order. Skips znodes that no
    longer exist."""
    live: list[Broker] = []
    unreadable: list[Unreadable] = []
    for name, node in zip(names, nodes, strict=True):
        where, number = layout.broker(name), broker_number(name)
        if isinstance(node, Unreadable):
            unreadable.append(node)
        elif isinstance(node, Node) and number is None:
            unreadable.append(Unreadable(where, "its name is not a broker id"))
        elif isinstance(node, Node) and number is not None:
            try:
                live.append(Broker.from_znode(node.data, number, where))
            except MalformedValue as error:
                unreadable.append(Unreadable(where, error.reason))
    return Brokers(tuple(live), tuple(unreadable))


def read_brokers(store: Store) -> Brokers | None:
    """Reads all brokers in two round trips. Returns ``None`` if Kafka does not keep its metadata here. Raises
    :class:`StoreUnavailable`."""
    (listing,) = store.read_many([GetChildren(layout.BROKER_IDS)])
    if not isinstance(listing, tuple):
        return None
    return decode_brokers(listing, store.read_many([GetData(layout.broker(name)) for name in listing]))
