"""Reads the log of a table's commits and appends to it."""

from __future__ import annotations

import logging
from pathlib import Path

from kafka_coord.errors import MalformedValue
from kafka_coord.spark.sinks import files
from kafka_coord.spark.sinks.manifest import TableCommit, TableState, commit_name

log = logging.getLogger(__name__)

STATE_EVERY = 50
_STATE = "state.json"


class CommitConflict(Exception):
    """Another writer committed first. ``state`` is the table's current state."""

    def __init__(self, state: TableState) -> None:
        super().__init__(f"the table is already at commit {state.number}")
        self.state = state


class TableLog:
    """Reads and writes a table's ``_commits``. Caches the state, because commits never change. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = TableState()

    def load(self) -> TableState:
        """Returns the table's current state. Raises :class:`MalformedValue` for a log that cannot be read."""
        first = self._known.number < 0
        state = self._refreshed(self._kept() if first else self._known)
        if first and (newest := self._newest()) > state.number:
            state = self._refreshed(state)  # another writer may have just committed it
            if newest > state.number:
                raise MalformedValue(
                    str(self._folder / commit_name(state.number + 1)),
                    f"the commit is missing although commit {newest} exists: restore the file",
                )
        self._known = state
        return state

    def _refreshed(self, state: TableState) -> TableState:
        while (content := _read(self._folder / commit_name(state.number + 1))) is not None:
            state = state.after(TableCommit.decode(content, str(self._folder / commit_name(state.number + 1))))
        return state

    def _newest(self) -> int:
        return max((int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit()), default=-1)

    def commit(self, state: TableState, commit: TableCommit) -> TableState:
        """Appends ``commit`` as the successor of ``state``. Returns the new state. If ``state`` is no longer the
        newest, commits nothing and raises :class:`CommitConflict`.
        """
        number = state.number + 1
        if not files.create(self._folder / commit_name(number), commit.encode()):
            raise CommitConflict(self.load())
        self._known = state.after(commit)
        if number and number % STATE_EVERY == 0:
            self._keep(self._known)
        return self._known

    def _kept(self) -> TableState:
        content = _read(self._folder / _STATE)
        if content is None:
            return TableState()
        try:
            return TableState.decode(content, str(self._folder / _STATE))
        except MalformedValue as error:
            log.warning("reading all commits of the table, because its state file is unreadable: %s", error)
            return TableState()

    def _keep(self, state: TableState) -> None:
        try:
            files.replace(self._folder / _STATE, state.encode())
        except OSError as error:  # the commit exists, and the state file only saves time for readers
            log.warning("cannot write the table's state file, so readers will be slower: %s", error)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
