"""The cluster history: elections, and operator actions that do not concern a managed group."""

from __future__ import annotations

import msgspec

from kafka_coord.model.action import MAX_TEXT, Action
from kafka_coord.model.codec import Number, Stored, cut

MAX_ELECTIONS = 100


class Election(Stored, frozen=True):
    """One instance's time as coordinator. Times are ms since 1970. ``ended_ms`` is ``None`` until the term ends, and
    ``why`` says why it ended. An instance that has lost its session cannot record the end of its term, so its successor
    does."""

    broker_id: Number = msgspec.field(name="brokerid")
    host: str
    epoch: Number
    elected_ms: Number
    ended_ms: Number | None = None
    why: str = ""

    def __post_init__(self) -> None:
        cut(self, host=MAX_TEXT, why=MAX_TEXT)


class ClusterHistory(Stored, frozen=True, tag_field="version", tag=1):
    """The value of ``/consumers/history``, oldest entries first."""

    elections: tuple[Election, ...] = ()
    actions: tuple[Action, ...] = ()
