"""Damages every znode of a running cluster in a dozen ways, one at a time.

After each damage, the bystander's group is served, the doctor reports the znode as an error, and its remedy repairs the
znode. At the end, the audit of ZooKeeper's log finds no violation except the damage itself. The tables below list
harmless damage and damage that the coordinator repairs itself. ``--long`` tries each damage on each znode; otherwise, a
third of the combinations are tried.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from kafka_coord.channel.operations import Registration
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.model import GroupKind, Request, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import partition_of
from kafka_coord.monitor.doctor import Finding, Severity, examine
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import GroupRecord, change_kinds
from tests.cli.running import run
from tests.coordinator.harness import FAST, ScriptedConsumer, World
from tests.monitor.listening import hanging_up
from tests.trouble.conftest import look, put
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

GROUP = "delays"
FIRST, OFFSET = TopicPartition("flights", 0), 4711
REQUEST = layout.request("request-0000000099")
"""A request whose name no listener has seen."""
HEALS_ITSELF = frozenset({"deleted"})

DAMAGE: Mapping[str, Callable[[bytes], bytes | None]] = {
    "garbage": lambda _: b"\xff\xfe garbage",
    "empty": lambda _: b"",
    "an unknown version": lambda _: b'{"version":9}',
    "a wrong type": lambda _: b'{"version":"1","generation":{},"owned":7,"subscription":[],"endpoints":"x"}',
    "an array": lambda _: b"[1,2]",
    "a number below zero": lambda _: b"-5",
    "huge": lambda _: b'{"version":1,"host":"' + b"a" * 950_000 + b'"}',
    "a lone surrogate": lambda _: b'{"version":1,"host":"\\ud800","reason":"\\ud800"}',
    "truncated": lambda data: data[: len(data) // 2] if len(data) > 4 else b"{",
    "not a number": lambda _: b'{"version":1,"generation":NaN,"epoch":NaN,"timestamp":NaN}',
    "nested deep": lambda _: b"[" * 100_000,
    "another's value": lambda _: b'{"version":1,"somebody":"else"}',
    "deleted": lambda _: None,
}


READABLE = frozenset({"another's value", "not a number"})
"""Harmless damage to a value without required fields: unknown fields stay, and missing ones get defaults."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A znode, the kinds of :data:`DAMAGE` that are harmless to it, and how to prepare the damage.

    ``path`` may depend on the result of ``prepare``. With ``stops_all``, no group is served while the znode is damaged.
    """

    path: str
    harmless: frozenset[str] = HEALS_ITSELF
    prepare: Callable[[Cluster], object] = field(default=lambda _: None)
    stops_all: bool = False


class Cluster:
    """An instance, a group of two members with a stored offset, and a bystander's group."""

    def __init__(self, world: World, broker_port: int) -> None:
        self.world = world
        self.members: dict[str, ScriptedConsumer] = {}
        self.by_hand: set[int] = set()
        """The zxids of the test's own writes: the damage, and repairs with zkCli.sh."""
        self._newcomers = iter(range(1, 1_000))
        world.kafka.topic("calm", 2)
        endpoint = {"version": 5, "endpoints": [f"PLAINTEXT://127.0.0.1:{broker_port}"]}
        put(world, layout.broker(1), json.dumps(endpoint).encode())
        world.instance(1, replace(FAST, settled_after_ms=500)).start_elected()
        self.serves()
        self.commits()

    # --- the group ---------------------------------------------------------------------------------------------------

    def serves(self) -> None:
        """Asserts that the group has two live members, each with half of the partitions."""
        for name in ("c1", "c2"):
            known = self.members.get(name)
            if known is None or not self._is_member(known.registration):
                if known is not None:
                    known.close()
                self.members[name] = self.world.consumer(name, group=GROUP).join()
        self.world.settles("c1", "c2", group=GROUP, partitions=4)

    def _is_member(self, registration: Registration) -> bool:
        """Whether the registration and its token are unchanged, as a consumer checks it."""
        node, channel = (
            self.world.node(registration.path),
            self.world.node(layout.channel(GROUP, registration.consumer)),
        )
        if node is None or channel is None:
            return False
        return (node.stat.czxid, channel.stat.version) == (registration.incarnation, registration.token)

    def serves_a_bystander(self) -> None:
        group = f"calm-{next(self._newcomers)}"
        self.world.consumer("x1", group=group, topics=["calm"]).join()
        self.world.settles("x1", group=group, partitions=2)

    def commits(self) -> None:
        """Makes the owner of the first partition commit."""
        owner = next(m for name, m in self.members.items() if FIRST in self.world.ledgers(GROUP)[name].owned)
        owner.channel.commit(owner.registration, {FIRST: OFFSET})

    def leaves_a_command(self) -> None:
        """Makes c1 hang, so that it does not carry out a start-fetcher."""
        self.members["c1"].leave()
        self.world.settles("c2", group=GROUP, partitions=4)
        self.members["c1"] = self.world.consumer("c1", group=GROUP, obedient=False).join()
        eventually(lambda: self.world.children(layout.channel(GROUP, "c1")))

    def rests(self) -> None:
        """Waits until the coordinator has recorded that the group is at rest. The coordinator does not write a deleted
        record again before the group changes, so this may request a rebalance."""
        if self.world.node(layout.settled(GROUP)) is None:
            self.carries_out(["groups", "rebalance", GROUP])
        eventually(lambda: self.world.node(layout.settled(GROUP)))

    def asks(self) -> None:
        """Makes a request and waits for its answer. The coordinator does not write an answered request again."""
        self.world.store.create(REQUEST, fields.dump(Request(RequestType.LOOK, group=GROUP).to_json()))
        eventually(lambda: b"the group was checked" in self.world.store.get(REQUEST).data)

    def is_recorded(self) -> None:
        recorded = {GROUP: GroupRecord(GroupKind.MANAGED)}
        change_kinds(self.world.store, partition_of(GROUP), lambda before: {**before, **recorded})

    def pauses(self, *group: str) -> None:
        ran = run("groups", "pause", *group, zookeeper=self.world.hosts)
        assert ran.code == 0, ran.err

    # --- the damage --------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes) -> None:
        """Overwrites a znode, as an operator would with zkCli.sh."""
        self.by_hand.add(self.world.store.set(path, data).mzxid)

    def delete(self, path: str) -> None:
        self.world.store.delete(path)
        self.by_hand.add(self.world.store.get(path.rpartition("/")[0]).stat.pzxid)

    def errors(self, path: str) -> list[Finding]:
        """The doctor's findings about a znode."""
        found = examine(self.world.store, self.world.hosts, session_timeout_ms=10_000)
        return [one for one in found if one.severity is Severity.ERROR and path in one.what]

    def remedy(self, path: str) -> str:
        """The doctor's first finding about a znode, with its remedy."""
        found = eventually(lambda: self.errors(path), within_s=20)[0]
        return f"{found.what}; {found.todo}"

    def heal(self, path: str, remedy: str, before: bytes) -> None:
        """Follows the doctor's remedy literally."""
        commands = [one for one in re.findall(r"kafka-coord ([^;,]+)", remedy) if " N " not in one]
        if found := re.search(r"set it to '([^']+)'", remedy):
            self.write(path, found[1].encode())
        elif found := re.search(r"zkCli\.sh -server \S+ set (\S+) (\d+)", remedy):
            self.write(found[1], found[2].encode())
        elif commands:
            eventually(lambda: self.carries_out(commands[0].split()))
        elif "Kafka wrote" in remedy or "which writes it again" in remedy:
            self.write(path, before)
        else:
            assert f"delete {path}" in remedy or "delete that znode" in remedy, remedy
            self.delete(path)

    def carries_out(self, command: list[str]) -> bool:
        """Runs an operator's command, and returns whether it was carried out. If it was refused because a member holds
        partitions, evicts that member."""
        ran = run(*command, zookeeper=self.world.hosts)
        if ran.code == 0:
            return True
        holder = re.search(r"(\w+) holds", ran.out + ran.err)
        assert holder, (command, ran)
        self.carries_out(["groups", "evict", GROUP, holder[1]])
        return False


NOTHING_REQUIRED = frozenset({"empty", "deleted"}) | READABLE
KINDS = {
    "registration": Kind(layout.registration(GROUP, "c1")),
    "ledger": Kind(layout.ledger(GROUP, "c1")),
    "channel": Kind(layout.channel(GROUP, "c1"), frozenset(DAMAGE)),  # the consumer registers again
    "command": Kind(layout.channel(GROUP, "c1"), frozenset(), Cluster.leaves_a_command),
    "target": Kind(layout.assignment(GROUP)),
    "settings": Kind(layout.group(GROUP), frozenset({"empty"}) | READABLE),
    "history": Kind(layout.history(GROUP), frozenset({"deleted"}) | READABLE),
    "settled": Kind(layout.settled(GROUP), prepare=Cluster.rests),
    "offset": Kind(layout.offset(GROUP, "flights", 0), prepare=Cluster.commits),
    # half of a number is also a number, which is the identity of another topic
    "identity of offsets": Kind(layout.topic_offsets(GROUP, "flights"), frozenset({"empty", "truncated"})),
    "pause": Kind(layout.paused(GROUP), NOTHING_REQUIRED, lambda cluster: cluster.pauses(GROUP)),
    "pause of all": Kind(layout.PAUSED, NOTHING_REQUIRED, lambda cluster: cluster.pauses("--all"), stops_all=True),
    "kinds": Kind(layout.kinds(partition_of(GROUP)), READABLE | {"deleted"}, Cluster.is_recorded),
    "request": Kind(REQUEST, prepare=Cluster.asks),
    "elected": Kind(layout.COORDINATOR),
    "epoch": Kind(layout.COORDINATOR_EPOCH, stops_all=True),
    "instance": Kind(layout.instance(1), frozenset(DAMAGE)),
    "topic": Kind(layout.broker_topic("flights"), frozenset()),
    "broker": Kind(layout.broker(1), frozenset()),
}
HAVE_CHILDREN_OR_AN_OWNER = frozenset({"command", "settings", "identity of offsets", "topic", "broker"})
"""Deleting one of these by hand is no damage, but an acknowledgement, or the end of a group or topic."""


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    with hanging_up() as port:
        yield Cluster(world, port)


@pytest.mark.parametrize("kind", KINDS)
def test_the_doctor_names_a_damaged_znode_its_remedy_works_and_other_groups_are_served(
    cluster: Cluster, zookeeper: ZooKeeperServer, chroot: str, kind: str, pytestconfig: pytest.Config
) -> None:
    world, damaged = cluster.world, KINDS[kind]
    number = sorted(KINDS).index(kind)
    for at, (damage, change) in enumerate(DAMAGE.items()):
        if (at + number) % 3 and not pytestconfig.option.long:
            continue
        if damage == "deleted" and kind in HAVE_CHILDREN_OR_AN_OWNER:
            continue
        damaged.prepare(cluster)
        path = damaged.path + "".join(f"/{name}" for name in world.children(damaged.path)[:1] if kind == "command")
        before = world.store.get(path).data
        written = change(before)
        cluster.delete(path) if written is None else cluster.write(path, written)
        if not damaged.stops_all:
            cluster.serves_a_bystander()
        if damage not in damaged.harmless:
            cluster.heal(path, cluster.remedy(path), before)
            eventually(lambda path=path: not cluster.errors(path), within_s=20, every_s=0.2)
        elif "pause" in kind and written is not None:
            cluster.carries_out(["groups", "resume", "--all" if damaged.stops_all else GROUP])
        look(world, GROUP)
        cluster.serves()
        cluster.serves_a_bystander()
    audited = run("audit", str(zookeeper.directory / "data"), "--chroot", chroot, "--running", "-o", "json")
    violations = json.loads(audited.out)["violations"]
    assert [one for one in violations if int(one["zxid"], 16) not in cluster.by_hand] == []


def test_data_written_to_parent_znodes_is_harmless(cluster: Cluster) -> None:
    parents = (layout.CONSUMERS, layout.COORDINATORS, layout.REQUESTS, layout.GROUPS)
    of_the_group = (layout.ids, layout.owners, layout.channels, layout.offsets)
    for path in (*parents, *(place(GROUP) for place in of_the_group)):
        cluster.write(path, DAMAGE["garbage"](b"") or b"")
    look(cluster.world, GROUP)
    cluster.serves()
    cluster.serves_a_bystander()
    assert cluster.errors("") == []


def test_a_damaged_record_of_the_tree_is_named_and_ends_no_examination(cluster: Cluster) -> None:
    before = cluster.world.store.get(layout.CLUSTER).data
    cluster.write(layout.CLUSTER, b"\xff garbage")
    found = [one.what for one in cluster.errors(layout.CLUSTER)]
    assert any(what.startswith(f"{layout.CLUSTER}: not JSON") for what in found), found
    assert any(what.startswith("nothing else could be checked") for what in found), found
    cluster.write(layout.CLUSTER, before)
    cluster.serves_a_bystander()
    assert cluster.errors("") == []


def test_a_damaged_record_of_a_restore_is_named(cluster: Cluster) -> None:
    cluster.world.store.create(layout.RESTORED, b"\xff garbage")
    assert "no instance starts; delete it" in cluster.remedy(layout.RESTORED)
