"""Level-triggered watches based on ZooKeeper's one-shot watches, for an owner with one thread.

ZooKeeper reports one change, on a client thread, and drops the watch. Here, the event only marks the path and
wakes the owner, which then calls :meth:`Watches.step`. The step re-arms each marked watch, reads its znode, and calls
its listener with the current value, so several changes between two steps lead to a single call with the last value.

Data watches are set with ``exists``, which also reports creation, so they survive the deletion and re-creation of a
znode (after which kazoo's own ``ChildrenWatch`` is silent). A children watch falls back to ``exists`` while its znode
is missing. After the connection or session has changed, the step re-arms all watches and compares the values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from kafka_coord.errors import StoreError, StoreUnavailable
from kafka_coord.zk.store import GetData, Listing, Node, ReadResult, SessionState, Stat, Store, WatchEvent, WatchType

log = logging.getLogger(__name__)

DataListener = Callable[[Node | None], None]
ChildrenListener = Callable[[tuple[str, ...] | None], None]
GoneListener = Callable[[str], None]

REFUSED_AGAIN_S = 30.0
"""How long to wait, in seconds, before trying again to watch a znode whose ACL forbids reading. An ACL change does not
fire a watch."""


class _Kind(Enum):
    DATA = "data"
    CHILDREN = "children"
    GONE = "gone"


_NEVER = (-1, -1)
"""The state of a znode that has never been read."""


@dataclass(slots=True, eq=False)
class _Watched:
    kind: _Kind
    path: str
    listener: Callable[..., None]
    seen: tuple[int, int] | None = _NEVER
    """The state last reported to the listener, as (czxid, mzxid or cversion), or ``None`` for a missing znode."""
    dropped: bool = False
    complaint: str = ""
    """The last logged failure, so that a persistent failure is logged only once."""


class Watches:
    """All watches of one owner. The owner's thread calls all methods; only the store's callbacks run on other threads.

    ``wake`` is called, on any thread, when :meth:`step` has something to do. Listeners may add and drop watches.

    A listener that raises an exception does not affect other listeners. Its failure is logged with the path, but the
    same failure is not logged twice in a row. The watch stays set, and the next step calls the listener again with the
    current value, so a listener whose own read failed gets another chance, and no event is lost.
    """

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store = store
        self._wake = wake
        self._watched: dict[tuple[_Kind, str], _Watched] = {}
        self._due: dict[_Watched, None] = {}
        self._refused: dict[_Watched, float] = {}
        self._lock = threading.Lock()
        self._fired: dict[str, None] = {}
        """The paths whose watches have fired, in the order in which they fired."""
        self._all_fired = False
        """Whether all watches must be set again, because the connection has broken."""
        self._behind = False
        """Whether a step has begun to set all watches again and has not come through since."""
        self._closed = False
        self._unsubscribe = store.on_session(self._on_session)

    def data(self, path: str, listener: DataListener) -> None:
        """Calls ``listener`` with the znode (``None`` if it is missing) at the next step and after every change. Also
        calls it with ``None`` if the znode was created and deleted in between, or may have been while the connection
        was down."""
        self._add(_Watched(_Kind.DATA, path, listener))

    def children(self, path: str, listener: ChildrenListener) -> None:
        """Calls ``listener`` with the sorted child names (``None`` if the znode is missing) at the next step and after
        every change.

        A child that was deleted and recreated between two steps counts as a change, although the names are the same.
        """
        self._add(_Watched(_Kind.CHILDREN, path, listener))

    def gone(self, paths: Iterable[str], listener: GoneListener) -> None:
        """Calls ``listener`` once for each path, when its current znode has been deleted, even if it has since been
        recreated."""
        for path in paths:
            self._add(_Watched(_Kind.GONE, path, listener))

    def drop(self, path: str) -> None:
        """Forgets every watch on the path."""
        for kind in _Kind:
            self._forget(self._watched.get((kind, path)))

    def close(self) -> None:
        """Forgets all watches. Does not call any listener again."""
        self._closed = True
        self._unsubscribe()
        for watched in self._watched.values():
            watched.dropped = True
        self._watched.clear()
        self._due.clear()
        self._refused.clear()

    def _add(self, watched: _Watched) -> None:
        self._forget(self._watched.get((watched.kind, watched.path)))
        self._watched[watched.kind, watched.path] = watched
        self._due[watched] = None

    def _forget(self, watched: _Watched | None) -> None:
        if watched is None:
            return
        watched.dropped = True
        self._watched.pop((watched.kind, watched.path), None)
        self._due.pop(watched, None)
        self._refused.pop(watched, None)

    def told_all(self) -> bool:
        """Returns whether every listener has received the current state. Ignores znodes whose ACL forbids reading."""
        return all(watched.seen != _NEVER or watched in self._refused for watched in self._watched.values())

    def is_current(self) -> bool:
        """Returns whether all watches have been set again since the connection last broke. Otherwise, what the
        listeners know may be as old as the outage. Any thread may call this method."""
        return not (self._all_fired or self._behind)

    def is_refused(self, path: str) -> bool:
        """Returns whether the ACL forbids watching the znode at ``path``."""
        return any(watched.path == path for watched in self._refused)

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_event(self, event: WatchEvent) -> None:
        """Called on one of the store's threads."""
        with self._lock:
            if event.type is WatchType.CONNECTION:
                self._all_fired = True
            else:
                self._fired[event.path] = None
        self._wake()

    def _on_session(self, state: SessionState) -> None:
        """Called on one of the store's threads. After a reconnect, every watch must be set again."""
        if state is not SessionState.CONNECTED:
            with self._lock:
                self._all_fired = True
        self._wake()

    def _take_fired(self) -> None:
        with self._lock:
            fired, self._fired = self._fired, {}
            everything = self._all_fired
            self._behind = self._behind or everything
            self._all_fired = False
        if everything:
            self._due.update(dict.fromkeys(self._watched.values()))
            return
        for path in fired:
            for kind in _Kind:
                watched = self._watched.get((kind, path))
                if watched is not None:
                    self._due[watched] = None
        now = self._store.clock.monotonic()
        for watched in [w for w, again_at in self._refused.items() if again_at <= now]:
            del self._refused[watched]
            self._due[watched] = None

    def step(self) -> bool:
        """Re-arms the watches that fired and calls the listeners of changed and newly added znodes.

        Returns True if every watch is set (except where an ACL forbids it) and every listener is up to date. Returns
        False if there is no connection or a listener failed. The caller must then call this method again soon, or when
        ``wake`` is called. A step serves each watch at most once, so a znode that changes continuously cannot delay the
        owner.
        """
        served: set[_Watched] = set()
        while not self._closed:
            if self._store.session.state is not SessionState.CONNECTED:
                return False
            self._take_fired()
            due = [watched for watched in self._due if watched not in served]
            if not due:
                break
            served.update(due)
            try:
                self._serve(due)
            except StoreUnavailable as error:
                log.debug("watches are still not set due=%d reason=%s", len(self._due), error)
                return False
        self._behind = False
        return not self._due

    def _serve(self, due: Sequence[_Watched]) -> None:
        """Sets all watches, in one request if possible. Then calls listeners in the order gone, children, data."""
        gone, children, data = (
            [watched for watched in due if watched.kind is kind] for kind in (_Kind.GONE, _Kind.CHILDREN, _Kind.DATA)
        )
        try:
            listings, stats, nodes = self._store.arm(
                [watched.path for watched in children],
                [watched.path for watched in (*gone, *data)],
                self._on_event,
                [GetData(watched.path) for watched in data],
            )
            self._serve_gone(gone, stats[: len(gone)])
            self._serve_children(children, listings)
            self._serve_data(data, stats[len(gone) :], nodes)
        except StoreUnavailable:
            raise
        except StoreError:  # the server refuses one of the watches, so find out which
            if len(due) == 1:
                raise
            for watched in due:
                if watched in self._due:
                    self._serve_alone(watched)

    def _serve_alone(self, watched: _Watched) -> None:
        try:
            self._serve([watched])
        except StoreUnavailable:
            raise
        except StoreError as error:
            self._complain(watched, f"ZooKeeper refuses it; retrying every {REFUSED_AGAIN_S:.0f} s: {error}")
            self._due.pop(watched, None)
            self._refused[watched] = self._store.clock.monotonic() + REFUSED_AGAIN_S

    def _serve_data(self, due: Sequence[_Watched], stats: Sequence[Stat | None], nodes: Sequence[ReadResult]) -> None:
        for watched, stat, node in zip(due, stats, nodes, strict=True):
            if stat is None:
                # reported again although the znode was missing before: it may have existed in between
                self._tell(watched, None, None)
            elif _data_key(stat) == watched.seen:
                self._settled(watched)
            else:
                current = node if isinstance(node, Node) else None
                self._tell(watched, _data_key(current.stat if current else None), current)

    def _serve_children(self, due: Sequence[_Watched], listings: Sequence[Listing | None]) -> None:
        missing = []
        for watched, listing in zip(due, listings, strict=True):
            if listing is None:
                missing.append(watched)
                continue
            key = (listing.stat.czxid, listing.stat.cversion)
            if key == watched.seen:
                self._settled(watched)
            else:
                self._tell(watched, key, listing.names)
        stats = self._store.exists_many([watched.path for watched in missing], self._on_event) if missing else ()
        for watched, stat in zip(missing, stats, strict=True):
            if stat is not None:  # the znode was created in between, so read its children immediately
                with self._lock:
                    self._fired[watched.path] = None
                self._wake()
            if watched.seen is None:
                self._settled(watched)
            else:
                self._tell(watched, None, None)

    def _serve_gone(self, due: Sequence[_Watched], stats: Sequence[Stat | None]) -> None:
        for watched, stat in zip(due, stats, strict=True):
            if stat is None or (watched.seen not in {_NEVER, (stat.czxid, 0)}):
                self._tell(watched, None, watched.path)
            else:
                watched.seen = (stat.czxid, 0)
                self._settled(watched)

    def _settled(self, watched: _Watched) -> None:
        self._due.pop(watched, None)
        watched.complaint = ""

    def _tell(self, watched: _Watched, seen: tuple[int, int] | None, value: object) -> None:
        if watched.dropped:
            return
        try:
            watched.listener(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other watches must not suffer
            self._complain(watched, f"its listener failed and will be called again: {error!r}", trace=error)
            return
        watched.seen = seen
        if watched.kind is _Kind.GONE:
            self._forget(watched)
        self._settled(watched)

    def _complain(self, watched: _Watched, sentence: str, trace: BaseException | None = None) -> None:
        if sentence == watched.complaint:
            return
        watched.complaint = sentence
        log.warning(
            "cannot serve a watch kind=%s path=%s: %s", watched.kind.value, watched.path, sentence, exc_info=trace
        )


def _data_key(stat: Stat | None) -> tuple[int, int] | None:
    return (stat.czxid, stat.mzxid) if stat is not None else None
