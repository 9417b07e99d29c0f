"""The Kafka brokers registered below ``/brokers/ids``: the usable ones, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Broker, Unreadable
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, ReadResult, Store

_MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Brokers:
    """What is registered. A broker that cannot be understood is left out and named in ``unreadable``."""

    live: tuple[Broker, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


def broker_number(name: str) -> int | None:
    """The id in the name of a znode; ``None`` where it is no id, such as one that somebody made by hand."""
    number = int(name) if name.isascii() and name.isdigit() and len(name) <= 10 else -1
    return number if 0 <= number <= _MAX_ID else None


def decode_brokers(names: Sequence[str], nodes: Sequence[ReadResult | Unreadable]) -> Brokers:
    """``nodes`` are what was read of ``names``, in the same order; one that is gone since is no broker."""
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
    """All of them, in two rounds of reads; ``None`` where Kafka does not keep its metadata here. Raises
    :class:`StoreUnavailable`."""
    (listing,) = store.read_many([GetChildren(layout.BROKER_IDS)])
    if not isinstance(listing, tuple):
        return None
    return decode_brokers(listing, store.read_many([GetData(layout.broker(name)) for name in listing]))
