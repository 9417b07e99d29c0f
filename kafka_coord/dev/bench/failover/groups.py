"""Creates many groups in one ZooKeeper. Their consumers register and acknowledge without processes of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping

from kafka_coord.channel.operations import register_ops
from kafka_coord.coordinator.execute import in_parts
from kafka_coord.dev.bench.group import plain_member
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.errors import Timeout
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, GetChildren, GetData, Node, Op, Store

_EVERY_S = 5.0


class ManyGroups:
    """``groups`` groups of ``each`` consumers, all in one session. The consumers register like real ones, but a whole
    group at a time. They acknowledge commands by deleting them, but do not read or commit anything.
    """

    def __init__(self, store: Store, topic: str, groups: int, each: int, prefix: str = "g") -> None:
        self._store = store
        self._topic = topic
        self.names = [f"{prefix}{number:05}" for number in range(groups)]
        self._consumers = [f"c{number:03}" for number in range(each)]

    def register(self, on_progress: OnProgress) -> None:
        value = plain_member(self.names[0], self._topic, self._consumers[0]).registration_value(self._store)
        told = time.monotonic()
        for number, group in enumerate(self.names):
            parents = [layout.group(group), layout.ids(group), layout.channels(group)]
            ops: list[Op] = [Create(path) for path in parents]
            for consumer in self._consumers:
                ops.append(Create(layout.channel(group, consumer)))
                ops += register_ops(group, consumer, value)
            self._store.multi(ops)
            if time.monotonic() - told > _EVERY_S:
                told = time.monotonic()
                on_progress(f"registering: {number + 1:,} of {len(self.names):,} groups")

    def acknowledge_all(self, within_s: float, on_progress: OnProgress) -> None:
        """Acknowledges each consumer's first command, which starts its partitions.

        Raises :class:`Timeout`.
        """
        waiting = [layout.channel(group, consumer) for group in self.names for consumer in self._consumers]
        total = len(waiting)
        deadline = told = time.monotonic()
        deadline += within_s
        while waiting:
            found = self._store.read_many([GetChildren(path) for path in waiting])
            sent = {
                path: commands
                for path, commands in zip(waiting, found, strict=True)
                if isinstance(commands, tuple) and commands
            }
            deletes: list[Op] = [Delete(f"{path}/{name}") for path, names in sent.items() for name in names]
            for ops in in_parts(deletes):
                self._store.multi(ops)
            waiting = [path for path in waiting if path not in sent]
            if time.monotonic() > deadline:
                raise Timeout(f"{len(waiting):,} of {total:,} consumers got no command within {within_s:.0f} s")
            if time.monotonic() - told > _EVERY_S:
                told = time.monotonic()
                on_progress(f"starting: {total - len(waiting):,} of {total:,} consumers have their partitions")
            if not sent:
                time.sleep(0.1)

    def written(self) -> Mapping[str, int]:
        """Returns the zxid of the last write to each target and ledger, by path."""
        paths = [layout.assignment(group) for group in self.names]
        paths += [layout.ledger(group, consumer) for group in self.names for consumer in self._consumers]
        found = self._store.read_many([GetData(path) for path in paths])
        return {path: node.stat.mzxid for path, node in zip(paths, found, strict=True) if isinstance(node, Node)}
