"""What the thread of the managed groups' terms watches in ZooKeeper: the targets of groups whose members wait for their
shares, and operators' requests to convert groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from kafka_coord.coordinator.image import decode_assignment
from kafka_coord.coordinator.pending_requests import answer_op
from kafka_coord.errors import Fenced, MalformedValue, MultiFailed
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import PartitionSet, Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import write_fenced
from kafka_coord.zk.store import Check, GetData, Node, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

Target = Mapping[str, PartitionSet]
"""Maps each consumer to its share."""


class Targets:
    """Watches the targets of groups. Calls ``tell`` with a group's target when it is first read, and after each change.
    Not thread-safe."""

    def __init__(self, store: Store, wake: Callable[[], None], tell: Callable[[str, Target], None]) -> None:
        self._watches, self._tell = Watches(store, wake), tell
        self._followed: set[str] = set()

    def step(self, wanted: set[str]) -> None:
        """Watches the targets of the given groups, and of no others. Raises :class:`StoreUnavailable`."""
        for group in self._followed - wanted:
            self._watches.drop(layout.assignment(group))
        for group in wanted - self._followed:
            self._watches.data(layout.assignment(group), partial(self._changed, group))
        self._followed = wanted
        self._watches.step()

    def _changed(self, group: str, node: Node | None) -> None:
        path = layout.assignment(group)
        target: Target = {}
        if node is not None:
            try:
                target = decode_assignment(path, node).members
            except MalformedValue as error:
                log.warning("cannot read the target of group=%s: %s", group, error)
        self._tell(group, target)

    def close(self) -> None:
        self._watches.close()


class ConversionRequests:
    """Watches for unanswered requests to convert groups. Only :meth:`answer` is thread-safe.

    Passes each request to ``carry_out`` once in every term in which this instance serves the request's group. Sets the
    request's ``unchanged_since`` to the zxid at which the request was created.
    """

    def __init__(self, store: Store, watches: Watches, carry_out: Callable[[Request], None]) -> None:
        self._store, self._carry_out = store, carry_out
        self._known: dict[str, Request | None] = {}
        """The requests by znode name. ``None`` stands for a request that is unreadable, answered or of another type."""
        self._passed_on: dict[str, int] = {}
        watches.children(layout.REQUESTS, self._listed)

    def _listed(self, names: tuple[str, ...] | None) -> None:
        listed = names or ()
        self._known = {name: self._known[name] for name in listed if name in self._known}
        self._passed_on = {name: term for name, term in self._passed_on.items() if name in self._known}
        fresh = [name for name in listed if name not in self._known]
        nodes = self._store.read_many([GetData(layout.request(one)) for one in fresh]) if fresh else ()
        for name, node in zip(fresh, nodes, strict=True):
            self._known[name] = _conversion(name, node) if isinstance(node, Node) else None

    def pass_on(self, term_of: Callable[[int], int | None]) -> None:
        """Passes on the requests that can be carried out. ``term_of`` returns this instance's term for a partition of
        the groups log, or ``None`` if this instance does not serve the partition."""
        for name, request in self._known.items():
            term = None if request is None else term_of(partition_of(request.group))
            if request is not None and term is not None and self._passed_on.get(name) != term:
                self._passed_on[name] = term
                self._carry_out(request)

    def answer(self, request: Request, term: int, result: str, message: str) -> None:
        """Answers the request. Does nothing if the term is over, or if the request was withdrawn or has already been
        answered. Raises :class:`StoreError`."""
        fence = Check(layout.log_partition(partition_of(request.group)), term)
        stored = replace(request, unchanged_since=0)
        with suppress(Fenced, MultiFailed):
            write_fenced(self._store, fence, [(answer_op(stored, result, message),)])


def _conversion(name: str, node: Node) -> Request | None:
    where = layout.request(name)
    try:
        value = fields.load_object(node.data, where)
        if value.get("type") != RequestType.CONVERT_GROUP:
            return None
        request = Request.from_json(value, where, znode_version=node.stat.version)
    except MalformedValue:
        return None  # the elected coordinator reports it
    return None if request.answered else replace(request, unchanged_since=node.stat.czxid)
