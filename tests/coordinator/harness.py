"""The parts of coordinator tests on a real ZooKeeper: instances, scripted consumers, and Kafka's topic znodes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kafka_coord.channel.operations import Holder, Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import MembershipLost, NoNode, StoreError
from kafka_coord.model import (
    NO_PARTITIONS,
    Assignment,
    Ledger,
    Member,
    PartitionSet,
    Process,
    Request,
    StartFetcher,
    Subscription,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.zk import connect, layout
from kafka_coord.zk.options import ZkOptions
from kafka_coord.zk.store import Node, Store
from tests.waiting import eventually

FAST = CoordinatorOptions(look_interval_ms=5_000, retry_backoff_ms=20, channel_retirement_ms=600_000)
RESTS_SOON = CoordinatorOptions(look_interval_ms=200, retry_backoff_ms=20, settled_after_ms=100)
SESSION_MS = 10_000
"""Long, so that no session expires on a slow machine. Tests of expiry end a session themselves or set a timeout."""


def open_store(hosts: str, session_timeout_ms: int = SESSION_MS, zk: ZkOptions | None = None) -> Store:
    return connect(hosts, session_timeout_ms=session_timeout_ms, options=zk)


def seen(service: CoordinatorService, topics: Iterable[str]) -> None:
    """Waits until the elected coordinator has seen the topics. To a group that has subscribed before that, they came
    later, and begin at their beginning."""
    eventually(lambda: (one := service.coordinator) is not None and one.catalog.names() >= {*topics})


class KafkaZnodes:
    """Writes Kafka's own znodes, for tests that need nothing else of Kafka."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.ensure_path(layout.BROKER_TOPICS)
        store.ensure_path(layout.BROKER_IDS)

    def topic(self, name: str, partitions: int, topic_id: str | None = None) -> None:
        """Creates the topic, or changes the partition list in its znode's data, as Kafka does."""
        self.raw_topic(name, topic_value(partitions, topic_id=topic_id))

    def raw_topic(self, name: str, data: bytes) -> None:
        path = layout.broker_topic(name)
        if self._store.exists(path):
            self._store.set(path, data)
        else:
            self._store.create(path, data)

    def delete_topic(self, name: str) -> None:
        self._store.delete(layout.broker_topic(name))

    def broker(self, broker_id: int, rack: str | None = None) -> None:
        value = {"version": 5, "host": "127.0.0.1", "port": 9092, "endpoints": [], "rack": rack}
        self._store.create(layout.broker(broker_id), json.dumps(value).encode(), ephemeral=True)


class Instance:
    """A running service with its own session."""

    def __init__(
        self,
        hosts: str,
        broker_id: int,
        options: CoordinatorOptions = FAST,
        zk: ZkOptions | None = None,
        session_timeout_ms: int = SESSION_MS,
        endpoints: Mapping[str, str] | None = None,
    ) -> None:
        self.store = open_store(hosts, session_timeout_ms, zk)
        self.broker_id = broker_id
        process = Process(f"kafka-{broker_id}", 4711, "0", round(time.time() * 1000))
        published = endpoints or {"channel": f"127.0.0.1:{9000 + broker_id}"}
        self.service = CoordinatorService(self.store, broker_id, published, options, process=process)

    def start(self) -> Instance:
        self.service.start()
        eventually(lambda: self.service.registered)
        return self

    def start_elected(self) -> Instance:
        self.start()
        eventually(lambda: self.service.leads)
        return self

    def stop(self) -> None:
        self.service.stop()
        self.store.close()


class ScriptedConsumer:
    """A consumer controlled by the test. It uses the real channel, in its own session.

    If it is ``obedient``, a thread carries out every command at once. Otherwise, :meth:`obey` carries out the next one.
    ``position`` has the offset to commit for each partition, and ``seen`` all commands that it has read.
    """

    def __init__(
        self,
        hosts: str,
        group: str,
        name: str,
        *,
        obedient: bool = True,
        zk: ZkOptions | None = None,
        session_timeout_ms: int = SESSION_MS,
        **member: Any,
    ) -> None:
        topics = member.pop("topics", ["flights"])
        member.setdefault("subscription", Subscription.to(topics))
        member.setdefault("follows_root", True)
        self.name = name
        self.store = open_store(hosts, session_timeout_ms, zk)
        self.channel = ConsumerChannel(self.store, group, name)
        self.member = Member(consumer=name, incarnation=0, timestamp="1", **member)
        self.registration: Registration | None = None
        self.owned: PartitionSet = NO_PARTITIONS
        self.started: dict[TopicPartition, int] = {}
        self.position: dict[TopicPartition, int] = {}
        self.seen: list[Any] = []
        self._obedient = obedient
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self) -> ScriptedConsumer:
        """Registers as a new incarnation."""
        found = self.channel.register(fields.dump(self.member.to_json()))
        assert not isinstance(found, Holder), f"{self.name} is held by {found}"
        self.registration = found
        self.owned = NO_PARTITIONS
        if self._obedient:
            self._thread = threading.Thread(target=self._obey_all, name=f"consumer-{self.name}", daemon=True)
            self._thread.start()
        return self

    def obey(self, *, acknowledge: bool = True) -> Any:
        """Carries out the next command, if there is one, and returns it. ``acknowledge=False`` leaves it
        outstanding."""
        assert self.registration is not None
        try:
            commands, _ = self.channel.outstanding(lambda _: self._changed.set())
        except NoNode:
            return None
        for command_id in commands:
            command = self.channel.read(command_id)
            if command is None:
                continue
            if command.incarnation != self.registration.incarnation:
                self.channel.drop(command_id)
                continue
            self.seen.append(command)
            if isinstance(command, StartFetcher):
                self.owned |= command.partitions
                self.started |= {tp: point.offset for tp, point in command.starts.items()}
                self.channel.started_at({tp: point.offset for tp, point in command.starts.items()})
                settled: Mapping[TopicPartition, int] = {}
            else:
                self.owned -= command.partitions
                settled = {tp: self.position[tp] for tp in command.partitions if tp in self.position}
            if acknowledge:
                self.channel.acknowledge(self.registration, command_id, settled)
            return command
        return None

    def leave(self) -> None:
        """Leaves cleanly: commits its offsets and deletes its registration."""
        self.halt()
        assert self.registration is not None
        offsets = {tp: offset for tp, offset in self.position.items() if tp in self.owned}
        self.channel.leave(self.registration, offsets)
        self.owned = NO_PARTITIONS

    def halt(self) -> None:
        """Stops carrying out commands, as if frozen. The session stays alive."""
        self._stop.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None
        self._stop.clear()

    def close(self) -> None:
        """Closes the session, which deletes the registration immediately."""
        self.halt()
        self.store.close()

    def _obey_all(self) -> None:
        while not self._stop.is_set():
            self._changed.clear()
            try:
                while self.obey() is not None:
                    pass
            except MembershipLost:
                return
            except StoreError:
                if self._stop.wait(0.05):
                    return
                continue
            self._changed.wait(1.0)


class World:
    """The contents of one chroot on ZooKeeper, observed from outside, and the processes that a test starts."""

    def __init__(self, hosts: str, zk: ZkOptions | None = None, session_timeout_ms: int = SESSION_MS) -> None:
        self.hosts = hosts
        self._session_timeout_ms = session_timeout_ms
        self.store = open_store(hosts, session_timeout_ms, zk)
        self.kafka = KafkaZnodes(self.store)
        self.instances: list[Instance] = []
        self._consumers: list[ScriptedConsumer] = []

    def instance(
        self,
        broker_id: int,
        options: CoordinatorOptions = FAST,
        zk: ZkOptions | None = None,
        endpoints: Mapping[str, str] | None = None,
    ) -> Instance:
        self.instances.append(Instance(self.hosts, broker_id, options, zk, self._session_timeout_ms, endpoints))
        return self.instances[-1]

    def consumer(self, name: str, group: str = "delays", **member: Any) -> ScriptedConsumer:
        self._consumers.append(
            ScriptedConsumer(self.hosts, group, name, session_timeout_ms=self._session_timeout_ms, **member)
        )
        return self._consumers[-1]

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        for instance in self.instances:
            instance.stop()
        self.store.close()

    # --- the contents of ZooKeeper -----------------------------------------------------------------------------------

    def node(self, path: str) -> Node | None:
        try:
            return self.store.get(path)
        except NoNode:
            return None

    def value(self, path: str) -> dict[str, Any]:
        return fields.load(self.store.get(path).data, path)

    def children(self, path: str) -> tuple[str, ...]:
        try:
            return self.store.children(path)
        except NoNode:
            return ()

    def target(self, group: str = "delays") -> Assignment | None:
        node = self.node(layout.assignment(group))
        path = layout.assignment(group)
        return (
            Assignment.from_json(fields.load(node.data, path), path, znode_version=node.stat.version) if node else None
        )

    def ledgers(self, group: str = "delays") -> dict[str, Ledger]:
        found = {}
        for consumer in self.children(layout.owners(group)):
            path = layout.ledger(group, consumer)
            node = self.node(path)
            if node is not None:
                found[consumer] = Ledger.from_json(
                    fields.load(node.data, path), path, consumer=consumer, znode_version=node.stat.version
                )
        return found

    def outstanding(self, group: str = "delays") -> list[str]:
        return [
            f"{consumer}/{command}"
            for consumer in self.children(layout.channels(group))
            for command in self.children(layout.channel(group, consumer))
        ]

    def owned(self, group: str = "delays") -> dict[str, PartitionSet]:
        return {consumer: ledger.owned for consumer, ledger in self.ledgers(group).items() if ledger.owned}

    def settled(self, group: str = "delays") -> Assignment | None:
        """The target, once every ledger matches it exactly and no command is outstanding."""
        target, ledgers = self.target(group), self.ledgers(group)
        if target is None or self.outstanding(group) or any(led.stopping for led in ledgers.values()):
            return None
        wanted = {consumer: owned for consumer, owned in target.members.items() if owned}
        # from the same read, because a later ledger would not match its commands
        return target if wanted == {c: ledger.owned for c, ledger in ledgers.items() if ledger.owned} else None

    def settles(self, *members: str, group: str = "delays", partitions: int | None = None) -> Assignment:
        """Waits until the group has settled with exactly these members, which own ``partitions`` partitions in all."""

        def reached() -> Assignment | None:
            target = self.settled(group)
            if target is None or set(target.members) != set(members):
                return None
            total = sum(map(len, target.members.values()))
            return target if partitions is None or total == partitions else None

        return eventually(reached)

    def history(self, group: str = "delays") -> list[Any]:
        path = layout.history(group)
        node = self.node(path)
        return list(Trail.from_json(fields.load(node.data, path), path).decisions) if node else []

    def ask(self, request: Request) -> Request:
        """Writes a request and waits for its answer."""
        path = self.store.create(layout.REQUEST_PREFIX, fields.dump(request.to_json()), sequence=True)

        def answer() -> Request | None:
            found = Request.from_json(fields.load(self.store.get(path).data, path), path)
            return found if found.answered else None

        return eventually(answer)
