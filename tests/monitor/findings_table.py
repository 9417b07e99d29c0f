"""For each finding of the doctor, an input in which it appears, and one nearby in which it must not.

The inputs are what the checks have read. Where a check asks others itself, the table replaces their answers; the tests
of each check ask real servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from msgspec import structs

from kafka_coord.errors import BrokerError, MalformedValue, NoAuth, NoNode, StoreUnavailable
from kafka_coord.grouplog.records import Claim
from kafka_coord.grouplog.term import PARTITIONS
from kafka_coord.grouplog.trees import LogTree
from kafka_coord.groups.group import OffsetRow, Verdict
from kafka_coord.groups.instances import InstanceDirectory
from kafka_coord.groups.lag_trend import Hot, Trend, Trends
from kafka_coord.model import (
    Action,
    Broker,
    GroupKind,
    GroupSettings,
    Listener,
    PartitionSet,
    Pause,
    TopicPartition,
    Unreadable,
)
from kafka_coord.model.assignment import CommandType
from kafka_coord.model.histories import ClusterHistory, Election
from kafka_coord.model.names import LOG_PARTITIONS
from kafka_coord.model.offsets import Retention
from kafka_coord.monitor import doctor
from kafka_coord.monitor.doctor import (
    groups,
    instances,
    kafka_clients,
    zookeeper,
)
from kafka_coord.monitor.doctor.findings import Finding
from kafka_coord.monitor.doctor.zookeeper import ServerFacts
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Migration
from kafka_coord.zk.root import ClusterRecord, MirrorTrouble, Source
from kafka_coord.zk.store import GetChildren, Node, Read, Stat

NOW_MS = 1_800_000_000_000
DAY_MS, HOUR_MS = 24 * 3_600_000, 3_600_000
Checked = Callable[[], Iterable[Finding]]


@dataclass(frozen=True)
class Case:
    """``appears`` yields the finding with these ``words``. ``nearby`` yields nothing at WARNING or above."""

    words: str
    appears: Checked
    nearby: Checked


def of(**given: Any) -> Any:
    """A value with these attributes."""
    return SimpleNamespace(**given)


def replaced(module: Any, checked: Checked, **names: Any) -> Checked:
    """The check with these names of its module replaced."""

    def run() -> list[Finding]:
        with ExitStack() as stack:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
            return list(checked())

    return run


def answering(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


# --- ZooKeeper --------------------------------------------------------------------------------------------------------


def facts(**metrics: float) -> ServerFacts:
    written = {name: str(value) for name, value in {"zk_num_alive_connections": 3, **metrics}.items()}
    return ServerFacts("zk1:2181", (3, 9, 3), "leader", written, reached=True)


def servers(*found: ServerFacts) -> Checked:
    hosts = ",".join(one.server for one in found)
    return replaced(zookeeper, lambda: zookeeper.check_servers(hosts, tls=False), ask_servers=answering(list(found)))


class Ticking:
    """A store whose reads take ``read_ms`` each, and whose host's clock is behind ZooKeeper's by ``behind_ms``."""

    def __init__(self, read_ms: float = 1, behind_ms: int = 0, refusal: Exception | None = None) -> None:
        self._at, self._read_s, self._behind_ms, self._refusal = NOW_MS / 1000, read_ms / 1000, behind_ms, refusal
        self.clock = of(monotonic=lambda: self._at, time=lambda: self._at)

    def exists(self, _path: str) -> None:
        self._at += self._read_s

    def create(self, _path: str, **_: object) -> str:
        if self._refusal is not None:
            raise self._refusal
        return "/x"

    def get(self, _path: str) -> Any:
        return of(stat=of(ctime_ms=NOW_MS + self._behind_ms))

    def delete(self, _path: str) -> None:
        pass


def speed(read_ms: float) -> Checked:
    return replaced(zookeeper, lambda: zookeeper.check_speed(Ticking(read_ms)), time=of(sleep=lambda _s: None))  # type: ignore[arg-type]


def clock(behind_ms: int = 0, refusal: Exception | None = None) -> Checked:
    return lambda: zookeeper.check_clock(Ticking(behind_ms=behind_ms, refusal=refusal))  # type: ignore[arg-type]


def session(granted_ms: int) -> Checked:
    return lambda: zookeeper.check_session(of(session=of(timeout_ms=granted_ms)), 10_000)


FOLLOWER = replace(facts(), server="zk2:2181", mode="follower")
ZOOKEEPER = [
    Case("ZooKeeper is slow: 5 reads", speed(101), speed(99)),
    Case("none of the servers in --zookeeper is the leader", servers(FOLLOWER), servers(FOLLOWER, facts())),
    Case("cannot be reached", servers(replace(facts(), reached=False, mode="")), servers(facts())),
    Case("older than 3.6", servers(replace(facts(), version=(3, 5, 9))), servers(replace(facts(), version=(3, 6, 0)))),
    Case(
        "took 101 ms for each of 5 writes",
        servers(facts(zk_cnt_updatelatency=5, zk_sum_updatelatency=505)),
        servers(facts(zk_cnt_updatelatency=4, zk_sum_updatelatency=4_000)),
    ),
    Case(
        "101 requests outstanding",
        servers(facts(zk_outstanding_requests=101)),
        servers(facts(zk_outstanding_requests=100)),
    ),
    Case("in 101 ms on average", servers(facts(zk_avg_latency=101)), servers(facts(zk_avg_latency=100))),
    Case(
        "uses 81 of 100 file descriptors",
        servers(facts(zk_open_file_descriptor_count=81, zk_max_file_descriptor_count=100)),
        servers(facts(zk_open_file_descriptor_count=80, zk_max_file_descriptor_count=100)),
    ),
    Case("allows 59 connections", servers(facts(maxClientCnxns=59)), servers(facts(maxClientCnxns=0))),
    Case("but ZooKeeper granted 4000 ms", session(4_000), session(10_000)),
    Case("not allowed to create znodes", clock(refusal=NoAuth("no", "/x")), clock(refusal=NoNode("no", "/x"))),
    Case("60000 ms ahead of", clock(60_000), clock(999)),
    Case("1000 ms behind", clock(-1_000), clock(-999)),
]


# --- access -----------------------------------------------------------------------------------------------------------


def acls(**given: Any) -> Any:
    return of(**{"looked_at": 9, "open": (), "unreadable": (), "hidden": (), **given})


def against_plan(deviations: Iterable[Any] = (), missing: Iterable[str] = (), hidden: Iterable[str] = ()) -> Checked:
    found = of(deviations=tuple(deviations), missing=tuple(missing), acls=acls(hidden=tuple(hidden)))
    return replaced(zookeeper, lambda: zookeeper._check_plan(of(), of()), compare=answering(found))


def by_digest(tls: object) -> Checked:
    store = of(options=of(plan=of(), tls=tls, digest=of()))
    none = answering(iter(()))
    return replaced(
        zookeeper, lambda: zookeeper.check_access(store), AclStore=SimpleNamespace, _check_plan=none, _check_kafka=none
    )


CLOSED = against_plan()
ACCESS = [
    Case("password in clear text", by_digest(None), by_digest(of())),
    Case("contrary to the plan", against_plan([of(path="/a", open=True)]), CLOSED),
    Case("the ACL of /a is not as planned", against_plan([of(path="/a", open=False)]), CLOSED),
    Case("/a is missing", against_plan(missing=["/a"]), CLOSED),
    Case("may change /a", lambda: zookeeper._check_open(acls(open=("/a",))), lambda: zookeeper._check_open(acls())),
    Case(
        "not allowed to read the ACL of /a",
        lambda: zookeeper._check_open(acls(unreadable=("/a",))),
        lambda: zookeeper._check_open(acls(open=tuple("abcdefghi"))),
    ),
    Case("not allowed to list /a", against_plan(hidden=["/a"]), CLOSED),
]


# --- brokers and instances --------------------------------------------------------------------------------------------

PLAIN, SECURE = Listener("PLAINTEXT", "PLAINTEXT", "h1:9092"), Listener("SSL", "SSL", "h1:9093")


def registered(
    found: Any,
    refused: Mapping[str, str] | None = None,
    migration: Migration = Migration.NONE,
    record: ClusterRecord | None = None,
    trouble: MirrorTrouble | None = None,
) -> Checked:
    return replaced(
        instances,
        lambda: instances.check_brokers(of(clock=of(time=lambda: NOW_MS / 1000))),
        read_brokers=answering(found),
        read_migration=answering(migration),
        read_left_behind=answering(((), "")),
        read_cluster_record=answering(record),
        read_mirror_trouble=answering(trouble),
        _refusal=lambda one: (refused or {}).get(one.address, ""),
    )


def source(
    record: ClusterRecord | None = None,
    *,
    follows: bool = True,
    settings: Sequence[str] = ("auto", "auto"),
    asked: Sequence[str] | None = None,
) -> Checked:
    seen = {"delays": of(observation=of(members={"c1": of(gateway=None, follows_root=follows)}))}
    running = {number: of(endpoints={}, metadata=one) for number, one in enumerate(settings, 1)}
    return replaced(
        instances,
        lambda: instances.check_source(of(), cluster(instances=running), seen),
        read_brokers=answering(of(live=(Broker(1, (PLAIN, SECURE)),), unreadable=())),
        read_migration=answering(Migration.NONE),
        read_cluster_record=answering(record),
        read_asked_listeners=answering(asked),
    )


def cluster(**given: Any) -> Any:
    usual = {
        "coordinator": of(broker_id=1, epoch=7),
        "undecided": "",
        "instances": {1: of(endpoints={}, http_url=None), 2: of(endpoints={}, http_url=None)},
        "brokers": (1, 2),
        "pause": None,
        "groups": ("delays",),
        "unreadable": (),
        "topics_changed_ms": {},
        "deciding_since_ms": 0,
    }
    return of(**usual | given)


def elected(**given: Any) -> Checked:
    return lambda: instances.check_coordinator(of(clock=of(time=lambda: NOW_MS / 1000)), "zk:2181", cluster(**given))


def elections(count: int, age_ms: int = 1_000) -> Checked:
    made = tuple(Election(1, "h", at, NOW_MS - age_ms, NOW_MS - age_ms, "restarted") for at in range(count))
    return lambda: instances.check_elections(ClusterHistory(made), NOW_MS)


ONE = Broker(1, (PLAIN, SECURE))
LIVE = registered(of(live=(ONE,), unreadable=()))
MIRRORED = ClusterRecord("t1", 1, Source.BROKERS, NOW_MS, "a KRaft controller is active")
TREE = ClusterRecord("t1", 1, Source.ZOOKEEPER, 0, kafka="k1")


def tree(**given: Any) -> Checked:
    found = LogTree(Claim(7, "1@h", "n", "t1", 1), kafka="k1")
    return lambda: instances.tree_findings(**{"record": TREE, "found": found, "of_zookeeper": "k1"} | given)


TREES = [
    Case("/consumers/cluster does not exist", tree(record=None), tree()),
    Case("tree t1, generation 1, is still being made", tree(record=structs.replace(TREE, making="init")), tree()),
    Case(
        "the groups log belongs to tree t2, generation 2",
        tree(found=LogTree(Claim(7, "1@h", "n", "t2", 2))),
        tree(record=structs.replace(TREE, generation=3)),
    ),
    Case(
        "the groups log belongs to tree t9, generation 2",
        tree(record=structs.replace(TREE, superseded_by="tree t9, generation 2"), found=None),
        tree(found=None),
    ),
    Case("but Kafka's znodes belong to cluster k2", tree(of_zookeeper="k2"), tree(of_zookeeper=None)),
    Case("but the brokers belong to cluster k2", tree(found=LogTree(kafka="k2")), tree(found=LogTree(kafka=None))),
]
BROKERS = [
    Case("/brokers/ids does not exist", registered(None), LIVE),
    Case(
        "/brokers/ids/2 cannot be read",
        registered(of(live=(ONE,), unreadable=(Unreadable("/brokers/ids/2", "x"),))),
        LIVE,
    ),
    Case("no broker is registered", registered(of(live=(), unreadable=())), LIVE),
    Case(
        "Kafka migrates its metadata to KRaft",
        registered(of(live=(ONE,), unreadable=()), migration=Migration.RUNNING),
        registered(of(live=(ONE,), unreadable=()), migration=Migration.PREPARED),
    ),
    Case(
        "because all of them run in KRaft mode",
        registered(of(live=(), unreadable=()), migration=Migration.RUNNING),
        registered(of(live=(ONE,), unreadable=()), migration=Migration.RUNNING, record=MIRRORED),
    ),
    Case(
        "no broker tells its metadata",
        registered(
            of(live=(ONE,), unreadable=()), record=MIRRORED, trouble=MirrorTrouble("no broker tells its metadata", 5)
        ),
        registered(of(live=(ONE,), unreadable=()), record=MIRRORED),
    ),
    Case(
        "cannot take the metadata from the brokers",
        registered(
            of(live=(ONE,), unreadable=()), trouble=MirrorTrouble("cannot take the metadata from the brokers", 5)
        ),
        LIVE,
    ),
    Case(
        "broker 1 cannot be reached at PLAINTEXT://h1:9092",
        registered(of(live=(ONE,), unreadable=()), {"h1:9092": "no", "h1:9093": "no"}),
        registered(of(live=(ONE,), unreadable=()), {"h1:9092": "no"}),
    ),
    Case("1 consumer may look into Kafka's own znodes: c1 (group delays)", source(MIRRORED, follows=False), source()),
    Case(
        "the instances have different settings of serve.metadata (instance 1: auto, instance 2: brokers)",
        source(settings=("auto", "brokers")),
        source(settings=("brokers", "brokers")),
    ),
    Case(
        "serve.metadata is zookeeper, but",
        source(MIRRORED, settings=("zookeeper", "zookeeper")),
        source(settings=("zookeeper", "zookeeper")),
    ),
    Case(
        "no broker tells its address on listener SSL",
        source(MIRRORED, asked=("PLAINTEXT",)),
        source(MIRRORED, asked=("PLAINTEXT", "SSL")),
    ),
    Case("NO WORKING COORDINATOR: none", elected(coordinator=None, undecided="none"), elected()),
    Case(
        "/consumers/coordinator cannot be read", elected(unreadable=(Unreadable(layout.COORDINATOR, "x"),)), elected()
    ),
    Case("changed 4 times in the last hour", elections(4), elections(3)),
    Case("changed 9 times in the last hour", elections(9), elections(9, HOUR_MS)),
    Case(
        "only one instance is running",
        elected(instances={1: of()}),
        elected(instances={1: of()}, brokers=(1,)),
    ),
]


# --- groups -----------------------------------------------------------------------------------------------------------


def member(gateway: int | None = None) -> Any:
    return of(gateway=gateway, protocol=None, rebalance_timeout_ms=0)


def group_of(waits: Mapping[str, str] | None = None, lost: Any = None, **given: Any) -> Checked:
    seen = {"unreadable": (), "members": {"c1": member()}, "ledgers": {}, "in_grace": frozenset(), "pause": None}
    seen |= {"channels": {}, "settings": GroupSettings()} | given.pop("observation", {})
    usual = {
        "group": "delays",
        "observation": of(**seen),
        "registrations": {"c1": of(ephemeral_owner=9)},
        "pause": None,
        "missing_topics": (),
    }
    waiting = given.pop("waiting", [])
    of_cluster = cluster(**given.pop("of_cluster", {}))
    snapshot = of(**usual | given)
    return replaced(
        groups,
        lambda: groups.check_groups(of_cluster, {"delays": snapshot}, waiting, NOW_MS),
        waits=answering(waits or {}),
        lost=answering(lost),
    )


def persistent(gateway: int | None) -> Checked:
    return group_of(registrations={"c1": of(ephemeral_owner=0)}, observation={"members": {"c1": member(gateway)}})


def gone(*, in_grace: bool = False, undecided: str = "") -> Checked:
    ledgers = {"dead": of(held=PartitionSet({"flights": [0]}))}
    grace = frozenset({"dead"} if in_grace else ())
    return group_of(observation={"ledgers": ledgers, "in_grace": grace}, of_cluster={"undecided": undecided})


def unowned(since_ms: int | None) -> Checked:
    return group_of(lost=of(partitions="flights[0]", since_ms=since_ms))


def command(age_ms: int, own_ms: int = 0, kind: CommandType = CommandType.START_FETCHER) -> Checked:
    waiting = [of(group="delays", consumer="c1", type=kind, waited_ms=lambda _now: age_ms)]
    members = {"c1": of(gateway=None, protocol=None, rebalance_timeout_ms=own_ms)} if own_ms else {}
    return group_of(waits={"c1": "c1 has not acknowledged"}, waiting=waiting, observation={"members": members})


def paused(since_ms: int) -> Checked:
    return group_of(pause=Pause("alice", "disks", since_ms))


def requests(count: int = 1, age_ms: int = 60_001, *, elected: bool = True, answered: bool = False) -> Checked:
    one = of(answered=answered, group=None, by="alice", request="request-1", type="rebalance")
    one.waited_ms = lambda _now: age_ms
    queued = [one] * count
    return lambda: groups.check_requests(queued, (), NOW_MS, elected=elected)


BROKEN = Unreadable(layout.offset("delays", "flights", 0), "not a number")
GROUPS = [
    Case(
        "the names of the 1 groups",
        group_of(of_cluster={"groups": ("g" * 700_000,)}),
        group_of(of_cluster={"groups": ("g" * 699_000,)}),
    ),
    Case("not a number", group_of(observation={"unreadable": (BROKEN,)}), group_of()),
    Case("the registration of c1 is persistent", persistent(None), persistent(1)),
    Case("dead is gone, but still holds", gone(), gone(in_grace=True)),
    Case("still holds flights[0]", gone(undecided="none"), gone(in_grace=True, undecided="none")),
    Case("NO ONE OWNS flights[0]", unowned(NOW_MS - 9_000), unowned(None)),
    Case("c1 has not acknowledged", command(30_001), command(30_000)),
    Case("c1 has not acknowledged", command(150_001, 300_000), command(150_000, 300_000)),
    Case(
        "c1 has not acknowledged",
        command(5_001, 10_000, CommandType.STOP_FETCHER),
        command(5_000, 10_000, CommandType.STOP_FETCHER),
    ),
    Case("group delays has been paused by alice", paused(NOW_MS - HOUR_MS - 1), paused(NOW_MS - HOUR_MS)),
    Case(
        "all groups have been paused",
        lambda: groups.check_pause(cluster(pause=Pause("alice", "", NOW_MS)), NOW_MS),
        lambda: groups.check_pause(cluster(), NOW_MS),
    ),
    Case("has waited for 60 s", requests(), requests(age_ms=60_000)),
    Case("by alice has waited for 60 s", requests(elected=False), requests(answered=True)),
    Case("1 more requests are waiting", requests(21), requests(21, age_ms=60_000)),
    Case(
        "/r cannot be read",
        lambda: groups.check_requests((), [Unreadable("/r", "x")], NOW_MS, elected=True),
        requests(0),
    ),
]


# --- lag --------------------------------------------------------------------------------------------------------------


def row(lag_: int = 900, owner: str | None = "c1", partition: int = 0, **more: Any) -> OffsetRow:
    return OffsetRow(
        topic="flights",
        partition=partition,
        owner=owner,
        holding="owned" if owner else None,
        committed_offset=1_000,
        end_offset=1_000 + lag_,
        lag=lag_,
        **more,
    )


def lags(verdict: Verdict, one: OffsetRow | None = None, **more: Any) -> Checked:
    rows = [row() if one is None else one]
    trend = Trend(verdict, more.pop("since_ms", NOW_MS - 720_000), None)
    hot = more.pop("hot", ())
    trends = Trends(partitions={TopicPartition("flights", 0): trend}, hot=hot)
    return lambda: groups.check_lag(groups.Lags("delays", rows, trends, **{"members": {"c1": ""}, **more}), NOW_MS)


def reset(age_ms: int, change: str = "to-earliest: flights 0: 900 → 0") -> Checked:
    action = Action("reset-offsets", "alice@h", NOW_MS - age_ms, "", change)
    return lambda: groups.check_actions({"delays": [action]}, NOW_MS)


HOT = (Hot(TopicPartition("flights", 0), 0.99, 400.0, 11),)
NEVER_READ = row(owner=None)
LAG = [
    Case("c1 has not committed in flights[0]", lags(Verdict.STALLED), lags(Verdict.KEEPING_UP)),
    Case("unread records are gone", lags(Verdict.KEEPING_UP, row(0, gone=5)), lags(Verdict.KEEPING_UP, row(0, gone=0))),
    Case(
        "are gone from flights[0]",
        lags(Verdict.KEEPING_UP, row(0, gone=5)),
        lags(Verdict.KEEPING_UP, row(0, gone=5), members={}),
    ),
    Case(
        "no one has read flights[0]", lags(Verdict.STOPPED, NEVER_READ), lags(Verdict.STOPPED, NEVER_READ, paused=True)
    ),
    Case(
        "delays has no members: no one has read",
        lags(Verdict.STOPPED, NEVER_READ, members={}),
        lags(Verdict.STOPPED, NEVER_READ, members={}, since_ms=NOW_MS - DAY_MS),
    ),
    Case("has been falling behind", lags(Verdict.BEHIND), lags(Verdict.UNKNOWN)),
    Case(
        "delays is late in flights[0]", lags(Verdict.UNKNOWN, row(lag_s=60.0)), lags(Verdict.UNKNOWN, row(lag_s=59.9))
    ),
    Case(
        "is late in",
        lags(Verdict.UNKNOWN, row(owner=None, lag_s=86_399.0), members={}),
        lags(Verdict.UNKNOWN, row(owner=None, lag_s=86_400.0), members={}),
    ),
    Case("is hot", lags(Verdict.BEHIND, hot=HOT), lags(Verdict.KEEPING_UP, hot=HOT)),
    Case("alice@h set its offsets", reset(HOUR_MS - 1), reset(HOUR_MS)),
    Case("set its offsets", reset(0), reset(0, "to-earliest: 1 unchanged")),
]


# --- channel and certificates -----------------------------------------------------------------------------------------


def listening(*numbers: int, members: int = 0, response: Any = None) -> Checked:
    both = {number: of(endpoints={"channel": "h:1"} if number in numbers else {}) for number in (1, 2)}
    named = of(coordinator=of(epoch=7, instance=1))
    seen = {str(n): of(observation=of(members={"s": member(1)})) for n in range(members)}
    answer = answering(named if response is None else response)
    return replaced(instances, lambda: instances.check_channel(cluster(instances=both), seen), _ask=answer)


def renewed(ends_in_ms: float | None = 90 * DAY_MS, *, unusable: bool = False) -> Checked:
    ends_s = None if ends_in_ms is None else (NOW_MS + ends_in_ms) / 1000
    return lambda: instances.certificate_findings({1: (instances.Reported("channel", ends_s, unusable),)}, NOW_MS)


CHANNEL = [
    Case("but no instance listens for them", listening(members=1), listening()),
    Case("instance 2 does not listen", listening(1), listening(1, 2)),
    Case("does not answer consumers", listening(1, 2, response="refused"), listening(1, 2, members=3)),
    Case("ended 60 s ago", renewed(-60_000), renewed(None)),
    Case("ends in 13 d", renewed(13 * DAY_MS), renewed(14 * DAY_MS)),
    Case("cannot be used", renewed(unusable=True), renewed()),
]


# --- stock Kafka clients ----------------------------------------------------------------------------------------------


def listeners(first: str = "COORD", second: str = "COORD", addresses: Mapping[int, str] | None = None) -> Checked:
    at = {1: "h1:9192", 2: "h2:9192"} if addresses is None else addresses
    live = [
        Broker(
            number,
            (Listener("PLAINTEXT", "PLAINTEXT", f"h{number}:9092"), Listener(name, "PLAINTEXT", f"h{number}:9192")),
        )
        for number, name in ((1, first), (2, second))
    ]
    return replaced(
        kafka_clients,
        lambda: kafka_clients._check_listeners(InstanceDirectory(at, {}), live),
        _is_same=lambda one, other: one == other,
    )


def serving(silent: Iterable[Any] = (), nodes: Iterable[tuple[int, str]] = ((1, "h1:9192"),)) -> Checked:
    asked = of(ask_each=answering(({1: list(nodes)}, tuple(silent))))
    return replaced(
        kafka_clients,
        lambda: kafka_clients._check_instances(asked, InstanceDirectory({1: "h1:9192"}, {})),
        _is_same=lambda one, other: one == other,
    )


def unreadable_descriptor(*found: Unreadable) -> Checked:
    directory = of(unreadable=found, is_used=False)
    return replaced(
        kafka_clients,
        lambda: kafka_clients.check_kafka_clients(of(), {}),
        AskedInstances=answering(of(directory=lambda: directory)),
    )


def managed_by(first: str, second: str) -> Checked:
    values = [
        b'{"version":1,"broker":%d,"managed_groups":"%s"}' % (n, p.encode()) for n, p in ((1, first), (2, second))
    ]
    return terms(*values)


def terms(*values: bytes) -> Checked:
    nodes = dict(enumerate(map(node, values), 1))
    directory = InstanceDirectory({1: "a:1", 2: "b:1"}, {1: 1, 2: 2})
    return lambda: kafka_clients._check_managed_groups(of(read_many=answering(list(nodes.values()))), directory)


def kinds(data: bytes) -> Checked:
    return lambda: kafka_clients.check_kinds(of(read_many=answering([node(data)] * LOG_PARTITIONS)))


HIDING = b'{"version":1,"error":"DENIED","topics":"salaries"}'


def rights(*denied: str, data: bytes = b'{"version":1,"error":"DENIED"}') -> Checked:
    def read_many(reads: Iterable[Read]) -> tuple[Any, ...]:
        return tuple(denied if isinstance(one, GetChildren) else node(data) for one in reads)

    return lambda: kafka_clients._check_rights(of(read_many=read_many))


HIDING_GROUPS = b'{"version":1,"error":"GROUP_AUTHORIZATION_FAILED","group":"night"}'


def node(data: bytes) -> Node:
    return Node(data, Stat(*[0] * len(fields(Stat))))


def retention(found: Retention, now_ms: int = NOW_MS) -> Checked:
    return lambda: kafka_clients.check_retention(found, now_ms)


def stored_retention(read: Callable[..., Any]) -> Checked:
    store = of(clock=of(time=lambda: NOW_MS / 1000))
    return replaced(kafka_clients, lambda: kafka_clients._check_retention(store), read_retention=read)


def native(members: Mapping[str, int] | None = None, failure: Exception | None = None, problem: str = "") -> Checked:
    held = members or {}
    names = [(group, of(kind=GroupKind.MANAGED)) for group in held]
    own = of(
        groups=failing(failure) if failure is not None else lambda: list(held),
        read=answering({group: of(members=["m"] * many, problem=problem) for group, many in held.items()}),
    )
    return replaced(
        kafka_clients,
        lambda: kafka_clients._check_native_groups(of(), (), {}),
        GroupDirectory=answering(of(names=answering((names, ())))),
        _own_coordinator=answering(own),
    )


WEEK = Retention().told(1, 7 * DAY_MS, NOW_MS).told(2, 7 * DAY_MS, NOW_MS)
SHORTER = WEEK.told(1, DAY_MS, NOW_MS).told(2, DAY_MS, NOW_MS)
KAFKA_CLIENTS = [
    Case("/i cannot be read", unreadable_descriptor(Unreadable("/i", "x")), unreadable_descriptor()),
    Case("no instance beside broker 2", listeners(addresses={1: "h1:9192"}), listeners()),
    Case("no listener of broker 2 advertises", listeners(addresses={1: "h1:9192", 2: "h2:9999"}), listeners()),
    Case("listeners of different names", listeners("COORD", "OTHER"), listeners("OTHER", "OTHER")),
    Case("instance 3 does not answer", serving([of(broker_id=3, reason="refused")]), serving()),
    Case("directly to brokers: broker 1", serving(nodes=[(1, "h1:9092")]), serving(nodes=[(2, "h2:9092")])),
    Case("different serve.managed_groups", managed_by("a", "b"), managed_by("a", "a")),
    Case("/consumers/kafka/1 cannot be read", terms(b"\xff", b"{}"), terms(b"", b"{}")),
    Case("/consumers/kinds/7: ", kinds(b"\xff"), kinds(b'{"version":1}')),
    Case("denies its instance a right", rights("1"), rights()),
    Case("does not let its instance describe salaries", rights("1", data=HIDING), rights()),
    Case("do not let instance 1 describe group night", rights("1", data=HIDING_GROUPS), rights()),
    Case("/consumers/rights/1 cannot be read", rights("1", data=b"[]"), rights(data=b"[]")),
    Case("may read the settings of broker 1", retention(WEEK.told(1, None, NOW_MS)), retention(WEEK)),
    Case("different offsets.retention.minutes", retention(WEEK.told(2, 30 * DAY_MS, NOW_MS)), retention(WEEK)),
    Case("for a shorter time than before", retention(SHORTER), retention(SHORTER, NOW_MS + DAY_MS)),
    Case(
        "so no offsets expire", stored_retention(failing(MalformedValue("/r", "x"))), stored_retention(answering(WEEK))
    ),
    Case("could not be listed", native(failure=BrokerError("no answer")), native()),
    Case("group g has 1 member in the brokers'", native({"g": 1}), native({"g": 0})),
    Case(
        "1 more groups exist in both", native({f"g{n}": 1 for n in range(21)}), native({f"g{n}": 0 for n in range(21)})
    ),
]


def topic(replicas: tuple[int, int] = (3, 3), **settings: str) -> Any:
    usual = {"cleanup.policy": "compact", "compression.type": "producer", "min.insync.replicas": "2"}
    usual |= {"unclean.leader.election.enable": "false"} | {k.replace("_", "."): v for k, v in settings.items()}
    return kafka_clients.Topic(usual, dict.fromkeys(range(PARTITIONS), replicas))


def log(found: Any = None, leaders: Mapping[int, int] | None = None, live: int = 3) -> Checked:
    led = dict.fromkeys(range(PARTITIONS), 1) if leaders is None else leaders
    return lambda: kafka_clients.check_topic(found or topic(), InstanceDirectory({}, led), live, "b:9092")


ALL = dict.fromkeys(range(PARTITIONS), 1)
GROUPS_LOG = [
    Case("has cleanup.policy=delete", log(topic(cleanup_policy="delete")), log()),
    Case("compression.type=gzip", log(topic(compression_type="gzip")), log(topic(compression_type="uncompressed"))),
    Case("with only 1 replica", log(topic((1, 1))), log(topic((1, 1)), live=1)),
    Case(
        "min.insync.replicas=1",
        log(topic(min_insync_replicas="1")),
        log(topic((2, 2), min_insync_replicas="1"), live=2),
    ),
    Case(
        "min.insync.replicas=3, so one dead broker stops commits",
        log(topic(min_insync_replicas="3")),
        log(topic((5, 5), min_insync_replicas="3"), live=5),
    ),
    Case("min.insync.replicas=1", log(topic(min_insync_replicas="1")), log(topic(min_insync_replicas="9" * 5_000))),
    Case("has no partition 49", log(leaders=dict.fromkeys(range(49), 1)), log()),
    Case("only the first 50 are used", log(leaders=dict.fromkeys(range(51), 1)), log()),
    Case("no live leader for partition 7", log(leaders=ALL | {7: -1}), log()),
    Case("out-of-sync replicas", log(topic((3, 2))), log(topic((3, 3)))),
    Case(
        "settings of __kafka_coord_groups are unknown: DescribeConfigs is answered with TOPIC_AUTHORIZATION_FAILED",
        log(replace(topic(), settings={}, settings_error=29)),
        log(),
    ),
    Case("the broker does not tell cleanup.policy", log(replace(topic(), settings={})), log()),
    Case("Metadata is answered with TOPIC_AUTHORIZATION", log(replace(topic(), replicas={}, replicas_error=29)), log()),
]


# --- the examination itself -------------------------------------------------------------------------------------------


def made(check: Callable[[], Iterator[Finding]]) -> Checked:
    return lambda: doctor._made("clocks", check)


TOPIC = Unreadable("/brokers/topics/flights", "not JSON")
EXAMINATION = [
    Case(
        "/brokers/topics/flights: not JSON",
        lambda: doctor._check_topics(cluster(unreadable=(TOPIC,))),
        lambda: doctor._check_topics(cluster()),
    ),
    Case("could not be checked: lost", made(failing(StoreUnavailable("lost"))), made(lambda: iter(()))),
    Case("could not be checked: KeyError", made(failing(KeyError("x"))), made(lambda: iter(()))),
]

CASES = [*ZOOKEEPER, *ACCESS, *TREES, *BROKERS, *GROUPS, *LAG, *CHANNEL, *KAFKA_CLIENTS, *GROUPS_LOG, *EXAMINATION]
