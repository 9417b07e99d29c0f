"""Operators' requests, kept from their arrival until their answer is fetched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace

from kafka_coord.coordinator.reading import read_each, report
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Request, RequestType, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Delete, GetData, Node, Op, ReadResult, SetData, Store

log = logging.getLogger(__name__)


def answer_op(request: Request, result: str, message: str) -> SetData:
    """Writes the answer ("done" or "refused", and a message) into the request's own znode.

    It fails if the znode was written since it was read. If the reply of an answer is lost, the request still looks
    unanswered here, and what the operator was refused must not be done a moment later.
    """
    answered = replace(request, result=result, message=message)
    return SetData(layout.request(request.request_id), fields.dump(answered.to_json()), request.znode_version)


class PendingRequests:
    """The requests under ``/consumers/requests``. Thread-safe: the listener loads them, the handler answers them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._requests: dict[str, Request] = {}
        self._unreadable: set[str] = set()
        self._answered_ms: dict[str, float] = {}

    def load(self, names: Iterable[str]) -> tuple[Request, ...]:
        """Takes in the requests there are now and returns the new unanswered ones. An unreadable one is reported and
        left alone."""
        listed = set(names)
        with self._lock:
            known = self._requests.keys() | self._unreadable
        fresh = sorted(listed - known)
        return self.take(listed, fresh, read_each(self._store, [GetData(layout.request(name)) for name in fresh]))

    def take(
        self, listed: Set[str], fresh: Sequence[str], nodes: Sequence[ReadResult | Unreadable]
    ) -> tuple[Request, ...]:
        """As :meth:`load`, where the new ones among those listed have been read already."""
        newcomers = []
        unreadable: list[Unreadable] = []
        for name, node in zip(fresh, nodes, strict=True):
            where = layout.request(name)
            if isinstance(node, Unreadable):
                unreadable.append(node)
            if not isinstance(node, Node):
                continue
            try:
                newcomers.append(_decoded(name, node))
                self._answered_ms[name] = node.stat.mtime_ms
            except MalformedValue as error:
                unreadable.append(Unreadable(where, error.reason))
        if unreadable:
            report("ignoring a request nobody can read", unreadable)
        with self._lock:
            self._unreadable |= {found.path.rpartition("/")[2] for found in unreadable}
            self._requests = {n: r for n, r in self._requests.items() if n in listed}
            self._unreadable &= listed
            self._answered_ms = {n: at for n, at in self._answered_ms.items() if n in listed}
            self._requests |= {r.request_id: r for r in newcomers}
        return tuple(r for r in newcomers if not r.answered)

    def of_group(self, group: str) -> tuple[Request, ...]:
        """The group's unanswered requests, in the order of their arrival."""
        with self._lock:
            return tuple(
                r
                for _, r in sorted(self._requests.items())
                if r.group == group and not r.answered and r.type is not RequestType.RESIGN
            )

    def answered(self, request: Request) -> None:
        """The handler wrote the answer ``request`` carries."""
        with self._lock:
            if request.request_id in self._requests:
                self._requests[request.request_id] = request
                self._answered_ms[request.request_id] = self._store.clock.time() * 1000

    def read_again(self, path: str) -> None:
        """The request's znode was written since it was read: by an answer whose reply was lost, or by hand."""
        name = path.rpartition("/")[2]
        (node,) = read_each(self._store, [GetData(path)])
        request = None
        with suppress(MalformedValue):
            request = _decoded(name, node) if isinstance(node, Node) else None
        with self._lock:
            self._requests.pop(name, None)
            if request is not None:
                self._requests[name] = request
            elif node is not None:
                self._unreadable.add(name)

    def set_aside(self, path: str) -> None:
        """The request cannot be answered, because its ACL forbids it, so it must not be carried out again and again."""
        name = path.rpartition("/")[2]
        with self._lock:
            if self._requests.pop(name, None) is not None:
                self._unreadable.add(name)
        log.warning("set aside a request that the coordinator may not answer path=%s: see its ACL, delete it", path)

    def resignation(self) -> Request | None:
        """An unanswered request to resign."""
        with self._lock:
            found = [r for _, r in sorted(self._requests.items()) if r.type is RequestType.RESIGN and not r.answered]
        return found[0] if found else None

    def groups(self) -> frozenset[str]:
        """The groups that somebody has asked something about, whether they exist or not."""
        with self._lock:
            return frozenset(r.group for r in self._requests.values() if not r.answered and r.group)

    def stale_answers(self, before_ms: int) -> list[tuple[Op, ...]]:
        """Units that delete answers given before ``before_ms`` (ms since 1970)."""
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


def _decoded(name: str, node: Node) -> Request:
    """Raises :class:`MalformedValue`."""
    where = layout.request(name)
    return replace(Request.from_json(fields.load(node.data, where), name, where), znode_version=node.stat.version)
