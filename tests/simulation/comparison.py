"""Runs the same random operations on the simulated ZooKeeper and on a real one. Their answers must be equal."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

from kafka_coord.errors import MultiFailed, StoreError
from kafka_coord.zk.store import (
    Check,
    Create,
    Delete,
    GetChildren,
    GetData,
    Listing,
    Node,
    Op,
    SetData,
    Stat,
    Store,
    WatchEvent,
)

_PATHS = ("/a", "/b", "/a/x", "/a/y", "/a/x/d", "/b/x", "/n/x")
_PARENTS = ("/a", "/b", "/n")
_COUNTED = ("/a/x", "/b/x")
"""Prefixes of sequential znodes. They are few, so that some znodes are created, deleted and created again."""

Call = Callable[[Store, Callable[[WatchEvent], None]], Any]


def end_session(_store: Store, _watcher: Callable[[WatchEvent], None]) -> None:
    """The end of a client's session, which :meth:`Answers.ask` causes."""


def sequence_of(seed: int, length: int = 30, clients: int = 2) -> list[tuple[int, str, Call]]:
    """Yields the calls of one seed as (client, kind of call, call)."""
    rng = random.Random(seed)
    calls = [_single(Create(path)) for path in _PARENTS if rng.random() < 0.7]
    calls += [_call(rng) for _ in range(length)]
    return [(rng.randrange(clients), *call) for call in calls]


def _op(rng: random.Random) -> Op:
    path, version = rng.choice(_PATHS), rng.choice((-1, -1, -1, 0, 1, 2))
    kind = rng.randrange(8)
    if kind >= 5:
        path = rng.choice(_COUNTED)
        if rng.random() < 0.5:
            return Create(path, ephemeral=rng.random() < 0.5, sequence=True)
        return Delete(f"{path}{rng.randrange(3):010d}")
    if kind < 2:
        return Create(path, b"%d" % rng.randrange(100), rng.random() < 0.25, rng.random() < 0.3)
    if kind == 2:
        return SetData(path, b"%d" % rng.randrange(100), version)
    return Delete(path, version) if kind == 3 else Check(path, version)


def _call(rng: random.Random) -> tuple[str, Call]:
    path, kind = rng.choice(_PATHS), rng.randrange(10)
    if rng.random() < 0.06:
        return "its session ends", end_session
    watched = rng.random() < 0.6
    if kind <= 2:
        return _single(_op(rng))
    if kind <= 4:
        ops = [_op(rng) for _ in range(rng.randint(1, 4))]
        return f"multi {ops}", lambda store, _: store.multi(ops)
    if kind == 5:
        return f"get {path} {watched}", lambda store, watcher: store.get(path, watcher if watched else None)
    if kind == 6:
        return f"children {path} {watched}", lambda store, w: store.children(path, w if watched else None)
    if kind == 7:
        return f"exists {path} {watched}", lambda store, watcher: store.exists(path, watcher if watched else None)
    if kind == 8 and watched:
        return "arm", lambda store, watcher: store.arm(_PATHS, _PATHS, watcher, [*map(GetData, _PATHS)])
    if kind == 8 and rng.random() < 0.5:
        return f"follow {path}", lambda store, watcher: store.follow(path, watcher)
    if kind == 8:
        return "listings", lambda store, _: store.children_many(_PATHS)
    return "read", lambda store, _: store.read_many([kind(p) for p in _PATHS for kind in (GetData, GetChildren)])


def _single(op: Op) -> tuple[str, Call]:
    return f"{op}", lambda store, _: _one(store, op)


def _one(store: Store, op: Op) -> Any:
    if isinstance(op, Create):
        return store.create(op.path, op.data, ephemeral=op.ephemeral, sequence=op.sequence)
    if isinstance(op, SetData):
        return store.set(op.path, op.data, op.version)
    return store.delete(op.path, op.version) if isinstance(op, Delete) else store.multi([op])


class Answers:
    """The answers of one side, without its zxids and session ids. Each zxid is replaced by its number in order of
    appearance and its rank among all seen so far, so that two sides that order zxids differently give different
    answers."""

    def __init__(self, open_store: Callable[[], Store], clients: int) -> None:
        self._open = open_store
        self.stores = [open_store() for _ in range(clients)]
        self._zxids: dict[int, int] = {}
        self._in_order: list[int] = []
        self.events: list[list[str]] = [[] for _ in self.stores]
        self._ordered = True

    def ask(self, client: int, call: Call) -> str:
        """Makes the call, and returns its answer. Forgets the events of the previous call."""
        for events in self.events:
            events.clear()
        self._ordered = call is not end_session
        if call is end_session:
            self.stores[client].close()
            self.events[client] = []  # events of an ended client do not count
            self.stores[client] = self._open()
            return ""
        try:
            answer = self._shown(call(self.stores[client], self._watcher(client)))
        except MultiFailed as failure:
            answer = f"operation {failure.index}: {type(failure.cause).__name__} {failure.path}"
        except StoreError as error:
            answer = type(error).__name__
        return answer

    def heard(self) -> list[list[str]]:
        """Returns the events that each client has received since the call, in order. The ephemerals of an ended session
        are deleted in any order."""
        return [list(events) if self._ordered else sorted(events) for events in self.events]

    def _watcher(self, client: int) -> Callable[[WatchEvent], None]:
        events = self.events[client]
        return lambda event: events.append(f"{event.type.value} {event.path}")

    def _shown(self, answer: Any) -> str:
        if isinstance(answer, Stat):
            zxids = [self._renamed(zxid) for zxid in (answer.czxid, answer.mzxid, answer.pzxid)]
            sessions = [store.session.session_id for store in self.stores]
            owner = sessions.index(answer.ephemeral_owner) if answer.ephemeral_owner else None
            counts = (answer.version, answer.cversion, answer.data_length, answer.num_children)
            return f"stat {zxids} {owner} {counts}"
        if isinstance(answer, Node):
            return f"{answer.data!r} {self._shown(answer.stat)}"
        if isinstance(answer, Listing):
            return f"{answer.names} {self._shown(answer.stat)}"
        if isinstance(answer, tuple | list):
            return f"[{', '.join(self._shown(found) for found in answer)}]"
        return repr(answer)

    def _renamed(self, zxid: int) -> str:
        if zxid not in self._zxids:
            self._zxids[zxid] = len(self._zxids)
            insort(self._in_order, zxid)
        return f"{self._zxids[zxid]}@{bisect_left(self._in_order, zxid)}"
