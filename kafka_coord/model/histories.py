"""The histories as their readers see them: what can be decoded of the cluster's and of a group's, and what cannot.

A managed group's history records the operator actions on that group. The cluster history records all others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec
from msgspec import structs

from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import JsonObject, Number, cut
from kafka_coord.model.observation import Unreadable
from kafka_coord.model.operations import MAX_CHANGE, Decision
from kafka_coord.model.partitions import TopicPartition

MAX_ACTIONS = 100
MAX_ACTIONS_BYTES = 50_000
MAX_CLUSTER_ACTIONS_BYTES = 200_000
ONE_COMMAND_MS = 60_000
"""Actions by the same operator and for the same reason belong to one command if they are at most this far apart."""
MAX_TEXT = 500


class Action(JsonObject, frozen=True):
    """An operator action that took effect. ``kind`` is a request's type, or text such as ``pause`` or ``evict c1,
    c2``.

    ``by`` is the user and host (``alice@host``). ``change`` describes the change with the old and new values. Long
    texts are truncated.
    """

    kind: str
    by: str = ""
    at_ms: Number = 0
    reason: str = ""
    change: str = ""

    def __post_init__(self) -> None:
        cut(self, kind=MAX_TEXT, by=MAX_TEXT, reason=MAX_TEXT, change=MAX_CHANGE)

    @property
    def sentence(self) -> str:
        """The action as one line for the log: ``alice@kafka-1: reset-offsets (bug 17): flights 0: - → 0``."""
        why = f" ({self.reason})" if self.reason else ""
        change = f": {self.change}" if self.change else ""
        return " ".join(f"{self.by or 'unknown'}: {self.kind}{why}{change}".split())

    @property
    def logged(self) -> dict[str, str]:
        """The structured fields of the log entry."""
        return {
            "event": "operator_action",
            "action": self.kind,
            "by": self.by,
            "reason": self.reason,
            "change": self.change,
        }


def offsets_change(before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int | None]) -> str:
    """Formats a reset or a deletion for the history: ``flights 0: - → 0, 1: 8 → 0; 3 unchanged``. ``None`` means no
    offset."""
    topics: dict[str, list[str]] = {}
    unchanged = 0
    for tp in sorted(after):
        old, new = before.get(tp), after[tp]
        if old == new:
            unchanged += 1
            continue
        written = (value if value is not None else "-" for value in (old, new))
        topics.setdefault(tp.topic, []).append(f"{tp.partition}: {' → '.join(map(str, written))}")
    same = [f"{unchanged}{_UNCHANGED}"] if unchanged else []
    return "; ".join([*(f"{topic} {', '.join(rows)}" for topic, rows in topics.items()), *same])


_UNCHANGED = " unchanged"
_ONE = r"\d+: (?:-|\d+) → (?:-|\d+)"
_OF_TOPIC = rf"[a-zA-Z0-9._-]+ {_ONE}(?:, {_ONE})*"
_OFFSETS = re.compile(rf"(?:^|: )({_OF_TOPIC}(?:; {_OF_TOPIC})*)(?:; \d+{_UNCHANGED})?$")
_SETS_OFFSETS = ("reset-offsets", "delete-offsets")
"""The kinds of actions whose ``change`` is by :func:`offsets_change`, after the rule if there is one."""
CONVERSION = "the conversion"
"""By whom a converted group's offsets are written: they are those that it had."""


def changed_offsets(action: Action) -> bool:
    """Returns whether the action changed offsets that consumers would have read from."""
    return action.kind in _SETS_OFFSETS and action.by != CONVERSION and not changes_nothing(action.change)


def offsets_before(change: str) -> dict[TopicPartition, int | None] | None:
    """Returns the offsets that an action replaced, from its ``change``, or ``None`` if that does not tell all of them:
    a long one is cut. Of a partition without an offset, the value is ``None``."""
    if len(change) >= MAX_CHANGE or (found := _OFFSETS.search(change)) is None:
        return {} if changes_nothing(change) else None
    before: dict[TopicPartition, int | None] = {}
    for of_topic in found[1].split("; "):
        topic, _, written = of_topic.partition(" ")
        for one in written.split(", "):
            partition, old, *_ = re.split(r": | → ", one)
            before[TopicPartition(topic, int(partition))] = None if old == "-" else int(old)
    return before


def changes_nothing(change: str) -> bool:
    """Returns whether a description by :func:`offsets_change` says that no offset changed."""
    return change.endswith(_UNCHANGED) and _OFFSETS.search(change) is None


def about_group(group: str, change: str = "") -> str:
    """Returns the ``change`` of an action on a group that the cluster history records. :func:`group_and_change` reads
    it."""
    name = group if '"' not in group and group.split() == [group] else json.dumps(group, ensure_ascii=False)
    return f"{_GROUP}{name} {change}".rstrip()


_GROUP = "group "


def group_and_change(change: str) -> tuple[str, str] | None:
    """Returns the group that a ``change`` of the cluster history is about, and the rest, or ``None`` if it is not about
    a group."""
    about = change.removeprefix(_GROUP)
    if about == change:
        return None
    name, _, rest = about.partition(" ")
    if name.startswith('"'):
        try:
            name, end = json.JSONDecoder().raw_decode(about)
        except ValueError:  # a change may be cut
            return None
        rest = about[end:]
    return str(name), rest.strip()


def change_to_group(group: str, change: str) -> str | None:
    """Returns the change without the group's name, or ``None`` if it is about something else."""
    found = group_and_change(change)
    return found[1] if found is not None and found[0] == group else None


def by_command(actions: Iterable[tuple[str | None, Action]]) -> list[list[tuple[str | None, Action]]]:
    """Gathers the actions, each with its group, that one command may have caused: the same by the same operator for the
    same reason, on different groups, each soon after the one before. An action on no group stands alone."""
    commands: list[list[tuple[str | None, Action]]] = []
    last: dict[tuple[str, str, str], list[tuple[str | None, Action]]] = {}
    for group, one in sorted(actions, key=lambda pair: pair[1].at_ms):
        key = (one.kind, one.by, one.reason)
        command = last.get(key, [])
        is_new = not command or one.at_ms - command[-1][1].at_ms > ONE_COMMAND_MS
        if is_new or group is None or any(group == other for other, _ in command):
            commands.append(command := [])
            last[key] = command
        command.append((group, one))
    return commands


def commands_of(actions: Iterable[Action]) -> list[list[tuple[str | None, Action]]]:
    """Returns :func:`by_command` of the cluster history, with the changes to each group."""
    pairs = []
    for one in actions:
        about = group_and_change(one.change)
        pairs.append((None, one) if about is None else (about[0], structs.replace(one, change=about[1])))
    return by_command(pairs)


def encoded_actions(actions: Iterable[Action]) -> list[bytes]:
    return [one.to_bytes() for one in actions]


def newest(encoded: Sequence[bytes], most: int = MAX_ACTIONS, most_bytes: int = MAX_ACTIONS_BYTES) -> list[bytes]:
    """Returns the entries that a history retains: the newest ``most``, up to ``most_bytes`` in total, but always at
    least the last one."""
    retained: list[bytes] = []
    size = 0
    for one in reversed(encoded[-most:]):
        size += len(one)
        if retained and size > most_bytes:
            break
        retained.append(one)
    return retained[::-1]


def kept(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Returns the actions that the cluster history retains: those of the newest :data:`MAX_ACTIONS` commands, up to
    :data:`MAX_CLUSTER_ACTIONS_BYTES` in total."""
    most = sum(map(len, commands_of(actions)[-MAX_ACTIONS:]))
    encoded = newest(encoded_actions(actions), max(1, most), MAX_CLUSTER_ACTIONS_BYTES)
    return tuple(actions[len(actions) - len(encoded) :])


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
