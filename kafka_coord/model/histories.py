"""The histories as their readers see them: what can be decoded of the cluster's and of a group's, and what cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka_coord.model import json_fields as fields
from kafka_coord.model.action import MAX_TEXT, Action
from kafka_coord.model.observation import Unreadable
from kafka_coord.model.operations import Decision

MAX_ELECTIONS = 100


@dataclass(frozen=True, slots=True)
class Election:
    """One instance's time as coordinator. Times are ms since 1970. ``ended_ms`` is ``None`` until the term ends, and
    ``why`` says why it ended. An instance that has lost its session cannot record the end of its term, so its successor
    does."""

    broker_id: int
    host: str
    epoch: int
    elected_ms: int
    ended_ms: int | None = None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerid": self.broker_id,
            "host": self.host[:MAX_TEXT],
            "epoch": self.epoch,
            "elected_ms": self.elected_ms,
            "ended_ms": self.ended_ms,
            "why": self.why[:MAX_TEXT],
        }

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> Election:
        return cls(
            broker_id=fields.number(value, "brokerid", where),
            host=fields.text(value, "host", where, ""),
            epoch=fields.number(value, "epoch", where),
            elected_ms=fields.number(value, "elected_ms", where, 0),
            ended_ms=fields.optional_number(value, "ended_ms", where),
            why=fields.text(value, "why", where, ""),
        )


@dataclass(frozen=True, slots=True)
class ClusterHistory:
    """The value of ``/consumers/history``, oldest entries first. An entry that cannot be decoded is left out, and
    ``unreadable`` says so."""

    elections: tuple[Election, ...] = ()
    actions: tuple[Action, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "version": fields.VERSION,
            "elections": [one.to_json() for one in self.elections[-MAX_ELECTIONS:]],
            "actions": [one.to_json() for one in self.actions],
        }

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> ClusterHistory:
        elections, no_election = fields.readable(value, "elections", where, Election.from_json)
        actions, no_action = fields.readable(value, "actions", where, Action.from_json)
        return cls(elections, actions, tuple(Unreadable(where, why) for why in (no_election, no_action) if why))


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
        return cls(decisions, actions, tuple(Unreadable(where, why) for why in (no_decision, no_action) if why))
