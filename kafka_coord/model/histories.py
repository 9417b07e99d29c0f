"""The histories as their readers see them: what can be decoded of the cluster's and of a group's, and what cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec

from kafka_coord.model import json_fields as fields
from kafka_coord.model.action import MAX_TEXT, Action
from kafka_coord.model.codec import JsonObject, Number, cut
from kafka_coord.model.observation import Unreadable
from kafka_coord.model.operations import Decision

MAX_ELECTIONS = 100


class Election(JsonObject, frozen=True):
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


class ClusterHistory(JsonObject, frozen=True, tag_field="version", tag=1):
    """The value of ``/consumers/history``, oldest entries first. An entry that cannot be decoded is left out, and
    ``unreadable`` says so."""

    elections: tuple[Election, ...] = ()
    actions: tuple[Action, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    of_znode: ClassVar[tuple[str, ...]] = ("unreadable",)

    @classmethod
    def from_json(cls, value: fields.Json, where: str, **known: Any) -> Self:
        """Leaves out entries that cannot be decoded, and says so in ``unreadable``."""
        elections, no_election = fields.readable(value, "elections", where, Election.from_json)
        actions, no_action = fields.readable(value, "actions", where, Action.from_json)
        return cls(elections, actions, _unreadable(where, no_election, no_action), **known)


@dataclass(frozen=True, slots=True)
class Trail:
    """The decisions and operator actions of one group, oldest first. An entry that cannot be decoded is left out, and
    ``unreadable`` says so."""

    decisions: tuple[Decision, ...] = ()
    actions: tuple[Action, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> Trail:
        decisions, no_decision = fields.readable(value, "decisions", where, Decision.from_json)
        actions, no_action = fields.readable(value, "actions", where, Action.from_json)
        return cls(decisions, actions, _unreadable(where, no_decision, no_action))


def _unreadable(where: str, *problems: str) -> tuple[Unreadable, ...]:
    return tuple(Unreadable(where, why) for why in problems if why)
