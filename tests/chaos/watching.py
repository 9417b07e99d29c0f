"""Watches the coordinator, the settled groups, the processes' resources, and dead processes of a run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.cluster.zookeeper import four_letter_word
from kafka_coord.errors import KafkaCoordError, MalformedValue, NoNode
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.offsets import partitions_of, read_committed
from kafka_coord.groups.state import group_state, read_groups
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import CoordinatorInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.chaos.faults import read_process
from tests.chaos.journal import EventWriter, Kind, ResourceWriter, Usage
from tests.chaos.testbed import Actor, ChaosTestbed

_ELECTED_EVERY_S = 0.02
_GROUPS_EVERY_S = 0.5
_USAGE_EVERY_S = 10.0
_MISSED = "IllegalStateException: Committed proposal cached out of order"


class Watch:
    """Watches on its own threads until it is closed. Calls ``on_death`` for a process that ended unexpectedly."""

    def __init__(
        self, testbed: ChaosTestbed, events: EventWriter, resources: ResourceWriter, on_death: Callable[[Actor], None]
    ) -> None:
        self._testbed = testbed
        self._events = events
        self._resources = resources
        self._on_death = on_death
        self._stop = threading.Event()
        self._settled: dict[str, float] = {}
        self.elected: int | None = None
        self._threads = [
            threading.Thread(target=self._each, args=[every_s, look], name=f"watch-{name}", daemon=True)
            for name, every_s, look in (
                ("elected", _ELECTED_EVERY_S, self._look_for_elected),
                ("groups", _GROUPS_EVERY_S, self._look_at_groups),
                ("usage", _USAGE_EVERY_S, self._look_at_usage),
                ("deaths", 1.0, self._look_for_deaths),
            )
        ]
        self._seen_election: tuple[int, int] | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def settled(self) -> bool:
        """Whether every group was settled at the last check."""
        return set(self._testbed.groups()) <= self._settled.keys()

    def wait_until_settled(self, timeout_s: float) -> bool:
        """Waits for a check that begins now or later and finds all groups settled."""
        begin = time.monotonic()
        while time.monotonic() < begin + timeout_s:
            looks = [self._settled.get(group) for group in self._testbed.groups()]
            if all(look is not None and look >= begin for look in looks):
                return True
            time.sleep(0.1)
        return False

    def note_settled(self, t: float) -> None:
        """Records each group that was settled at the last check, which was not after ``t``."""
        for group in self._testbed.groups():
            if group in self._settled:
                self._events.write(Kind.SETTLED, f"group:{group}", t=t)

    def lag(self) -> int | None:
        """Returns how many produced records are not committed yet, in all groups, or None if a server does not
        answer."""
        if not self._testbed.managed_groups():
            return 0
        store = self._testbed.store
        try:
            cluster = read_cluster(store)
            groups = read_groups(store, self._testbed.managed_groups(), cluster)
            reader = OffsetReader(self._testbed.bootstrap, {})
            total = 0
            try:
                for name, snapshot in groups.items():
                    committed = read_committed(store, name, cluster.topics)
                    wanted = partitions_of(snapshot.observation, committed)
                    ends = reader.latest(wanted)
                    if ends.note:
                        return None
                    total += sum(end - (committed.offsets.get(tp) or 0) for tp, end in ends.offsets.items())
            finally:
                reader.close()
        except KafkaCoordError:
            return None
        return total

    def _each(self, every_s: float, look: Callable[[], None]) -> None:
        while not self._stop.wait(every_s):
            with contextlib.suppress(KafkaCoordError):  # ZooKeeper is unreachable; the next check follows
                look()

    def _look_for_elected(self) -> None:
        path = layout.COORDINATOR
        try:
            node = self._testbed.store.get(path)
        except NoNode:
            self.elected = None
            return
        try:
            info = CoordinatorInfo.from_json(fields.load(node.data, path), path)
        except MalformedValue:
            return
        self.elected = info.broker_id
        seen = (node.stat.czxid, info.epoch)
        if seen != self._seen_election:
            self._seen_election = seen
            self._events.write(
                Kind.ELECTED, f"serve:{info.broker_id}", epoch=info.epoch, session=f"{node.stat.ephemeral_owner:#x}"
            )

    def _look_at_groups(self) -> None:
        begin = time.monotonic()
        store, groups = self._testbed.store, self._testbed.managed_groups()
        if not groups:
            return
        try:
            found = read_groups(store, groups, read_cluster(store))
        except KafkaCoordError:
            for group in groups:
                self._settled.pop(group, None)
            raise
        for group, snapshot in found.items():
            self._looked(group, begin, is_settled=group_state(snapshot.observation) is GroupState.STABLE)

    def _looked(self, group: str, begin: float, *, is_settled: bool) -> None:
        """Records the result of a check that began at this time."""
        if not is_settled:
            self._settled.pop(group, None)
            return
        if group not in self._settled:
            self._events.write(Kind.SETTLED, f"group:{group}")
        self._settled[group] = begin

    def _look_at_usage(self) -> None:
        t = time.monotonic()
        for actor in self._testbed.of("consumer", "serve"):
            pid = actor.process.pid
            used = read_process(pid) if pid is not None else None
            if pid is not None and used is not None:
                self._resources.write(Usage(t, actor.target, pid, **used))
        for server in self._testbed.of("zookeeper"):
            if server.busy or server.server is None:
                continue
            for line in four_letter_word(server.server.port, "mntr", timeout_s=2.0).splitlines():
                name, _, value = line.partition("\t")
                if name == "zk_znode_count":
                    self._resources.write(Usage(t, "zookeeper", znodes=int(value)))
                    return

    def _look_for_deaths(self) -> None:
        for actor in self._testbed.of("consumer", "serve", "zookeeper", "kafka", "producer"):
            if not self._testbed.take_dead(actor):
                continue
            detail: dict[str, Any] = {"exit_code": actor.process.exit_code}
            if own_check := _own_check(actor):
                detail["own_check"] = own_check
            self._events.write(Kind.DIED, actor.target, **detail)
            self._on_death(actor)


def _own_check(actor: Actor) -> str:
    """Returns the logged reason why a ZooKeeper server ended itself, or an empty string. Since 3.9.4, a server ends
    itself if it has missed a transaction (ZOOKEEPER-4925)."""
    if not actor.target.startswith("zookeeper:"):
        return ""
    return next((line[:200] for line in actor.process.log_since_start().splitlines() if _MISSED in line), "")
