"""Runs the instances of a failover benchmark, reads their metrics, and watches elections."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from pathlib import Path

from kafka_coord.dev.bench.usage import memory_mib
from kafka_coord.dev.bench.waiting import POLL_S, awaited
from kafka_coord.dev.cluster.coordinator import serve_beside
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.errors import Timeout
from kafka_coord.groups.cluster import read_coordinator
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

_GROUPS = re.compile(rb'^kafka_coord_groups\{state="(\w+)"\} (\S+)$', re.MULTILINE)
_ASK_S = 5.0
_ASK_EVERY_S_PER_GROUP = 20e-6
"""Seconds between scrapes, per group. A scrape counts every group, so scrapes every 20 ms would slow a coordinator with
10,000 groups.
"""


class Instance:
    """One ``serve`` process with its metrics. It can be stopped and started again under its broker id."""

    def __init__(
        self, directory: Path, broker_id: int, zookeeper: str, session_timeout_ms: int, channel: str | None = None
    ) -> None:
        """``channel`` is the address for consumers without ZooKeeper."""
        self.broker_id = broker_id
        self.address = f"{LOOPBACK}:{free_port()}"
        """The address of the HTTP endpoint."""
        more = ["--listen-http", self.address, "--session-timeout-ms", str(session_timeout_ms)]
        more += ["--listen-channel", channel] if channel is not None else []
        name = f"coordinator-{broker_id}"
        self.process = ChildProcess(name, [*serve_beside(broker_id, zookeeper), *more], directory / f"{name}.log")

    def start(self, store: Store) -> None:
        """Starts the instance and waits until it is registered."""
        awaited(
            lambda: store.exists(layout.instance(self.broker_id)) is None, 60, f"instance {self.broker_id} to disappear"
        )
        self.process.start()
        self.process.wait_until(lambda: store.exists(layout.instance(self.broker_id)) is not None, 60.0)

    def groups(self) -> dict[str, int]:
        """Returns the number of groups in each state, among those that the instance has read since its election."""
        try:
            told = self.metrics()
        except OSError:
            return {}
        return {state.decode(): int(float(count)) for state, count in _GROUPS.findall(told)}

    def metrics(self) -> bytes:
        """Returns all metrics of the instance in Prometheus's format. Raises ``OSError``."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=_ASK_S) as answer:
            told: bytes = answer.read()
            return told

    def peak_mib(self) -> float:
        return memory_mib(self.process.pid, "VmHWM")


class Elected:
    """Follows ``/consumers/coordinator``: its holder, and the time of its election (ns, monotonic)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Event()

    def _now(self) -> int | None:
        self._changed.clear()
        self._store.exists(layout.COORDINATOR, lambda _event: self._changed.set())
        found = read_coordinator(self._store)
        return None if found is None else found.broker_id

    def broker_id(self, within_s: float) -> int:
        """Returns the broker id of the elected instance. Waits if there is none. Raises :class:`Timeout`."""
        return self.other_than(None, within_s)[0]

    def other_than(self, broker_id: int | None, within_s: float) -> tuple[int, int]:
        """Waits until an instance other than ``broker_id`` is elected. Returns its broker id, and the time (ns,
        monotonic) at which the benchmark noticed its election. Raises :class:`Timeout`.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            found = self._now()
            if found is not None and found != broker_id:
                return found, time.monotonic_ns()
            self._changed.wait(0.5)
        nobody = "nobody" if broker_id is None else f"no instance other than {broker_id}"
        raise Timeout(f"{nobody} was elected within {within_s:.0f} s")


def await_groups(instance: Instance, groups: int, state: str | None, within_s: float) -> int:
    """Waits until the instance has read ``groups`` groups (in ``state``, if given). Returns the time (monotonic ns)."""

    def there() -> bool:
        found = instance.groups()
        return (sum(found.values()) if state is None else found.get(state, 0)) >= groups

    every_s = max(POLL_S, _ASK_EVERY_S_PER_GROUP * groups)
    awaited(there, within_s, f"{groups:,} groups to be {state or 'read'}", every_s=every_s)
    return time.monotonic_ns()
