"""Benchmarks the socket channel: a crowd of consumers registers, answers pings, and survives a crash."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.bench.children import Child
from kafka_coord.dev.bench.failover.instances import Elected, Instance, await_groups
from kafka_coord.dev.bench.group import held, write_topic, zookeeper, zxid_now
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Setup, Table
from kafka_coord.dev.bench.sockets.crowd import CrowdPlace, CrowdState
from kafka_coord.dev.bench.usage import Meter, open_files
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import Timeout
from kafka_coord.settings import DEFAULT_SESSION_TIMEOUT_MS, DEFAULT_SOCKET_SESSION_TIMEOUT_MS
from kafka_coord.spark.session import find_java
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, Store

_TOPIC = "flights"
_STABLE = str(GroupState.STABLE)
_WITHIN_S = 180.0
_BAR_CONSUMERS, _BAR_SETTLED_S = 5_000, 15.0
_COUNTS = ("connected", "members", "held", "lost", "stopped")
_BUCKET = re.compile(rb'^kafka_coord_socket_ping_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SocketsOptions(BenchOptions):
    """``consumers`` consumers in ``groups`` groups run in ``processes`` processes. All groups read one topic, which has
    a partition for each member of the largest group. Once all consumers read, the benchmark waits ``rest_s`` seconds,
    watches them for ``steady_s`` seconds, and then kills the elected coordinator.
    """

    consumers: int = 5_000
    groups: int = 50
    processes: int = 2
    session_timeout_ms: int = DEFAULT_SOCKET_SESSION_TIMEOUT_MS
    coordinator_session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    rest_s: float = DEFAULT_SOCKET_SESSION_TIMEOUT_MS / 1000
    steady_s: float = 60.0


SMOKE = SocketsOptions(
    consumers=40,
    groups=4,
    session_timeout_ms=20_000,
    coordinator_session_timeout_ms=6_000,
    rest_s=0.5,
    steady_s=6.0,
    judged=False,
)


def run_sockets_bench(options: SocketsOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    with _testbed(directory, options, on_progress) as testbed:
        registering = testbed.register(on_progress)
        steady = testbed.watch(on_progress)
        failover = testbed.fail(on_progress)
    tables = [Table("registering", [registering]), Table("steady", [steady]), Table("failover", [failover])]
    return BenchReport.of("sockets", setup, options, tables, bars(options, steady, failover))


class _Crowd:
    """A process of consumers."""

    def __init__(self, place: CrowdPlace, log: Path) -> None:
        self._child = Child("sockets.crowd", json.dumps(asdict(place)), log)
        self._state = CrowdState()
        self._thread = threading.Thread(target=self._read, name="bench-crowd", daemon=True)
        self._thread.start()

    def state(self) -> CrowdState:
        """Returns the crowd's last report. Raises :class:`Timeout` if the process has ended."""
        if (code := self._child.process.poll()) is not None:
            raise Timeout(f"a consumer process ended unexpectedly with exit code {code}; see {self._child.log}")
        return self._state

    def _read(self) -> None:
        for line in self._child.answers:
            self._state = CrowdState(**json.loads(line))

    def close(self) -> None:
        self._child.end()
        self._thread.join()
        self._child.close()


class _SocketTestbed:
    """Two instances that listen for consumers. ``logs`` is the directory for the crowds' logs."""

    def __init__(
        self, store: Store, instances: Sequence[Instance], hosts: Sequence[str], logs: Path, server: ZooKeeperServer
    ) -> None:
        self._store = store
        self._instances = instances
        self._hosts = tuple(hosts)
        self._logs = logs
        self._server = server
        self._elected = Elected(store)
        self._crowds: list[_Crowd] = []

    def begin(self, options: SocketsOptions) -> None:
        self._options = options
        for instance in self._instances:
            instance.start(self._store)
        self._elected.broker_id(_WITHIN_S)

    def register(self, on_progress: OnProgress) -> dict[str, Any]:
        """Registers all consumers at once and waits until every partition is being read."""
        options = self._options
        each = -(-options.consumers // options.processes)
        elected = self._now()
        began = time.monotonic_ns()
        with Meter(elected.process.pid or 0) as meter:
            for number in range(options.processes):
                first = number * each
                place = CrowdPlace(
                    self._hosts,
                    _TOPIC,
                    options.session_timeout_ms,
                    options.groups,
                    first,
                    min(each, options.consumers - first),
                )
                self._crowds.append(_Crowd(place, self._logs / f"crowd-{number}.log"))
            connected_ns = self._await(lambda state: state.connected >= options.consumers, on_progress, "registered")
            await_groups(elected, options.groups, _STABLE, _WITHIN_S)
            held_ns = self._await(lambda state: state.held >= self._partitions, on_progress, "reading")
            cpu_s = meter.cpu_s()
        return {
            "consumers": options.consumers,
            "groups": options.groups,
            "registered_s": round((connected_ns - began) / 1e9, 2),
            "all_reading_s": round((held_ns - began) / 1e9, 2),
            "coordinator_cpu_s": round(cpu_s, 1),
        }

    def watch(self, on_progress: OnProgress) -> dict[str, Any]:
        """Measures a quiet period with only pings and commits."""
        seconds = self._options.steady_s
        time.sleep(self._options.rest_s)
        elected = self._now()
        on_progress(f"watching pings and commits for {seconds:g} s")
        lost = self._state().lost
        before = _round_trips(elected)
        zxid = zxid_now(self._store)
        with Meter(elected.process.pid or 0) as meter, Meter(self._server.process.pid or 0) as server:
            time.sleep(seconds)
            cpu_s, server_cpu_s = meter.cpu_s(), server.cpu_s()
        after = _round_trips(elected)
        counts = [(bound, count - before.get(bound, 0)) for bound, count in after.items()]
        return {
            "consumers": self._options.consumers,
            "seconds": seconds,
            "coordinator_cpu_percent": round(100 * cpu_s / seconds, 1),
            "zookeeper_cpu_percent": round(100 * server_cpu_s / seconds, 1),
            "coordinator_peak_mib": round(elected.peak_mib()),
            "pings": counts[-1][1] if counts else 0,
            "ping_p50_ms": quantile_ms(counts, 0.5),
            "ping_p99_ms": quantile_ms(counts, 0.99),
            "transactions": zxid_now(self._store) - zxid - 1,
            "memberships_lost": self._state().lost - lost,
            "coordinator_files": open_files(elected.process.pid),
            **held(self._server),
        }

    def fail(self, on_progress: OnProgress) -> dict[str, Any]:
        """Kills the elected instance (``kill -9``), and waits until all consumers have moved to the other instance and
        all partitions are read again.
        """
        before, lost, stopped = self._owned(), self._state().lost, self._state().stopped
        goes = self._now()
        elected = goes.broker_id
        comes = next(one for one in self._instances if one.broker_id != elected)
        on_progress(f"killing the elected coordinator beside broker {elected}")
        killed = time.monotonic_ns()
        goes.process.kill()
        with Meter(comes.process.pid or 0) as meter:
            _, elected_ns = self._elected.other_than(elected, _WITHIN_S)
            back_ns = self._await(self._everybody_reads, on_progress, "reading again", elected_ns)
            stable_ns = await_groups(comes, self._options.groups, _STABLE, _WITHIN_S)
            cpu_s = meter.cpu_s()
        after = self._owned()
        settled_ns = max(back_ns, stable_ns)
        session_s = self._options.coordinator_session_timeout_ms / 1000
        return {
            "consumers": self._options.consumers,
            "elected_s": round((elected_ns - killed) / 1e9, 2),
            "all_back_s": round((back_ns - killed) / 1e9, 2),
            "settled_s": round((settled_ns - killed) / 1e9, 2),
            "after_session_timeout_s": round((settled_ns - killed) / 1e9 - session_s, 2),
            "changed_hands": sum(after.get(path) != data for path, data in before.items()) + len(after.keys() - before),
            "partitions_stopped": self._state().stopped - stopped,
            "memberships_lost": self._state().lost - lost,
            "coordinator_cpu_s": round(cpu_s, 1),
        }

    def close(self) -> None:
        for crowd in self._crowds:
            crowd.close()
        for instance in self._instances:
            instance.process.stop()

    # --- reports -----------------------------------------------------------------------------------------------------

    @property
    def _partitions(self) -> int:
        return self._options.groups * partitions_of(self._options)

    def _everybody_reads(self, state: CrowdState) -> bool:
        return state.connected >= self._options.consumers and state.held >= self._partitions

    def _now(self) -> Instance:
        elected = self._elected.broker_id(_WITHIN_S)
        return next(one for one in self._instances if one.broker_id == elected)

    def _state(self) -> CrowdState:
        """Returns the combined state of all crowds, at the time of the oldest report."""
        states = [crowd.state() for crowd in self._crowds]
        return CrowdState(
            min(one.at_ns for one in states),
            *(sum(getattr(one, name) for one in states) for name in _COUNTS),
        )

    def _await(
        self, reached: Callable[[CrowdState], bool], on_progress: OnProgress, what: str, since_ns: int = 0
    ) -> int:
        """Waits for the first report after ``since_ns`` that meets the condition, and returns its time."""
        told = time.monotonic()

        def done() -> int:
            nonlocal told
            state = self._state()
            if time.monotonic() - told > 2.0:
                told = time.monotonic()
                on_progress(
                    f"{state.connected:,} of {self._options.consumers:,} connected, {state.held:,} partitions read"
                )
            return state.at_ns if state.at_ns > since_ns and reached(state) else 0

        return awaited(done, _WITHIN_S, f"every consumer to be {what}")

    def _owned(self) -> Mapping[str, Any]:
        """Returns the owned partitions in all ledgers."""
        groups = self._store.children(layout.GROUPS)
        listings = self._store.read_many([GetChildren(layout.owners(group)) for group in groups])
        paths = [
            layout.ledger(group, consumer)
            for group, listing in zip(groups, listings, strict=True)
            for consumer in (listing if isinstance(listing, tuple) else ())
        ]
        nodes = self._store.read_many([GetData(path) for path in paths])
        return {
            path: (value["owned"], value["incarnation"])
            for path, node in zip(paths, nodes, strict=True)
            if isinstance(node, Node) and (value := json.loads(node.data))
        }


@contextmanager
def _testbed(directory: Path, options: SocketsOptions, on_progress: OnProgress) -> Iterator[_SocketTestbed]:
    directory.mkdir(parents=True, exist_ok=True)
    on_progress("starting ZooKeeper and two coordinators")
    with (
        zookeeper(directory, ZooKeeperSettings(tick_ms=500, heap_mb=512, max_session_ms=600_000)) as (server, store),
        ExitStack() as left,
    ):
        write_topic(store, _TOPIC, partitions_of(options))
        hosts = [f"{LOOPBACK}:{free_port()}" for _ in range(2)]
        instances = [
            Instance(directory, number, server.connect_string, options.coordinator_session_timeout_ms, host)
            for number, host in enumerate(hosts, start=1)
        ]
        testbed = _SocketTestbed(store, instances, hosts, directory, server)
        left.callback(testbed.close)
        testbed.begin(options)
        yield testbed


def partitions_of(options: SocketsOptions) -> int:
    """Returns the number of partitions of the topic: one for each member of the largest group."""
    return -(-options.consumers // options.groups)


def _round_trips(instance: Instance) -> dict[float, int]:
    """Maps each bound (s) to the number of pings that the instance has answered within it."""
    return {float(bound): int(float(count)) for bound, count in _BUCKET.findall(instance.metrics())}


def quantile_ms(counts: Sequence[tuple[float, int]], q: float) -> float | None:
    """Returns the upper bound (ms) of the histogram bucket that contains the quantile. ``counts`` are cumulative.
    Returns None if there are no values, or if the quantile is above all bounds.
    """
    total = counts[-1][1] if counts else 0
    for bound, count in counts:
        if total and count >= q * total:
            return round(bound * 1000, 1) if bound != float("inf") else None
    return None


def bars(options: SocketsOptions, steady: Mapping[str, Any], failover: Mapping[str, Any]) -> list[Bar]:
    enough = options.consumers >= _BAR_CONSUMERS
    settled_s = failover["after_session_timeout_s"]
    return [
        Bar.at_most(f"memberships of {_BAR_CONSUMERS:,} lost", 0, steady["memberships_lost"], counts=enough),
        Bar.at_most("settled, after the session timeout", _BAR_SETTLED_S, settled_s, " s", counts=enough),
        Bar.at_most("partitions that changed owner during the failover", 0, failover["changed_hands"], counts=enough),
        Bar.at_most("memberships lost during the failover", 0, failover["memberships_lost"], counts=enough),
    ]
