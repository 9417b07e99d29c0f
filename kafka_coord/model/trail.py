"""A group's history as its readers see it: what can be decoded, and what cannot."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.model import json_fields as fields
from kafka_coord.model.action import Action
from kafka_coord.model.observation import Unreadable
from kafka_coord.model.operations import Decision


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
