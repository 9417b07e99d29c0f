"""``kafka-coord bench quiet``: lets a cluster stand that nobody uses, and counts how often its instances lose the right
to write to the groups log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.classic_groups.errors import MOVING, Error
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Setup, Table
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.coordinator import serve_command
from kafka_coord.dev.cluster.jars import KAFKA_VERSION
from kafka_coord.dev.cluster.kafka import Broker, KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.process import ChildProcess, OnProgress
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import BrokerError, SettingsError, Timeout
from kafka_coord.grouplog.term import PARTITIONS
from kafka_coord.kafka.authentication import broker_security
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.settings import host_and_port
from kafka_coord.spark.session import find_java
from kafka_coord.wire.consumer_protocol import encoded_subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import GetData, Node, Store

_TOPIC, _DEAD = "flights", "quiet-dead"
_USER, _PASSWORD = "instance", "quiet-secret"
_STARTS_S, _SETTLES_S = 180.0, 10.0
_LATE_S = 3.0
"""How long after the end of its session a dead member may still be there, in seconds."""
_FIND, _JOIN, _SYNC, _DESCRIBE, _COMMIT = 1, 3, 1, 1, 2
_COMMITTED = 5
"""The number of groups that commit once at the end."""


@dataclass(frozen=True, slots=True)
class QuietOptions(BenchOptions):
    """The cluster stands for ``minutes``. The brokers close a connection that was idle for ``idle_s`` seconds (Kafka's
    default: 600), and one that was authenticated ``reauth_s`` seconds ago (0: never; connections are then not
    authenticated). A member dies at the beginning; its session is ``session_longer_s`` longer than the idle limit."""

    minutes: float = 120.0
    idle_s: float = 600.0
    reauth_s: float = 0.0
    session_longer_s: float = 10.0
    brokers: int = 3

    @property
    def session_s(self) -> float:
        return max(self.idle_s + self.session_longer_s, 6.0)


SMOKE = QuietOptions(minutes=0.2, idle_s=2.0, reauth_s=2.0, session_longer_s=4.0, brokers=1, judged=False)


def run_quiet_bench(options: QuietOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    if options.minutes * 60 < options.session_s + _LATE_S:
        raise SettingsError(
            f"--minutes must be more than {(options.session_s + _LATE_S) / 60:.1f} with this --idle-s, so that the"
            " session of the dead member ends"
        )
    setup = Setup.here(java=find_java().version, kafka=KAFKA_VERSION)
    on_progress(f"starting ZooKeeper, {options.brokers} brokers and an instance beside each")
    with _started(directory, options) as (cluster, store):
        row = _stand(cluster, store, options, on_progress)
    return BenchReport.of("quiet", setup, options, [Table("quiet", [row])], bars(row))


def bars(row: Mapping[str, Any]) -> list[Bar]:
    """Returns the targets: no term ends, and the dead member is gone in time."""
    gone = 0 if row["dead_member_removed"] else 1
    return [
        Bar.at_most("terms that ended", 0, row["ended_terms"]),
        Bar.at_most(f"dead members left {_LATE_S:g} s after the session", 0, gone),
        Bar.at_most("slowest commit after the pause", 1_000, row["slowest_commit_ms"], " ms"),
    ]


@contextmanager
def _started(directory: Path, options: QuietOptions) -> Iterator[tuple[KafkaCluster, Store]]:
    properties = {"connections.max.idle.ms": f"{options.idle_s * 1000:.0f}"}
    if options.reauth_s:
        of_listener = "listener.name.coord"
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        properties |= {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,COORD:SASL_PLAINTEXT",
            f"{of_listener}.sasl.enabled.mechanisms": "PLAIN",
            f"{of_listener}.plain.sasl.jaas.config": f'{login} user_{_USER}="{_PASSWORD}";',
            f"{of_listener}.plain.connections.max.reauth.ms": f"{options.reauth_s * 1000:.0f}",
        }
    settings = KafkaSettings(
        replication=options.brokers,
        for_instances=True,
        properties=properties,
    )
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        zookeeper = running.enter_context(ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings()))
        cluster = running.enter_context(
            KafkaCluster(directory, zookeeper.connect_string, brokers=options.brokers, settings=settings)
        )
        TopicAdmin(cluster.bootstrap_servers).create(_TOPIC, 1, replication=1)
        for broker in cluster.brokers:
            instance = _instance(directory, broker, options)
            running.callback(instance.stop)
            instance.start()
        store = connect(zookeeper.connect_string)
        running.callback(store.close)
        yield cluster, store


def _properties(options: QuietOptions) -> dict[str, str]:
    if not options.reauth_s:
        return {}
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": _USER,
        "sasl.password": _PASSWORD,
    }


def _instance(directory: Path, broker: Broker, options: QuietOptions) -> ChildProcess:
    given = [word for key, value in _properties(options).items() for word in ("--kafka-property", f"{key}={value}")]
    name = f"instance-{broker.broker_id}"
    return ChildProcess(name, [*serve_command(broker), *given], directory / f"{name}.log")


def _stand(cluster: KafkaCluster, store: Store, options: QuietOptions, on_progress: OnProgress) -> dict[str, Any]:
    """Lets the cluster stand. Returns what was counted."""
    awaited(lambda: min(_terms(store), default=-1) >= 0, _STARTS_S, "a term for each partition", every_s=0.5)
    addresses = [host_and_port(one) for one in cluster.instance_servers.split(",")]

    def carry_out(work: Any) -> Any:
        clients = ClusterClient(addresses, broker_security(_properties(options)))

        async def run() -> Any:
            with closing(clients):
                return await work(clients)

        return asyncio.run(run())

    carry_out(_commit_once)
    time.sleep(min(_SETTLES_S, options.minutes * 6))  # terms may still end while the instances start
    before, began = _terms(store), time.monotonic()
    died_at = carry_out(lambda clients: _join_once(clients, options.session_s))
    on_progress(
        f"standing for {options.minutes:g} minutes; a member with a session of {options.session_s:g} s has died"
    )
    _sleep_until(died_at + options.session_s + _LATE_S)
    removed = carry_out(_is_empty)
    _sleep_until(began + options.minutes * 60)
    ended = sum(after - then for after, then in zip(_terms(store), before, strict=True))
    commits_ms = carry_out(_commit_once)
    return {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "idle_s": options.idle_s,
        "reauth_s": options.reauth_s,
        "brokers": options.brokers,
        "ended_terms": ended,
        "session_s": options.session_s,
        "dead_member_removed": removed,
        "slowest_commit_ms": round(max(commits_ms), 1),
    }


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def _terms(store: Store) -> list[int]:
    """Returns the newest term of each partition, or -1 for a partition that was never claimed."""
    nodes = store.read_many([GetData(layout.log_partition(number)) for number in range(PARTITIONS)])
    return [node.stat.version if isinstance(node, Node) else -1 for node in nodes]


# --- requests ---------------------------------------------------------------------------------------------------------


async def _ask(clients: ClusterClient, group: str, name: str, version: int, value: Any, error_of: Any) -> Any:
    """Asks the group's coordinator, again while it is moving or loading."""
    deadline = time.monotonic() + _STARTS_S
    why = ""
    while time.monotonic() < deadline:
        try:
            found = await clients.ask_any("FindCoordinator", _FIND, message("FindCoordinatorRequest")(key=group))
            if not found.error_code:
                response = await clients.to((found.host, found.port)).ask(name, version, value)
                if error_of(response) not in MOVING:
                    return response
                why = Error(error_of(response)).name
        except BrokerError as error:
            why = str(error)
        await asyncio.sleep(0.2)
    raise Timeout(f"{name} was not answered within {_STARTS_S:.0f} s: {why}")


async def _join_once(clients: ClusterClient, session_s: float) -> float:
    """Makes one member join and sync, and never hears of it again. Returns when it was last heard of."""
    form = message("JoinGroupRequest")
    protocol = form.struct("JoinGroupRequestProtocol")(name="range", metadata=encoded_subscription(_TOPIC))
    request = form(
        group_id=_DEAD,
        session_timeout_ms=round(session_s * 1000),
        rebalance_timeout_ms=5_000,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )
    joined = await _ask(clients, _DEAD, "JoinGroup", _JOIN, request, lambda found: found.error_code)
    form = message("SyncGroupRequest")
    one = form.struct("SyncGroupRequestAssignment")(member_id=joined.member_id, assignment=b"all")
    request = form(group_id=_DEAD, generation_id=joined.generation_id, member_id=joined.member_id, assignments=(one,))
    synced = await _ask(clients, _DEAD, "SyncGroup", _SYNC, request, lambda found: found.error_code)
    if synced.error_code:
        raise BrokerError(f"the member could not sync: {Error(synced.error_code).name}")
    return time.monotonic()


async def _is_empty(clients: ClusterClient) -> bool:
    request = message("DescribeGroupsRequest")(groups=(_DEAD,))
    found = await _ask(clients, _DEAD, "DescribeGroups", _DESCRIBE, request, lambda told: told.groups[0].error_code)
    return not found.groups[0].members


async def _commit_once(clients: ClusterClient) -> list[float]:
    """Commits once in each of a few groups, each on a connection of its own. Returns how long each commit took, in
    ms."""
    form = message("OffsetCommitRequest")
    part = form.struct("OffsetCommitRequestPartition")(partition_index=0, committed_offset=1, committed_metadata="")
    topic = form.struct("OffsetCommitRequestTopic")(name=_TOPIC, partitions=(part,))
    took = []
    for number in range(_COMMITTED):
        group = f"quiet-{number}"
        request = form(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,))
        began = time.monotonic()
        done = await _ask(
            clients, group, "OffsetCommit", _COMMIT, request, lambda found: found.topics[0].partitions[0].error_code
        )
        if done.topics[0].partitions[0].error_code:
            raise BrokerError(f"a commit failed: {Error(done.topics[0].partitions[0].error_code).name}")
        took.append((time.monotonic() - began) * 1000)
    return took
