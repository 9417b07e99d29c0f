"""Trials of the tools on a tree in which others have written odd values, and with brokers whose answers are odd."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_type_hints

import msgspec

from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.errors import BrokerError, InvalidName, MalformedValue, NotFound, StoreUnavailable
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.groups.group import encode
from kafka_coord.groups.lag import LagService
from kafka_coord.model import CoordinatorInfo, GroupKind, Hold, Holds, PartitionSet, TopicOfOffsets
from kafka_coord.model.codec import dec_hook
from kafka_coord.model.names import partition_of
from kafka_coord.monitor.dashboard.routes import ROUTES, TASKS, Route
from kafka_coord.monitor.dashboard.sources import NotReadYet, Sources
from kafka_coord.monitor.metrics import measure_lags
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import GroupRecord, Records, change_kinds
from kafka_coord.zk.root import ClusterRecord, Source, finish_tree, make_tree
from kafka_coord.zk.store import Store
from tests.cli.running import run
from tests.fuzzing.odd_broker import GROUP as ASKED
from tests.fuzzing.odd_broker import OddBroker
from tests.fuzzing.odd_files import odd_data
from tests.fuzzing.tree_targets import GOLDEN
from tests.monitor.written import Tree

GROUP = "delays"
READING = """
groups list
groups describe {g}
groups describe {g} --members -v
groups history {g}
groups history {g} --actions
groups settings {g}
groups match fl.*
coordinator status
coordinator history
coordinator requests --all
channel list
channel show delays
groups settings --export
backup {d}/now.backup
settings show
""".strip().splitlines()
"""Commands that read the tree."""
ASKING = """
doctor
groups list --lag
groups describe {g} --offsets
groups describe --all-groups
groups log dump 3
groups log dump --group {g}
watch --count 1
watch --count 1 {g}
groups reset-offsets {g} --topic flights --to-earliest
groups reset-offsets {g} --topic flights --to-datetime 2030-01-01T00:00:00
groups reset-offsets --all-groups --all-topics --to-current --export
groups reset-offsets {g} --all-topics --from-group delays
groups delete-offsets {g} --all-topics --dry-run
groups delete {g} --dry-run
groups evict {g} c1 --dry-run
groups import --from-kafka --all --timeout 0.2
groups export --to-kafka --all --timeout 0.2
groups convert billing --to managed --timeout 0.2
groups convert delays --to client-assigned --timeout 0.2
groups take-over {g}
groups take-over --all
groups give-back {g}
groups give-back --matching fl.*
topics describe flights
search l
restore {d}/tree.backup {empty}
""".strip().splitlines()
"""Commands that also ask brokers and instances."""
WRITING = """
groups reset-offsets {g} --topic flights --shift-by -1 --execute --accept-notes --timeout 0.2
groups reset-offsets {g} --topic flights --to-latest --execute --pause --timeout 0.2
groups delete-offsets {g} --all-topics -y --timeout 0.2
groups delete {g} -y --timeout 0.2
groups evict {g} c1 --timeout 0.2
groups evict {g} m1 --timeout 0.2
groups pause {g}
groups pause --all
groups resume {g}
groups resume --all
groups settings {g} --assignor range
groups rebalance {g} --timeout 0.2
groups import --from-kafka --all --execute --overwrite --timeout 0.2
groups export --to-kafka {g} --execute --timeout 0.2
groups convert {g} --to managed --execute --timeout 0.2
groups convert {g} --to client-assigned --execute --timeout 0.2
groups take-over {g} --execute --timeout 0.2
groups give-back {g} --execute --timeout 0.2
restore {d}/tree.backup {empty} --execute --stopped
init {empty}
init --replace 00ff00ff00ff00ff
coordinator metadata zookeeper --timeout 0.2
coordinator let-go --execute --timeout 0.2
coordinator resign --timeout 0.2
coordinator withdraw request-0000000000
""".strip().splitlines()
"""Commands that write."""
MAY_TAKE_S = 90.0
"""A command that asks 50 leaders one after another may time out several times."""
_HOSTS = "127.0.0.1:1"
"""Where the doctor finds no server."""
EMPTY = f"{_HOSTS}/empty"
"""Where there is no tree yet."""
_TOPIC_ID = "abcdefghijklmnopqrstuv"
NOT_TRIED = {
    **dict.fromkeys(("serve", "dashboard"), "odd_serve and odd_requests"),
    **dict.fromkeys(("bench", "demo", "dev", "pipeline"), "they run servers of their own, or Spark jobs"),
    **dict.fromkeys(("completion", "settings operator", "acl identity"), "they read neither a tree nor a broker"),
}
"""What is not among the commands, and why. A name stands for everything that begins with it."""
_TYPED = ("", "{}\n", '{"a": 1e999}\n\n[1]', "\x00\n", "[" * 5_000)
"""What is on the commands' standard input."""
_UNEXPECTED, _NO_SUCH_OPTION = 1, 2


def write_tree(tree: Tree, broker: OddBroker, instance: OddBroker) -> None:
    """Writes a managed group and what is around it."""
    endpoint = f"PLAINTEXT://127.0.0.1:{broker.port}"
    tree.value(layout.broker(1), {"version": 5, "endpoints": [endpoint], "rack": "a"})
    tree.coordinator(1)
    info = CoordinatorInfo(1, 7, "1732060800000", {"http": "127.0.0.1:9", "kafka": f"127.0.0.1:{instance.port}"})
    for path in (layout.COORDINATOR, layout.instance(1)):
        tree.value(path, info.to_json())
    tree.topic("flights", 2, topic_id=_TOPIC_ID)
    tree.topic(TOPIC, PARTITIONS)
    for number in range(PARTITIONS):
        tree.value(layout.partition_state(TOPIC, number), {"leader": 1, "leader_epoch": 1, "isr": [1]})
    tree.group(GROUP)
    tree.member(GROUP, "c1")
    tree.put(layout.registration(GROUP, "c2"), tree.store.get(layout.registration(GROUP, "c1")).data)
    tree.target(GROUP, {"c1": "0-1", "c2": ""})
    tree.ledger(GROUP, "c1", "0-1")
    tree.offset(GROUP, "flights", 0, 5)
    decision = {
        "generation": 3, "epoch": 7, "causes": ["member-left"], "reason": "x", "assignor": "sticky",
        "decided_at_ms": 1_732_060_800_000, "settled_ms": 5, "moves": {"c1": {"gained": "flights[0]"}},
    }  # fmt: skip
    action = {"kind": "reset-offsets", "by": "a", "at_ms": 1_732_060_800_000, "change": "to-earliest: flights 0: 9 → 0"}
    tree.value(layout.history(GROUP), {"version": 1, "decisions": [decision], "actions": [action]})
    tree.value(layout.paused(GROUP), {"version": 1, "by": "a", "reason": "b", "since_ms": 1_732_060_800_000})
    tree.value(f"{layout.REQUESTS}/request-0000000000", {"version": 1, "type": "rebalance", "group": GROUP})
    _write_rest(tree)


def _with(more: Records, before: Records) -> Records:
    return {**before, **more}


def _write_rest(tree: Tree) -> None:
    """Writes what only some trees have."""
    make_tree(tree.store, record := ClusterRecord("00ff00ff00ff00ff", 2, Source.ZOOKEEPER, 1, kafka="odd"))
    finish_tree(tree.store, record)
    kinds = {ASKED: GroupKind.CLIENT_ASSIGNED, "orders": GroupKind.NATIVE, GROUP: GroupKind.MANAGED}
    records = {name: GroupRecord(kind) for name, kind in kinds.items()}
    records["flown"] = GroupRecord(GroupKind.CLIENT_ASSIGNED, moving="take-over of 1", fenced="a stay")
    for name, one in records.items():
        change_kinds(tree.store, partition_of(name), partial(_with, {name: one}))
    for path, name in {
        layout.RETENTION: "retention",
        layout.SUCCESSOR: "successor",
        layout.HISTORY: "cluster history",
        layout.offsets(GROUP): "coverage",
        layout.offset_details(GROUP, "flights", 0): "committed offset with details",
        layout.refusals(GROUP, "c2"): "refusals",
        layout.settled(GROUP): "settled",
        layout.channel(GROUP, "c2"): "departure",
        layout.channel(GROUP, "c1") + "/start-0000000007": "start",
    }.items():
        tree.value(path, GOLDEN[name])
    tree.value(layout.HEARD, Heard(7, {(GROUP, "c3"): 5, (GROUP, "c4"): None}).to_json())
    tree.value(layout.log_partition(3), {"version": 1, "term": 4, "broker": 1, "managed_groups": "x|y"})
    tree.value(layout.missing_right(1), {"version": 1, "error": "TOPIC_AUTHORIZATION_FAILED"})
    tree.put(layout.topic_offsets(GROUP, "flights"), TopicOfOffsets(_TOPIC_ID, 2).data)
    tree.put(layout.awaited_end(GROUP, "flights", 1))
    tree.put(layout.held(GROUP), Holds(40_000, {"c1": Hold(PartitionSet({"flights": [0]}))}).to_bytes())


def znodes(tree: Tree) -> list[str]:
    """All znodes that the tools read, without the states of all but three of the log's partitions."""
    found, queue = [], [layout.BROKER_IDS, layout.BROKER_TOPICS, "/consumers"]
    of_log = f"{layout.broker_topic(TOPIC)}/partitions/"
    while queue:
        path = queue.pop()
        found.append(path)
        queue += [f"{path}/{name}" for name in tree.store.children(path)]
    return sorted(path for path in found if not path.startswith(of_log) or path[len(of_log) :][:1] in "012")


@dataclass(slots=True)
class OddCluster:
    """A tree, a broker and an instance, made odd by ``chance``. ``told`` is what was made odd."""

    tree: Tree
    connected: Callable[[], Store]
    broker: OddBroker
    instance: OddBroker
    chance: Random
    folder: Path
    """Where the files are that commands read."""
    told: list[str] = field(default_factory=list)
    code: int = 0
    """The exit code of the last command."""

    def spoil_tree(self, values: int) -> None:
        for path in self.chance.sample(znodes(self.tree), values):
            data = odd_data(self.tree.store.get(path).data, self.chance)
            self.tree.store.set(path, data)
            self.told.append(f"{path}: {data[:2_000]!r}")

    def command(self, written: str) -> str:
        """Runs a command. Returns its fault, or ``""``."""
        group = self.chance.choice((GROUP, ASKED, "orders", "flown"))
        began = time.monotonic()
        variables = {"KAFKA_COORD_DEBUG": "1"}
        if written.startswith("acl"):
            variables["KAFKA_COORD_ZOOKEEPER_IDENTITIES"] = str(self.folder / "identities.toml")
        at_empty = f"-z {EMPTY} --bootstrap 127.0.0.1:{self.broker.port}"
        arguments = written.format(g=group, d=self.folder, empty=at_empty).split()
        ran = run(*arguments, zookeeper=_HOSTS, stdin=self.chance.choice(_TYPED), **variables)
        self.code, took_s = ran.code, time.monotonic() - began
        if ran.code in {_UNEXPECTED, _NO_SUCH_OPTION} and "Usage:" in ran.err:
            return f"exit code {ran.code}: {ran.err}"
        if ran.code == _UNEXPECTED or "this is a bug" in ran.err + ran.out:
            return f"exit code {ran.code}: {ran.err[-3_000:]}"
        return f"took {took_s:.0f} s" if took_s > MAY_TAKE_S else ""

    def sources(self, wake: Callable[..., None] = lambda *_: None) -> Sources:
        """What the dashboard's server reads. The caller closes it."""
        return Sources(
            self.connected(), _HOSTS, {}, session_timeout_ms=10_000, tls=False, wake=wake, service=LagService()
        )

    def pages(self) -> Iterator[tuple[str, str]]:
        """Yields each document of the dashboard, and the sample of ``/metrics``, with its fault or ``""``."""
        store, sources = self.connected(), self.sources()
        names = {"topic": "flights", "partition": "0"}
        try:
            yield "/metrics", _fault(lambda: str(measure_lags(store, {}, most=10, service=LagService())))
            for task in TASKS.values():
                yield task.path, _fault(lambda task=task: task.read(sources))
            for route in ROUTES:
                for group in (GROUP, ASKED) if "{group}" in route.path else ("",):
                    given = {
                        name: value for name, value in (names | {"group": group}).items() if f"{{{name}}}" in route.path
                    }
                    yield (
                        route.path.format(**given),
                        _fault(lambda route=route, given=given: _valid(route, route.read(sources, **given))),
                    )
        finally:
            sources.close()


def _valid(route: Route, document: Any) -> bytes:
    """Encodes a document. Raises :class:`msgspec.ValidationError` if it is not as the API's description promises."""
    encoded = encode(document)
    msgspec.json.decode(encoded, type=get_type_hints(route.read)["return"], dec_hook=dec_hook)
    return encoded


def _fault(read: Any) -> str:
    try:
        told = read()
    except (NotReadYet, NotFound, InvalidName, StoreUnavailable, BrokerError, MalformedValue, OSError):
        return ""
    except Exception:  # noqa: BLE001  whatever it is, it is what is looked for
        return traceback.format_exc()[-3_000:]
    return str(told)[-3_000:] if "this is a bug" in str(told) else ""
