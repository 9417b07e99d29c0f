"""The successor that a resigning coordinator names (``/consumers/successor``)."""

from __future__ import annotations

from kafka_coord.errors import MalformedValue, NoNode
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import JsonObject, Number
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Node, Op, ReadResult, SetData, Store

HOLD_BACK_S = 3.0
"""How long all other instances wait for the named successor to be elected, in seconds on each instance's own clock. A
healthy successor is elected within milliseconds. Even if it fails, the delay is shorter than a failover after a crash,
which takes a session timeout."""


class Successor(JsonObject, frozen=True, tag_field="version", tag=1):
    """The named successor. ``broker_id`` is to succeed the coordinator of ``epoch``, and has no precedence after
    that."""

    broker_id: Number
    epoch: Number

    @classmethod
    def read(cls, found: ReadResult) -> Successor | None:
        """Returns the named successor, or ``None`` if no successor is named or the znode cannot be read; all instances
        then stand for election."""
        if not isinstance(found, Node):
            return None
        where = layout.SUCCESSOR
        try:
            return cls.from_json(fields.load(found.data, where), where)
        except MalformedValue:
            return None


def name_op(store: Store, successor: Successor) -> Op:
    """Returns the write that names the successor. Only the elected coordinator writes it, under its fence."""
    data = fields.dump(successor.to_json())
    is_there = store.exists(layout.SUCCESSOR) is not None
    return SetData(layout.SUCCESSOR, data) if is_there else Create(layout.SUCCESSOR, data)


def read_successor(store: Store) -> Successor | None:
    """Returns the most recently named successor."""
    try:
        return Successor.read(store.get(layout.SUCCESSOR))
    except NoNode:
        return None
