"""Faults of the coordination tree: it is lost and restored from an older backup, while instances of the old tree go on
or come back; and the stored number of a term jumps ahead, so that producer ids are skipped.

They are drawn on their own, so that they take nothing from the other kinds.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from kafka_coord.errors import KafkaCoordError
from kafka_coord.grouplog.trees import claim_generation
from tests.simulation.groups.instances import WALL_START_MS, Connection, Instance, Znode
from tests.simulation.groups.loop import Process

if TYPE_CHECKING:
    from tests.simulation.groups.history import GroupHistory

OF_TREES = frozenset({"restore", "ahead"})
_AGAIN_S = 0.25
_MOST_BEHIND = 6
_ID = 1 << 15


class TreeFaults:
    """``few`` is true if all of the kinds happen. Otherwise, few histories have them."""

    def __init__(self, history: GroupHistory, kinds: frozenset[str], *, few: bool) -> None:
        self._history, self._rng = history, random.Random(f"trees {history.seed}")
        is_drawn = self._rng.random() < 0.25 or few
        self._kinds = sorted(kinds & OF_TREES) if is_drawn else []

    def start(self) -> None:
        for kind in self._kinds:
            self._history.world.after(self._rng.uniform(2.0, 6.0), getattr(self, f"_{kind}"))

    def _ahead(self) -> None:
        znode = self._history.znode
        znode.term = max(znode.term, znode.version) + self._rng.randint(1, 3) * _ID
        self._history.say(f"the stored term jumps to {znode.term}")
        twin = self._history.instance_of(self._history.log.leader, znode)
        self._goes_on(twin)  # it claims, while the present term goes on

    def _restore(self) -> None:
        """A new tree, with the number of an older backup, claims the log. Then the instances are started again with
        the new tree; of some, the process of the old tree goes on for a while."""
        history, old = self._history, self._history.znode
        backup = self._rng.choice([0, max(0, old.term - self._rng.randint(0, _MOST_BEHIND))])
        number = old.record.generation + 1
        record = structs.replace(old.record, tree=f"t{number}", generation=number)
        history.say(f"the tree is lost, and restored with term {backup} and generation {number}")
        process = Process(history.world, f"restore-{number}")
        history.processes.append(process)
        process.start(lambda: self._restored(process, old, Znode(0, record, backup)))

    async def _restored(self, process: Process, old: Znode, znode: Znode) -> None:
        history, world = self._history, self._history.world

        async def claim(_partition: int, newest: int) -> Any:
            return znode.claim(None, world.now, newest)

        while True:
            at: Any = SimpleNamespace(net=history.net, process=process, log=history.log, broker=history.log.leader)
            connection: Any = Connection(at)
            try:
                now_ms = lambda: WALL_START_MS + int(world.now * 1000)  # noqa: E731
                await claim_generation(connection, history.log.partition, znode.record, claim, now_ms)
                break
            except KafkaCoordError:
                await asyncio.sleep(_AGAIN_S)
            finally:
                connection.close()
        history.say(f"generation {znode.record.generation} has claimed the log")
        history.znode = znode
        for broker, instance in list(history.instances.items()):
            history.processes.append(instance.process)
            if self._rng.random() < 0.5 and not history.calm:
                self._goes_on(instance)
            else:
                instance.process.killed = True
            history.begin_again(broker)
        if not history.calm and self._rng.random() < 0.5:
            self._goes_on(history.instance_of(self._rng.choice(history.log.brokers), old))

    def _goes_on(self, instance: Instance) -> None:
        """Lets an instance of the old tree live for a while: its address may still be known to clients."""
        self._history.twins.append(instance)
        self._history.world.after(self._rng.uniform(0.5, 5.0), lambda: self._history.without(instance))
