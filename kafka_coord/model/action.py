"""Operator actions, as the histories record them. A managed group's history records the actions on that group; the
cluster history records all others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import JsonObject, Number, cut
from kafka_coord.model.partitions import TopicPartition

MAX_ACTIONS = 100
MAX_ACTIONS_BYTES = 50_000
MAX_TEXT = 500
MAX_CHANGE = 2_000


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
    """Formats a reset or a deletion for the history: ``flights 0: - → 0, 1: 8 → 0``. ``None`` means no offset."""
    topics: dict[str, list[str]] = {}
    for tp in sorted(after):
        old, new = (value if value is not None else "-" for value in (before.get(tp), after[tp]))
        topics.setdefault(tp.topic, []).append(f"{tp.partition}: {old} → {new}")
    return "; ".join(f"{topic} {', '.join(rows)}" for topic, rows in topics.items())


def about_group(group: str, change: str = "") -> str:
    """Returns the ``change`` of an action on a group that the cluster history records. :func:`change_to_group` reads
    it."""
    return f"group {_quoted(group)} {change}".rstrip()


def change_to_group(group: str, change: str) -> str | None:
    """Returns the change without the group's name, or ``None`` if it is about something else."""
    about = f"group {_quoted(group)} "
    return f"{change} ".removeprefix(about).strip() if f"{change} ".startswith(about) else None


def _quoted(group: str) -> str:
    """Returns a group's name as one word, so that ``a`` is never taken for ``a b``."""
    return group if '"' not in group and group.split() == [group] else json.dumps(group, ensure_ascii=False)


def encoded_actions(actions: Iterable[Action]) -> list[bytes]:
    return [fields.dump(one.to_json()) for one in actions]


def newest(encoded: Sequence[bytes]) -> list[bytes]:
    """Returns the entries that a history retains: the newest :data:`MAX_ACTIONS`, up to :data:`MAX_ACTIONS_BYTES` in
    total, but always at least the last one."""
    retained: list[bytes] = []
    size = 0
    for one in reversed(encoded[-MAX_ACTIONS:]):
        size += len(one)
        if retained and size > MAX_ACTIONS_BYTES:
            break
        retained.append(one)
    return retained[::-1]


def kept(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Like :func:`newest`, but takes and returns actions instead of encoded entries."""
    return tuple(actions[len(actions) - len(newest(encoded_actions(actions))) :])
