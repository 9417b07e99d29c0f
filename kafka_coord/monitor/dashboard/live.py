"""Keeps the documents of all open pages up to date and sends the changes to the pages.

Each document is read when a watch fires, and at intervals. The interval grows with the CPU time of the last read, which
limits how much of a core even a large document can use. While no page is open, nothing is read, and there is no
ZooKeeper session.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import UNSET, Struct, json

from kafka_coord.errors import (
    BrokerError,
    InvalidName,
    KafkaCoordError,
    MalformedValue,
    NoAuth,
    NotFound,
    StoreError,
    StoreUnavailable,
)
from kafka_coord.groups.group import encode
from kafka_coord.monitor.dashboard.routes import ROWS, TASKS, Route, found
from kafka_coord.monitor.dashboard.sources import NotReadYet, Sources
from kafka_coord.zk.store import Watcher, WatchEvent

log = logging.getLogger(__name__)

LANES = ("state", "lag", "doctor")
"""Each lane of documents has its own thread, so that documents from ZooKeeper alone never wait for brokers or for the
doctor."""
SHARE = 400
"""The shortest interval between reads of a document, as a multiple of the CPU time of a read. A document therefore
costs at most 0.25 % of a core."""
SHARE_OF_NEWS = 50
"""Like :data:`SHARE`, but after a watch event."""
SHARE_OF_FILLING = 3
"""Like :data:`SHARE`, but until all groups have been read. Reading them costs at most a quarter of a core."""
_LEAST_S = 0.1
_AGAIN_S = 0.2
LINGER_S = 15.0
"""A document is kept up to date for this many seconds after its last page has closed, in case the page is only
reloading."""
MOST_WAITING = 200
"""The maximum number of events queued for a reader. A reader that falls further behind is disconnected; its page then
reconnects and receives whole documents again."""
MAX_DOCUMENTS = 500

Open = Callable[[Callable[[], None]], Sources]
"""Opens a session that calls the given function when groups change."""


@dataclass(frozen=True, slots=True)
class PageEvent:
    """An event for the readers of a document. ``kind`` is ``document`` (a whole document), ``change`` or ``trouble``.
    ``data`` is JSON. ``status`` is an HTTP status."""

    kind: str
    path: str
    data: bytes
    status: int = 200


class Reader:
    """One open page. :meth:`next` returns ``None`` if there is no event within ``timeout_s``."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[PageEvent | None] = queue.Queue(MOST_WAITING)
        self.over = False
        """Whether the reader was too slow, or the server is stopping."""

    def put(self, event: PageEvent | None) -> None:
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self.over = True

    def next(self, timeout_s: float) -> PageEvent | None:
        if self.over:
            return None
        try:
            return self._waiting.get(timeout=timeout_s)
        except queue.Empty:
            return None


@dataclass(slots=True, eq=False)
class _Document:
    path: str
    route: Route
    parameters: Mapping[str, str]
    fired: Watcher = lambda _: None
    """The document's watcher. Always the same object, so that it watches each path only once."""
    armed: bool = False
    """Whether the document's watches are set and none has fired."""
    readers: list[Reader] = field(default_factory=list)
    uses: int = 0
    """The number of other documents that need this document."""
    left_at: float = 0.0
    due: float = 0.0
    read_at: float = 0.0
    cpu_s: float = 0.0
    busy: bool = False
    value: Any = None
    shown: PageEvent | None = None
    """The first event for a new reader: the whole document, or the error."""

    def wanted(self, now: float) -> bool:
        return bool(self.readers or self.uses) or now < self.left_at + LINGER_S


class Live:
    """The documents of the open pages. Thread-safe."""

    def __init__(self, open_sources: Open) -> None:
        self._open = open_sources
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._documents: dict[str, _Document] = {}
        self._sources: Sources | None = None
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            for document in self._documents.values():
                for reader in document.readers:
                    reader.over = True
                    reader.put(None)
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(10)
        if self._sources is not None:
            self._sources.close()
            self._sources = None

    def join(self, paths: Iterable[str]) -> Reader:
        """Returns a reader of the documents at ``paths``. The reader first receives each document as a whole. Raises
        :class:`NotFound`."""
        reader = Reader()
        routed = [(path, *found(path)) for path in dict.fromkeys(paths)]
        with self._changed:
            new = sum(path not in self._documents for path, _, _ in routed)
            if len(self._documents) + new > MAX_DOCUMENTS:
                raise NotFound(f"too many documents are open (limit {MAX_DOCUMENTS}); close some pages and try again")
            for path, route, parameters in routed:
                document = self._use(path, route, parameters)
                document.readers.append(reader)
                if document.shown is not None:
                    reader.put(document.shown)
            self._start()
            self._changed.notify_all()
        return reader

    def leave(self, reader: Reader) -> None:
        with self._changed:
            for document in self._documents.values():
                if reader in document.readers:
                    document.readers.remove(reader)
                    document.left_at = time.monotonic()

    def get(self, path: str, timeout_s: float = 9.0) -> PageEvent:
        """Returns the current document, or an error after ``timeout_s``. Raises :class:`NotFound`."""
        reader = self.join([path])
        try:
            event = reader.next(timeout_s)
        finally:
            self.leave(reader)
        return event or PageEvent(
            "trouble", path, json.encode(f"timed out after {timeout_s:g} s waiting for the document"), 503
        )

    # --- inside the lock ---------------------------------------------------------------------------------------------

    def _use(self, path: str, route: Route, parameters: Mapping[str, str]) -> _Document:
        document = self._documents.get(path)
        if document is None:
            document = self._documents[path] = _Document(path, route, parameters, left_at=time.monotonic())
            document.fired = partial(self._fired, document)
            for other in route.also:
                needed = _filled(other, path, route)
                one = TASKS.get(needed)
                self._use(needed, *((one, {}) if one is not None else found(needed))).uses += 1
        return document

    def _forget(self, now: float) -> None:
        for path, document in list(self._documents.items()):
            if not document.wanted(now) and not document.busy:
                del self._documents[path]
                for other in document.route.also:
                    needed = self._documents.get(_filled(other, path, document.route))
                    if needed is not None:
                        needed.uses -= 1
                        needed.left_at = now

    def _start(self) -> None:
        if not self._threads and not self._stopping:
            self._threads = [
                threading.Thread(target=self._run, args=(lane,), name=f"dashboard-{lane}", daemon=True)
                for lane in LANES
            ]
            for thread in self._threads:
                thread.start()

    # --- the threads -------------------------------------------------------------------------------------------------

    def _run(self, lane: str) -> None:
        while True:
            with self._changed:
                document, unused = self._next(lane)
                if document is not None:
                    document.busy, document.due = True, math.inf
                elif unused is None:
                    return
            if unused is not None:
                unused.close()  # outside the lock, because watchers take it
            if document is None:
                continue
            document.read_at, began = time.monotonic(), time.thread_time()
            try:
                self._refresh(document)
            except Exception:
                log.exception("cannot read a dashboard document path=%s", document.path)
                self._trouble(document, "an unexpected error; see the instance's log", 500)
            document.cpu_s = time.thread_time() - began
            with self._changed:
                document.busy = False
                self._plan(document)
                self._changed.notify_all()

    def _next(self, lane: str) -> tuple[_Document | None, Sources | None]:
        """Waits until a document of the lane is due, and returns it. If no documents are left, returns the session
        instead, to be closed. Returns neither when the server is stopping."""
        while True:
            now = time.monotonic()
            self._forget(now)
            if self._stopping:
                return None, None
            if not self._documents and self._sources is not None:
                unused, self._sources = self._sources, None
                return None, unused
            mine = [one for one in self._documents.values() if one.route.lane == lane]
            if not mine:
                self._changed.wait(1.0 if self._documents else None)
                continue
            document = min(mine, key=lambda one: one.due)
            if document.due <= now:
                return document, None
            self._changed.wait(min(1.0, document.due - now))

    def _opened(self) -> Sources:
        with self._opening:
            if self._stopping:
                raise StoreUnavailable("the dashboard is stopping")
            if self._sources is None:
                self._sources = self._open(self._rows_changed)
            return self._sources

    def _refresh(self, document: _Document) -> None:
        try:
            sources = self._opened()
            self._watch(sources, document)
            value = document.route.read(sources, **document.parameters)
        except NotReadYet:
            with self._changed:
                document.due = min(document.due, document.read_at + _AGAIN_S)
        except (NotFound, InvalidName) as error:
            self._trouble(document, str(error), 404)
        except (KafkaCoordError, OSError) as error:
            # 503 also for a value that another wrote and nobody can decode: it is not a fault of this server
            passing = isinstance(error, StoreUnavailable | BrokerError | MalformedValue | OSError)
            status = 503 if passing else 500
            self._trouble(document, str(error), status)
        else:
            self._publish(document, value)

    def _plan(self, document: _Document) -> None:
        """Sets the time of the next read, unless a watch event has already set an earlier one."""
        now = time.monotonic()
        has_more = document.route.path == ROWS and document.value
        if has_more:
            for other in self._documents.values():
                if other.route.of_rows:
                    self._hurry(other)
        pause = document.cpu_s * SHARE_OF_FILLING if has_more else max(document.route.every_s, document.cpu_s * SHARE)
        soon = now + max(_LEAST_S, document.cpu_s * SHARE_OF_NEWS)
        document.due = min(now + pause, max(soon, document.due))

    def _watch(self, sources: Sources, document: _Document) -> None:
        children, data = document.route.watched(**document.parameters)
        if (children or data) and not document.armed:
            document.armed = True  # set first, because a watch may fire before arm() returns
            try:
                sources.store.arm(children, data, document.fired)
            except NoAuth:
                document.armed = False  # the document is still read at intervals, and lists the unreadable znodes
            except StoreError:
                document.armed = False
                raise

    def _fired(self, document: _Document, event: WatchEvent) -> None:
        del event
        with self._changed:
            document.armed = False
            self._hurry(document)

    def _hurry(self, document: _Document) -> None:
        soon = document.read_at + max(_LEAST_S, document.cpu_s * SHARE_OF_NEWS)
        document.due = min(document.due, max(soon, time.monotonic()))
        self._changed.notify_all()

    def _rows_changed(self) -> None:
        with self._changed:
            rows = self._documents.get(ROWS)
            if rows is not None:
                self._hurry(rows)

    def _publish(self, document: _Document, value: Any) -> None:
        if document.route.path in TASKS:
            document.value, document.shown = value, None
            return
        whole = PageEvent("document", document.path, encode(value))
        if document.shown is None or document.shown.kind != "document":
            event = whole
        elif whole.data == document.shown.data:
            return
        else:
            change = PageEvent("change", document.path, encode(changes(document.value, value)))
            event = change if len(change.data) < len(whole.data) else whole
        with self._changed:
            document.value, document.shown = value, whole
            self._tell(document, event)

    def _trouble(self, document: _Document, message: str, status: int) -> None:
        event = PageEvent("trouble", document.path, json.encode(message), status)
        with self._changed:
            if document.shown == event:
                return
            document.shown, document.value = event, None
            self._tell(document, event)
        if document.route.path in TASKS:
            log.info("the dashboard cannot read %s: %s", document.path, message)

    def _tell(self, document: _Document, event: PageEvent) -> None:
        for reader in document.readers:
            reader.put(event)


def _filled(other: str, path: str, route: Route) -> str:
    """Returns the route ``other`` with its parameters filled in from ``path``, still percent-encoded."""
    parts = path.partition("?")[0].split("/")
    given = {part: parts[at] for at, part in enumerate(route.path.split("/")) if part.startswith("{")}
    return "/".join(given.get(part, part) for part in other.split("/"))


Change = list[Any]


def changes(old: Any, new: Any) -> list[Change]:
    """Returns the changes from ``old`` to ``new``, which keep updates to pages small.

    A change ``[path, value]`` replaces the value at that path (keys and indexes). ``[path]`` removes a key, and
    ``[path, values, "append"]`` appends to a list. The page applies the changes in order (assets/live.js).
    """
    return list(_changes(old, new, []))


def _changes(old: Any, new: Any, path: list[str | int]) -> Iterator[Change]:
    if old == new and type(old) is type(new):
        return
    if isinstance(old, Struct) and type(old) is type(new) and not old.__struct_config__.array_like:
        old, new = _fields(old), _fields(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield [[*path, key]]
        for key, value in new.items():
            if key in old:
                yield from _changes(old[key], value, [*path, key])
            else:
                yield [[*path, key], value]
    elif isinstance(old, list) and isinstance(new, list) and 0 < len(old) <= len(new):
        for at, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from _changes(before, after, [*path, at])
        if len(new) > len(old):
            yield [path, new[len(old) :], "append"]
    else:
        yield [path, new]


def _fields(document: Struct) -> dict[str, Any]:
    """Returns the fields that are encoded."""
    names = zip(document.__struct_encode_fields__, document.__struct_fields__, strict=True)
    found = {encoded: getattr(document, name) for encoded, name in names}
    return {name: value for name, value in found.items() if value is not UNSET}
