"""Makes znodes of every kind unreadable. An operator repairs each znode with the remedy in docs/trouble.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kafka_coord.model import Request, RequestType, TopicOfOffsets
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, SetData
from tests.simulation.garbage import GARBAGE
from tests.simulation.group_kind import BYSTANDER, GROUP, TOPIC

if TYPE_CHECKING:
    from tests.simulation.faults import FaultInjector

STRAY_BROKER = layout.broker(7)
STRAY_REQUEST = layout.request("request-stray")
HEAL_AGAIN_S = 5.0
"""The interval at which an operator repeats a request while the znode is unreadable. A request may be refused or lost.
"""

KINDS = (
    *("offset", "topic offsets", "registration", "ledger", "command", "assignment", "settings", "pause", "all paused"),
    *("history", "settled", "request", "broker", "topic", "coordinator", "epoch"),
)


class Vandal:
    """Overwrites one znode after another."""

    def __init__(self, injector: FaultInjector) -> None:
        self._injector = injector
        self._cluster = injector.cluster

    def make_bystander(self) -> None:
        """Creates another group, with an offset."""
        offset = layout.offset(BYSTANDER, TOPIC, 0)
        parents = [offset[:at] for at, character in enumerate(offset) if character == "/" and at]
        self._cluster.write(*(Create(path) for path in parents), Create(offset, b"7"))

    def strike(self, for_s: float) -> None:
        """Makes one znode unreadable, and repairs it after ``for_s``."""
        rng, nodes = self._cluster.rng, self._cluster.server.tree.nodes
        found = {kind: paths for kind in KINDS if (paths := sorted(self._paths(kind)))}
        kind = rng.choice(sorted(found))
        path, garbage = rng.choice(found[kind]), rng.choice(GARBAGE)
        was = nodes[path].data if path in nodes else b""
        if was in GARBAGE or layout.CONSUMERS not in nodes:
            return
        if path in _GENERATION and any(nodes[other].data in GARBAGE for other in _GENERATION if other in nodes):
            return
        self._cluster.occurred[f"unreadable {kind}"] += 1
        self._cluster.say(f"{path} becomes unreadable: {garbage!r}, was {was!r}")
        self._cluster.write(SetData(path, garbage) if path in nodes else Create(path, garbage))
        remedy, struck = self._remedy(kind, path, was), nodes[path].mzxid

        def heal() -> None:
            if path in nodes and nodes[path].mzxid == struck:  # no later strike
                self._cluster.say(f"{path} is repaired")
                remedy()
                self._cluster.later(HEAL_AGAIN_S, heal)

        self._cluster.later(for_s, heal)

    def _paths(self, kind: str) -> Iterator[str]:
        """Returns the existing znodes of that kind, and those that may be created."""
        nodes, offsets = self._cluster.server.tree.nodes, layout.offsets(GROUP) + "/"
        if kind in {"offset", "topic offsets"}:
            deep = int(kind == "offset")
            yield from (path for path in nodes if path.startswith(offsets) and path.count("/") - 5 == deep)
        elif kind in {"registration", "ledger", "command"}:
            parent, deep = {"registration": ("ids", 5), "ledger": ("owners", 5), "command": ("channel", 6)}[kind]
            below = f"{layout.group(GROUP)}/{parent}/"
            yield from (path for path in nodes if path.startswith(below) and path.count("/") == deep)
        elif kind == "topic":
            yield from (layout.broker_topic(topic) for topic in self._cluster.partitions)
        else:
            path, parent = _SINGLE[kind]
            if path in nodes or (parent and parent in nodes):
                yield path

    def _remedy(self, kind: str, path: str, was: bytes) -> Callable[[], None]:
        def ask(request: RequestType, consumer: str = "") -> Callable[[], None]:
            return lambda: self._injector.ask(Request(request, GROUP, consumer))

        def write(data: Callable[[], bytes]) -> Callable[[], None]:
            return lambda: self._cluster.write(SetData(path, data()))

        def delete() -> None:
            self._cluster.write(Delete(path))
            if kind in {"pause", "all paused"}:
                self._injector.ask(Request(RequestType.LOOK, GROUP))  # as the command that ends the pause does

        def settings() -> None:
            self._cluster.write(SetData(path, b""))
            self._injector.ask(Request(RequestType.LOOK, GROUP))  # as the command does

        if kind in {"registration", "ledger", "command"}:
            return ask(RequestType.EVICT, path.split("/")[5])
        if kind in {"assignment", "history"}:
            return ask(RequestType.REBALANCE)
        if kind == "topic offsets":  # nobody knows how many partitions there were
            return write(TopicOfOffsets.read(was).identity.encode)
        if kind == "offset":
            return write(lambda: was)
        if kind == "topic":
            return write(lambda: self._cluster.topic_value(path.rpartition("/")[2]))
        if kind == "epoch":
            return write(lambda: str(self._cluster.checker.epoch).encode())
        return settings if kind == "settings" else delete


_SINGLE = {
    "assignment": (layout.assignment(GROUP), ""),
    "settings": (layout.group(GROUP), ""),
    "pause": (layout.paused(GROUP), layout.group(GROUP)),
    "all paused": (layout.PAUSED, layout.CONSUMERS),
    "history": (layout.history(GROUP), ""),
    "settled": (layout.settled(GROUP), ""),
    "request": (STRAY_REQUEST, layout.REQUESTS),
    "broker": (STRAY_BROKER, layout.BROKER_IDS),
    "coordinator": (layout.COORDINATOR, ""),
    "epoch": (layout.COORDINATOR_EPOCH, ""),
}
"""Returns the znode of a kind, and its parent if a missing znode may be created."""
_GENERATION = (layout.assignment(GROUP), layout.history(GROUP))
"""Both znodes have the newest generation. At least one of them must be readable, so they are never unreadable together.
"""
