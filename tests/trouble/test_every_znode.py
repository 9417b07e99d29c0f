"""Every znode of a living cluster is damaged in a dozen ways, one at a time.

Each time the bystander's group is served, the doctor names the znode as an error, and its remedy heals it. In the end
the audit of ZooKeeper's log finds no violation. Damage that harms nobody, or that the coordinator repairs by itself, is
listed here. ``KAFKA_COORD_EVERY_DAMAGE=1`` tries each damage on each znode, otherwise a third of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import NoNode
from kafka_coord.model import Pause, Request, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.doctor import Finding, Severity, examine
from kafka_coord.zk import layout
from tests.cli.running import run
from tests.coordinator.harness import ScriptedConsumer, World
from tests.monitor.listening import listening
from tests.trouble.conftest import look, put, remove
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

GROUP = "delays"
OFFSET = 4711
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


@dataclass(frozen=True, slots=True)
class Kind:
    """A znode, what of :data:`DAMAGE` it bears without harm, and what has to be there for it to be damaged."""

    path: str
    harmless: frozenset[str] = HEALS_ITSELF
    prepare: Callable[[World], object] = field(default=lambda _: None)


def _request(world: World) -> None:
    """Under a name that no listener has seen: whether it is answered before it is damaged does not matter."""
    put(world, layout.request("request-0000000099"), fields.dump(Request(RequestType.LOOK, group=GROUP).to_json()))


def _pause(path: str) -> Callable[[World], None]:
    return lambda world: put(world, path, fields.dump(Pause(by="me", reason="disks").to_json()))


KINDS = {
    "registration": Kind(layout.registration(GROUP, "c1")),
    "ledger": Kind(layout.ledger(GROUP, "c1")),
    "target": Kind(layout.assignment(GROUP)),
    "settings": Kind(layout.group(GROUP), frozenset({"empty", "another's value", "a lone surrogate"})),
    "history": Kind(layout.history(GROUP)),
    "offset": Kind(layout.offset(GROUP, "flights", 0)),
    "identity of offsets": Kind(layout.topic_offsets(GROUP, "flights"), frozenset({"empty", "deleted"})),
    "pause": Kind(layout.paused(GROUP), frozenset({"empty", "deleted"}), _pause(layout.paused(GROUP))),
    "pause of all": Kind(layout.PAUSED, frozenset({"empty", "deleted"}), _pause(layout.PAUSED)),
    "request": Kind(layout.request("request-0000000099"), frozenset({"deleted"}), _request),
    "elected": Kind(layout.COORDINATOR),
    "epoch": Kind(layout.COORDINATOR_EPOCH),
    "instance": Kind(layout.instance(1), frozenset(DAMAGE)),
    "topic": Kind(layout.broker_topic("flights"), frozenset()),
    "broker": Kind(layout.broker(1), frozenset()),
}
EVERYTHING = os.environ.get("KAFKA_COORD_EVERY_DAMAGE") == "1"


class Cluster:
    """An instance, a group of two members with a stored offset, and a bystander's group."""

    def __init__(self, world: World, broker_port: int) -> None:
        self.world = world
        self.members: dict[str, ScriptedConsumer] = {}
        self._newcomers = iter(range(1, 1_000))
        self._values: dict[str, bytes] = {}
        world.kafka.topic("calm", 2)
        endpoint = {"version": 5, "endpoints": [f"PLAINTEXT://127.0.0.1:{broker_port}"]}
        put(world, layout.broker(1), json.dumps(endpoint).encode())
        put(world, layout.offset(GROUP, "flights", 0), b"%d" % OFFSET)
        world.instance(1).start_elected()
        self.serves()

    def serves(self) -> None:
        """The group has two live members, and each its half."""
        for name in ("c1", "c2"):
            known = self.members.get(name)
            node = self.world.node(layout.registration(GROUP, name))
            if known is None or node is None or node.stat.czxid != known.registration.incarnation:
                if known is not None:
                    known.close()
                self.members[name] = self.world.consumer(name, group=GROUP).join()
        self.world.settles("c1", "c2", group=GROUP, partitions=4)

    def serves_the_bystander(self) -> None:
        group = f"calm-{next(self._newcomers)}"
        self.world.consumer("x1", group=group, topics=["calm"]).join()
        self.world.settles("x1", group=group, partitions=2)

    def errors(self, path: str) -> list[Finding]:
        """What the doctor says is wrong with a znode."""
        found = examine(self.world.store, self.world.hosts, session_timeout_ms=10_000)
        return [one for one in found if one.severity is Severity.ERROR and path in one.what]

    def heal(self, path: str, todo: str, before: bytes) -> None:
        """Does what the doctor says."""
        if "reset-offsets" in todo:  # the command asks the brokers first, which do not run here; then it asks this
            assert "--topic flights:0 --to-offset N --execute" in todo
            self._reset(TopicPartition("flights", 0))
        elif found := re.search(r"set it to '([^']+)'", todo):
            self.world.store.set(path, found[1].encode())
        elif found := re.search(r"zkCli\.sh -server \S+ set (\S+) (\d+)", todo):
            self.world.store.set(found[1], found[2].encode())
        elif found := re.search(r"kafka-coord (.+?)(?:;|,|$)", todo):
            ran = run(*found[1].split(), zookeeper=self.world.hosts)
            assert ran.code == 0, (todo, ran.err)
        elif "delete" in todo and "Kafka" not in todo and "broker" not in todo:
            remove(self.world, path)
        else:  # Kafka's own: its owner writes it anew
            assert path.startswith("/brokers/"), todo
            self.world.store.set(path, before)

    def _reset(self, partition: TopicPartition) -> None:
        for consumer, ledger in self.world.ledgers(GROUP).items():
            if partition in ledger.held:
                assert self.world.ask(Request(RequestType.EVICT, group=GROUP, consumer=consumer)).result == "done"
        request = Request(RequestType.RESET_OFFSETS, group=GROUP, offsets={partition: OFFSET})
        eventually(lambda: self.world.ask(request).result == "done")


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    with listening() as port:
        yield Cluster(world, port)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_znode_is_named_healed_as_said_and_felt_by_nobody_else(
    cluster: Cluster, zookeeper: ZooKeeperServer, chroot: str, kind: str
) -> None:
    world, damaged = cluster.world, KINDS[kind]
    number = sorted(KINDS).index(kind)
    for at, (damage, change) in enumerate(DAMAGE.items()):
        if (not EVERYTHING and (at + number) % 3) or (damage == "deleted" and damaged.path.startswith("/brokers/")):
            continue
        damaged.prepare(world)
        node = world.node(damaged.path)
        before = node.data if node is not None else b""
        written = change(before)
        try:
            world.store.delete(damaged.path) if written is None else world.store.set(damaged.path, written)
        except NoNode:
            continue  # carried out before it could be damaged
        if "pause of all" not in kind:
            cluster.serves_the_bystander()
        if damage in damaged.harmless:
            if "pause" in kind and written is not None:
                remove(world, damaged.path)
        else:
            errors = eventually(lambda path=damaged.path: cluster.errors(path), within_s=20)
            cluster.heal(damaged.path, errors[0].todo + errors[0].what * ("identity" in kind), before)
            eventually(lambda path=damaged.path: not cluster.errors(path), within_s=20, every_s=0.2)
        look(world, GROUP)
        cluster.serves()
        cluster.serves_the_bystander()
    audited = run("audit", str(zookeeper.directory / "data"), "--chroot", chroot, "--running", "-o", "json")
    assert json.loads(audited.out)["violations"] == []
