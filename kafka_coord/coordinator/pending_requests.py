"""Keeps operator requests until their responses have been fetched or have become too old."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence, Set

from msgspec.structs import replace

from kafka_coord.coordinator.tolerant_reads import Answer, read_each, report
from kafka_coord.errors import MalformedValue, MultiFailed, NoAuth
from kafka_coord.model import Request, RequestType, Unreadable
from kafka_coord.model.operations import GROUP_REQUESTS
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, Delete, GetData, Node, Op, SetData, Store

log = logging.getLogger(__name__)

_ANSWERED_HERE = frozenset(RequestType) - {RequestType.CONVERT_GROUP}
_OF_GROUPS = _ANSWERED_HERE & GROUP_REQUESTS


def answer_op(request: Request, result: str, message: str) -> SetData:
    """Returns the operation that writes the response ("done" or "refused", and a message) into the request's own znode.
    The write fails if the znode has changed since the request was read, so each request is answered only once."""
    answered = replace(request, result=result, message=message)
    return SetData(layout.request(request.request_id), answered.to_bytes(), request.znode_version)


def unanswered_op(request: Request) -> Check:
    """Returns a check that fails the multi if the request was answered, changed or withdrawn since it was read."""
    return Check(layout.request(request.request_id), request.znode_version)


class PendingRequests:
    """The requests under ``/consumers/requests``, answered or not. Thread-safe: the listener loads requests on one
    thread, and the handler answers them on another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._requests: dict[str, Request] = {}
        self._unreadable: set[str] = set()
        self._answered_ms: dict[str, float] = {}

    def load(self, names: Iterable[str]) -> tuple[Request, ...]:
        """Reads the new requests among ``names``, and returns those that the coordinator has yet to answer.
        Reports unreadable requests but leaves them alone."""
        listed = set(names)
        with self._lock:
            known = self._requests.keys() | self._unreadable
        fresh = sorted(listed - known)
        return self.take(listed, fresh, read_each(self._store, [GetData(layout.request(name)) for name in fresh]))

    def take(self, listed: Set[str], fresh: Sequence[str], nodes: Sequence[Answer]) -> tuple[Request, ...]:
        """Like :meth:`load`, for requests that have already been read."""
        newcomers = self._put(fresh, nodes)
        with self._lock:
            for kept in (self._requests, self._answered_ms):
                for name in kept.keys() - listed:
                    del kept[name]
            self._unreadable &= listed
        return tuple(r for r in newcomers if not r.answered and r.type in _ANSWERED_HERE)

    def _put(self, names: Sequence[str], nodes: Sequence[Answer]) -> list[Request]:
        """Replaces the stored state of the named requests with ``nodes``. Returns the readable requests."""
        readable: dict[str, tuple[Request, float]] = {}
        unreadable: list[Unreadable] = []
        for name, node in zip(names, nodes, strict=True):
            where = layout.request(name)
            if isinstance(node, Unreadable):
                unreadable.append(node)
            if not isinstance(node, Node):
                continue
            try:
                request = Request.from_bytes(node.data, where, znode_version=node.stat.version)
                readable[name] = request, node.stat.mtime_ms
            except MalformedValue as error:
                unreadable.append(Unreadable(where, error.reason))
        if unreadable:
            report("ignoring an unreadable request", unreadable)
        with self._lock:
            for name in names:
                self._requests.pop(name, None)
                self._answered_ms.pop(name, None)
            self._unreadable -= set(names)
            self._unreadable |= {found.path.rpartition("/")[2] for found in unreadable}
            self._requests |= {name: request for name, (request, _) in readable.items()}
            self._answered_ms |= {name: at for name, (_, at) in readable.items()}
        return [request for request, _ in readable.values()]

    def refused(self, error: MultiFailed) -> None:
        """Handles a failed write that a request may have caused. If the request was answered, changed or withdrawn,
        reads it again. If its ACL forbids the response, sets the request aside, so that it is not carried out over and
        over. Raises :class:`StoreError`."""
        parent, _, name = error.path.rpartition("/")
        if parent != layout.REQUESTS:
            return
        if isinstance(error.cause, NoAuth):
            with self._lock:
                if self._requests.pop(name, None) is not None:
                    self._unreadable.add(name)
            log.warning(
                "set aside a request that the coordinator is not allowed to answer path=%s; "
                "fix the request's ACL, or delete the request",
                error.path,
            )
        else:
            log.info("reading a changed request again path=%s", error.path)
            self._put([name], read_each(self._store, [GetData(error.path)]))

    def of_group(self, group: str) -> tuple[Request, ...]:
        """Returns the group's unanswered requests in order of arrival, except requests to resign or to convert the
        group."""
        with self._lock:
            return tuple(
                r
                for _, r in sorted(self._requests.items())
                if r.group == group and not r.answered and r.type in _OF_GROUPS
            )

    def record_answer(self, request: Request) -> None:
        """Records that the handler wrote the response in ``request``."""
        with self._lock:
            if request.request_id in self._requests:
                self._requests[request.request_id] = request
                self._answered_ms[request.request_id] = self._store.clock.time() * 1000

    def get(self, request_id: str) -> Request | None:
        """Returns the request as last read or answered."""
        with self._lock:
            return self._requests.get(request_id)

    def of_no_group(self) -> tuple[Request, ...]:
        """Returns the unanswered requests that do not concern a managed group."""
        with self._lock:
            return tuple(
                r
                for _, r in sorted(self._requests.items())
                if not r.answered and (r.type not in GROUP_REQUESTS or not r.group)
            )

    def stale_answers(self, before_ms: int) -> list[tuple[Op, ...]]:
        """Returns units that delete the requests answered before ``before_ms`` (ms since 1970)."""
        with self._lock:
            return [
                (Delete(layout.request(name)),)
                for name, r in sorted(self._requests.items())
                if r.answered and self._answered_ms.get(name, before_ms) < before_ms
            ]

    def clear(self) -> None:
        with self._lock:
            self._requests.clear()
            self._unreadable.clear()
            self._answered_ms.clear()
