"""Scenes about servers: a topic without leader or without rights, and a ZooKeeper that is silent or loses its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafka_coord.errors import KafkaCoordError, NotFound
from kafka_coord.groups.offsets import read_all_committed
from kafka_coord.model import TopicPartition
from kafka_coord.monitor.audit import audit
from kafka_coord.zk import layout
from tests.chaos.journal import WORLD, Kind
from tests.chaos.logins import MEMBER, OTHER_MEMBER
from tests.chaos.testbed import Actor
from tests.chaos.world.casts import of_all_kinds, over_socket, own
from tests.chaos.world.scene import READ_S, Abandoned, Scene
from tests.chaos.world.topics import COMMITTED_S
from tests.chaos.world.waits import OTHER_TOPIC

_BLOCKED_S = 20.0
"""How long a topic is blocked at least, in seconds. It is longer than a member may take to begin with another topic."""
_RESOLVED_S = 5.0
"""A group that begins at the end must know the end of a topic within this time after its return, in seconds. A second
passes between two listings."""
_SETTLED_S = 14.0
_SILENT_S = 19.0
SILENT_SESSION_MS = 24_000
"""ZooKeeper's silence (s), and the session timeout (ms) of members that must survive it. The first lease lasts almost
as long as the session. After half of a session, leases last 70 % of it at most, which is 16.8 s (ADR 4). Servers that
were silent elect a leader, and a new leader gives all sessions their full timeout."""


def no_leader(scene: Scene) -> None:
    """The only broker with a replica of one topic is stopped before the group begins at the ends of its topics."""
    broker = scene.faults.claim("kafka", scene.pick)
    if broker is None:
        raise Abandoned("no broker is free")
    try:
        _one_topic_is_blocked(
            scene,
            _topic_on(scene, int(broker.name)),
            block=lambda: scene.faults.stop(broker),
            unblock=lambda: scene.faults.start(broker),
            own_fault=broker.target,
        )
    finally:
        if not broker.process.running:
            scene.faults.start(broker)
        broker.busy = False


def forbidden_topic(scene: Scene) -> None:
    """An ACL forbids reading, or even describing, one topic before the group begins at the ends of its topics. It
    applies to everybody but operators, or to one member."""
    admin = AdminClient({"bootstrap.servers": scene.testbed.bootstrap, "log_level": 0})
    topic = scene.topic("blocked")
    variant = int(scene.pick * 4)
    operation = AclOperation.READ if variant % 2 == 0 else AclOperation.DESCRIBE
    to_one = variant < 2
    rules = [
        _acl(topic, AclOperation.ALL, AclPermissionType.ALLOW, "*"),
        _acl(topic, operation, AclPermissionType.DENY, OTHER_MEMBER if to_one else "*"),
    ]
    any_of_topic = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )

    def order(asked: dict[object, object]) -> None:
        try:
            for one in asked.values():
                one.result(30.0)  # type: ignore[attr-defined]
        except (KafkaException, TimeoutError) as error:
            raise Abandoned(f"the brokers do not change their ACLs: {error}") from error

    def unblock() -> None:
        order(admin.delete_acls([any_of_topic], request_timeout=20.0))

    try:
        _one_topic_is_blocked(
            scene,
            topic,
            block=lambda: order(admin.create_acls(rules, request_timeout=20.0)),
            unblock=unblock,
            refused=variant if to_one else None,
        )
    finally:
        unblock()


def zookeeper_silent(scene: Scene) -> None:
    """ZooKeeper is silent for longer than the lease of the members, while records are produced to them."""
    topic = scene.topic(partitions=2)
    scene.join(own(scene.name, topic, session_timeout_ms=SILENT_SESSION_MS))
    scene.produce(topic, 20, (0, 1))
    if not scene.wait_until_read():
        return
    time.sleep(_SETTLED_S)
    scene.found.own.add("zookeeper:*")
    with scene.faults.zookeeper_frozen() as frozen:
        if not frozen:
            raise Abandoned("not all ZooKeeper servers are free")
        until = time.monotonic() + _SILENT_S
        while time.monotonic() < until:
            scene.produce(topic, 5, (0, 1))
            time.sleep(0.5)
    scene.produce(topic, 20, (0, 1))
    scene.wait_until_read()


def tree_lost(scene: Scene) -> None:
    """The disks of all ZooKeeper servers are lost, after a backup. Operators do what docs/operations.md says. Records
    that were committed after the backup are read again."""
    testbed, faults = scene.testbed, scene.faults
    topic, everywhere = scene.topic(partitions=4), range(4)
    for part in of_all_kinds(testbed.clients, scene.name, topic):
        scene.join(part)
    scene.produce(topic, 60, everywhere)
    if not scene.wait_until_read():
        return
    time.sleep(COMMITTED_S)
    backup = testbed.directory / f"{scene.name}.backup"
    _command(scene, "backup", str(backup))
    scene.produce(topic, 30, everywhere)
    if not scene.wait_until_read():
        return
    with faults.claimed("zookeeper", "serve") as claimed:
        if not claimed:
            raise Abandoned("not all servers are free")
        servers = [one for one in claimed if one.role == "zookeeper"]
        scene.found.own |= {one.target for one in claimed} | {f"group:{name}" for name in testbed.managed_groups()}
        for one in servers:
            faults.kill_only(one)
        for one in claimed:
            if one.role == "serve":
                faults.stop(one)
        scene.produce(topic, 30, everywhere)
        _audit_and_lose(scene, servers)
        faults.start_together(servers)
        testbed.connect()
        _command(scene, "restore", str(backup), "--execute", "--stopped", "--bootstrap", testbed.bootstrap)
        for name, found in read_all_committed(testbed.store, testbed.managed_groups(), {}).items():
            offsets: dict[str, dict[str, int]] = {}
            for tp, offset in found.offsets.items():
                offsets.setdefault(tp.topic, {})[str(tp.partition)] = offset
            faults.note(Kind.RESET, f"group:{name}", group=name, offsets=offsets)
        for one in claimed:
            if one.role == "serve":
                faults.start(one)
        scene.wait(lambda: testbed.store.exists(layout.COORDINATOR) is not None, READ_S)
    scene.produce(topic, 60, everywhere)
    scene.wait_until_read()


def _command(scene: Scene, *words: str) -> None:
    said = scene.faults.command(*words)
    if said.exit_code != 0:
        raise KafkaCoordError(f"kafka-coord {' '.join(words)} ended with {said.exit_code}: {said.output[-500:]}")


def _audit_and_lose(scene: Scene, servers: Sequence[Actor]) -> None:
    """Takes the servers' data away, and audits it, because the judge reads only what the servers have at the end."""
    lost = [scene.testbed.directory / f"zookeeper-{one.name}" / f"lost-{scene.name}" for one in servers]
    for path in lost:
        (path.parent / "data").rename(path)
    found = audit(lost)
    if not found.clean:
        raise KafkaCoordError(f"the audit of the lost tree found {found.violations[0]}")


def _one_topic_is_blocked(
    scene: Scene,
    blocked: str,
    block: Callable[[], None],
    unblock: Callable[[], None],
    own_fault: str = "",
    refused: int | None = None,
) -> None:
    """Members begin while one of their two topics is blocked. The other topic must not wait for it, and no record that
    is produced to the blocked topic after its return may be skipped. If the topic is blocked for one member only, which
    has the number ``refused``, the other one must read it."""
    free = scene.topic("free")
    if own_fault:
        scene.found.own.add(own_fault)
    block()
    begun = time.monotonic()
    members = [
        scene.join(make(scene.name, free, blocked, latest=True, user=OTHER_MEMBER if number == refused else MEMBER))
        for number, make in enumerate((own, over_socket))
    ]
    since = max(scene.opened_at(member) for member in members)
    readable = (free,) if refused is None else (free, blocked)

    def one_more() -> bool:
        for topic in readable:
            scene.produce(topic, 1, owed=False)
        have_begun = all(scene.first_read(topic, since) is not None for topic in readable)
        return have_begun and time.monotonic() >= begun + _BLOCKED_S

    scene.wait(one_more, _BLOCKED_S * 1.5)
    for topic in readable:
        first = scene.first_read(topic, since)
        scene.waited(OTHER_TOPIC, first - since if first is not None else None)
    unblock()
    scene.require(lambda: scene.started(TopicPartition(blocked, 0)), f"{blocked} was started")
    time.sleep(_RESOLVED_S)
    scene.produce(blocked, 50)
    scene.produce(free, 50)
    scene.wait_until_read()


def _topic_on(scene: Scene, broker_id: int) -> str:
    """Creates a topic whose only replica is on this broker."""
    name = scene.adopt(f"{WORLD}-{scene.name}-blocked")
    admin = AdminClient({"bootstrap.servers": scene.testbed.bootstrap, "log_level": 0})
    config = {"min.insync.replicas": "1"}
    (asked,) = admin.create_topics([NewTopic(name, 1, replica_assignment=[[broker_id]], config=config)]).values()
    try:
        asked.result(30.0)
    except (KafkaException, TimeoutError) as error:
        raise Abandoned(f"{name} was not created: {error}") from error
    scene.require(lambda: _is_known(scene, name), f"{name} is known")
    return name


def _is_known(scene: Scene, topic: str) -> bool:
    try:
        return scene.topics.partition_count(topic) == 1
    except NotFound:  # the broker that was asked has not heard of it yet
        return False


def _acl(topic: str, operation: AclOperation, permission: AclPermissionType, user: str) -> AclBinding:
    who = f"User:{user}"
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, who, "*", operation, permission)
