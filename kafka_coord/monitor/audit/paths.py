"""Parses the paths that :mod:`kafka_coord.zk.layout` builds."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from kafka_coord.zk import layout

ROOTS = (layout.CONSUMERS, layout.BROKER_TOPICS)
"""The only paths that the audit replays. All others in the log belong to Kafka or to other applications."""

_MAX_KNOWN = 200_000


class Kind(Enum):
    EPOCH = auto()
    COORDINATOR = auto()
    INSTANCE = auto()
    REQUEST = auto()
    ALL_PAUSED = auto()
    RETENTION = auto()
    TOPIC = auto()
    GROUP = auto()
    MEMBERS = auto()
    """``ids``, the parent of all registrations."""
    REGISTRATION = auto()
    LEDGER = auto()
    CHANNEL = auto()
    COMMAND = auto()
    TARGET = auto()
    HISTORY = auto()
    SETTLED = auto()
    TOPIC_OFFSETS = auto()
    OFFSET = auto()
    PAUSED = auto()
    OTHER = auto()


class Znode(NamedTuple):
    """A parsed path. ``name`` is a consumer, topic or instance. ``leaf`` is a command or a partition."""

    kind: Kind
    group: str = ""
    name: str = ""
    leaf: str = ""


_OTHER = Znode(Kind.OTHER)
_SINGLE = {
    layout.COORDINATOR_EPOCH: Znode(Kind.EPOCH),
    layout.COORDINATOR: Znode(Kind.COORDINATOR),
    layout.PAUSED: Znode(Kind.ALL_PAUSED),
    layout.RETENTION: Znode(Kind.RETENTION),
}
_BELOW_GROUP = {
    ("ids", 0): Kind.MEMBERS,
    ("ids", 1): Kind.REGISTRATION,
    ("owners", 1): Kind.LEDGER,
    ("channel", 1): Kind.CHANNEL,
    ("channel", 2): Kind.COMMAND,
    ("offsets", 1): Kind.TOPIC_OFFSETS,
    ("offsets", 2): Kind.OFFSET,
    ("assignment", 0): Kind.TARGET,
    ("history", 0): Kind.HISTORY,
    ("settled", 0): Kind.SETTLED,
    ("paused", 0): Kind.PAUSED,
}
_PARENTS = (
    (f"{layout.COORDINATORS}/", Kind.INSTANCE),
    (f"{layout.REQUESTS}/", Kind.REQUEST),
    (f"{layout.BROKER_TOPICS}/", Kind.TOPIC),
)
_GROUPS = f"{layout.GROUPS}/"


class Znodes:
    """Parses paths and caches the results, because the same paths recur."""

    def __init__(self) -> None:
        self._known: dict[str, Znode] = {}

    def of(self, path: str) -> Znode:
        znode = self._known.get(path)
        if znode is None:
            znode = _znode(path)
            if znode.kind not in {Kind.COMMAND, Kind.REQUEST}:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[path] = znode
        return znode


def _znode(path: str) -> Znode:
    if path.startswith(_GROUPS):
        group, *rest = path[len(_GROUPS) :].split("/")
        if not rest:
            return Znode(Kind.GROUP, group)
        kind = _BELOW_GROUP.get((rest[0], len(rest) - 1))
        return Znode(kind, group, *rest[1:]) if kind is not None else Znode(Kind.OTHER, group)
    for prefix, kind in _PARENTS:
        if path.startswith(prefix):
            name, _, below = path[len(prefix) :].partition("/")
            return Znode(kind, name=name) if not below else _OTHER
    return _SINGLE.get(path, _OTHER)
