"""Writes the cluster history: this coordinator's election, and operator actions that do not concern a managed group."""

from __future__ import annotations

import logging
from collections import deque

from msgspec.structs import replace

from kafka_coord.coordinator.execute import Executor
from kafka_coord.errors import MalformedValue, MultiFailed, NoAuth, NoNode
from kafka_coord.model import Action
from kafka_coord.model import json_fields as fields
from kafka_coord.model.action import kept
from kafka_coord.model.histories import MAX_ELECTIONS, ClusterHistory, Election
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, SetData, Store

log = logging.getLogger(__name__)

_FORBIDDEN = "not recording the cluster history, because the ACL of %s forbids it; see kafka-coord acl check"
_UNKNOWN_END = "its session ended, or it was deposed"


class ClusterHistoryWriter:
    """Records one period of leadership in the cluster history. :meth:`add` is safe to call from any thread; all other
    methods belong to the service's thread."""

    def __init__(self, store: Store, executor: Executor, own: Election) -> None:
        self._store = store
        self._executor = executor
        self._own = own
        self._new: deque[Action] = deque()
        self._recorded = False

    def add(self, action: Action) -> None:
        """Adds an operator action, which the next :meth:`step` records."""
        self._new.append(action)

    def step(self) -> None:
        """Writes any new entries. If this raises :class:`StoreError`, call it again."""
        if self._recorded and not self._new:
            return
        actions = tuple(self._new)
        if self._write(self._own, actions):
            self._recorded = True
            for _ in actions:
                self._new.popleft()

    def end(self, why: str) -> None:
        """Records that this instance's leadership is ending. Call it while this instance still leads."""
        self._write(replace(self._own, ended_ms=self._now_ms(), why=why), tuple(self._new))

    def _write(self, own: Election, actions: tuple[Action, ...]) -> bool:
        """Writes the history. Returns false if someone else wrote it first. If the ACL forbids the write, drops the
        entries and returns true."""
        path = layout.HISTORY
        stored, version = ClusterHistory(), -1
        try:
            node = self._store.get(path)
            version = node.stat.version
            stored = ClusterHistory.from_json(fields.load(node.data, path), path)
        except NoNode:
            pass
        except NoAuth:
            log.warning(_FORBIDDEN, path)
            return True
        except MalformedValue as error:
            log.warning("replacing an unreadable history: %s", error)
        for one in stored.unreadable:
            log.warning("leaving unreadable entries out of a history path=%s reason=%s", one.path, one.reason)
        earlier = [
            one if one.ended_ms is not None else replace(one, ended_ms=own.elected_ms, why=_UNKNOWN_END)
            for one in stored.elections
            if one.epoch != own.epoch
        ]
        new = [one for one in actions if one not in stored.actions]  # they may have been written already
        written = ClusterHistory((*earlier, own)[-MAX_ELECTIONS:], kept([*stored.actions, *new]))
        data = fields.dump(written.to_json())
        try:
            self._executor.write([[Create(path, data) if version < 0 else SetData(path, data, version)]])
        except MultiFailed as error:
            if isinstance(error.cause, NoAuth):
                log.warning(_FORBIDDEN, path)
                return True
            log.debug("reading the history again reason=%s", error)
            return False
        return True

    def _now_ms(self) -> int:
        return int(self._store.clock.time() * 1000)
