"""Runs the processes of a run: three ZooKeeper servers, three brokers, three coordinators, consumers and a producer,
with the links between them."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from kafka_coord.dev.cluster.kafka import Broker, KafkaBroker, KafkaSettings
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.server import JvmServer
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import EnsemblePeer, ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import DevClusterError, StoreUnavailable
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.state import read_groups
from kafka_coord.model import GroupKind, Member
from kafka_coord.zk import layout
from kafka_coord.zk.session import KazooStore, connect
from tests.chaos.links import Link, Network
from tests.chaos.logins import (
    INSTANCE,
    OF_BROKERS,
    OF_INSTANCES,
    OF_MEMBERS,
    OPERATOR,
    Listener,
    as_options,
    broker_properties,
    login,
)
from tests.chaos.parts import MODULES, TOPICS, Part
from tests.chaos.skewed import set_skew

SERVE_SESSION_MS = 6_000
KAFKA_SESSION_MS = 6_000
CONSUMER_PROTOCOL_SESSION_MS = 6_000
"""The session timeout of KIP-848 members."""
SERVERS = 3
IDLE_MS = 12_000
"""How long brokers keep an unused connection open, which in Kafka is ten minutes."""

_ZOOKEEPER = ZooKeeperSettings(
    # A leader learns of its followers' sessions every half tick, and ends them at the next whole tick. With 500 ms, a
    # session of 6 s may last 6.75 s, and no coordinator can compensate for this.
    tick_ms=200,
    max_session_ms=60_000,
    heap_mb=128,
    properties={
        "initLimit": "50",  # in ticks, so the limit in seconds stays the default
        "syncLimit": "25",
        # All transaction logs stay, because the audit reads them from the first write on.
        "autopurge.purgeInterval": "0",
    },
)
KAFKA = KafkaSettings(
    session_ms=KAFKA_SESSION_MS,
    replication=3,
    for_instances=True,
    properties={
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
        "connections.max.idle.ms": str(IDLE_MS),
        # Everybody may do everything, except what a scene forbids.
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": "1000",
    },
)
_READY_S = 300.0
"""Long, because a machine that does other things at the same time starts a JVM in a minute or more."""
_TOPICS_WITHIN_S = 240.0
"""A topic of many partitions takes as long there."""


@dataclass(slots=True, eq=False)
class Actor:
    """A process of the run. ``link`` is its link to ZooKeeper, or from a ZooKeeper server to the other servers. It is
    ``busy`` while a fault uses it. Only the thread that has set ``busy``, under the testbed's lock, starts and ends the
    process.
    """

    role: str
    name: str
    process: ChildProcess
    launch: Callable[[], None]
    ready: Callable[[], bool]
    links: tuple[Link, ...] = ()
    skew: Path | None = None
    part: Part | None = None
    busy: bool = True
    server: JvmServer | None = field(default=None, repr=False)

    @property
    def target(self) -> str:
        return f"{self.role}:{self.name}"

    @property
    def membership(self) -> Part:
        """The description of a consumer. Raises :class:`TypeError` for another process."""
        if self.part is None:
            raise TypeError(f"{self.target} is no consumer")
        return self.part

    @property
    def clock(self) -> Path:
        """The file that the process's wall clock follows. Raises :class:`TypeError` if there is none."""
        if self.skew is None:
            raise TypeError(f"the clock of {self.target} cannot be moved")
        return self.skew

    def start(self, timeout_s: float = _READY_S) -> None:
        """Starts the process, and waits until it works. On failure, raises :class:`DevClusterError` with its log."""
        self.launch()
        self.process.wait_until(self.ready, timeout_s)

    def mend(self) -> None:
        for link in self.links:
            link.mend()


@dataclass(frozen=True, slots=True)
class _Front:
    """An instance's listener for Kafka clients: its port, the clients' link to it, and its link to its broker."""

    listens: int
    clients: Link
    broker: Link


class ChaosTestbed:
    """All processes of a run. The end of the ``with`` block ends all of them."""

    broker: type[Broker] = KafkaBroker
    settings = KAFKA
    has_logins = True
    """Whether the instances, the members and the operators log in at the brokers."""
    linger_ms = 1_000
    """How long the producer collects a batch: long ones leave the cores of a small machine to the judged processes."""

    def __init__(
        self, directory: Path, per_s: float, *, clients: str = "library", topics: Mapping[str, int] = TOPICS
    ) -> None:
        self.at_start = topics
        """The topics at the start, and their numbers of partitions."""
        self.directory = directory.absolute()
        self.clients = clients
        self.lock = threading.Lock()
        self.actors: list[Actor] = []
        self._per_s = per_s
        self._produces_to_instances = clients != "library"
        self.managed = ".*" if clients == "mixed" else None
        """The option ``--managed-groups`` of the instances."""
        self.new_groups = ""
        """The option ``--new-groups`` of the instances."""
        self.quiet = False
        """Whether observers leave the instances alone, because connections that they cause to be used are not idle."""
        self._fronts: dict[int, _Front] = {}
        self._of_members: list[str] = []
        """The brokers' addresses for members."""
        self.network: Any = Network()
        self._left = ExitStack()
        self._ghosts: dict[int, int | None] = {}
        self._channels: dict[int, str] = {}
        """The coordinators' addresses for consumers without ZooKeeper."""

    # --- what there is -----------------------------------------------------------------------------------------------

    def of(self, *roles: str) -> tuple[Actor, ...]:
        with self.lock:
            return tuple(actor for actor in self.actors if actor.role in roles)

    def actor(self, target: str) -> Actor:
        return next(actor for actor in self.actors if actor.target == target)

    @property
    def hosts(self) -> str:
        """ZooKeeper's address without a proxy, for observers."""
        return ",".join(server.connect_string for server in self._zookeepers)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self._brokers)

    @property
    def instances(self) -> str:
        """The instances' addresses for stock clients, through their links."""
        return ",".join(_hosts(front.clients) for front in self._fronts.values())

    def stock_client(self, group: str) -> dict[str, Any]:
        """Returns the settings of an observer's client of this group, which connects to the instances."""
        return {"bootstrap.servers": self.instances, "group.id": group, "log_level": 0, **login(self.user(OPERATOR))}

    def zookeeper_leader(self) -> Actor | None:
        """Returns the server that currently leads, according to its own report."""
        found = (server for server in self._zookeepers if server.running and server.mode() == "leader")
        leader = next(found, None)
        return None if leader is None else self.actor(f"zookeeper:{leader.server_id}")

    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(actor.part.group for actor in self.of("consumer") if actor.part))

    def managed_groups(self) -> tuple[str, ...]:
        """Returns those of :meth:`groups` that the coordinator manages."""
        if self.clients == "kafka":
            return ()
        return tuple(group for group in self.groups() if self.managed is None or re.fullmatch(self.managed, group))

    def assigned_groups(self) -> tuple[str, ...]:
        """Returns the client-assigned ones of :meth:`groups`."""
        managed = self.managed_groups()
        return tuple(group for group in self.groups() if group not in managed)

    def user(self, user: str) -> str:
        """Returns as whom this user logs in, or "" if nobody does."""
        return user if self.has_logins else ""

    def members(self, group: str) -> tuple[Member, ...]:
        """Returns the members of a managed group. Raises :class:`KafkaCoordError`."""
        found = read_groups(self.store, [group], read_cluster(self.store))[group]
        return tuple(found.observation.members.values())

    # --- setting it up -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._left.enter_context(self.network)
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            actor.process.kill()
        self._left.close()

    def set_up(self, parts: Sequence[Part], tell: Callable[[str], None]) -> None:
        """Starts everything in order. Raises :class:`DevClusterError`."""
        tell("starting three ZooKeeper servers")
        self._zookeepers = self._make_zookeepers()
        self._start(self.of("zookeeper"))
        tell("starting three Kafka brokers")
        self._brokers = self._make_brokers()
        self._start(self.of("kafka"))
        everyone = {broker.broker_id for broker in self._brokers}
        for broker in self._brokers:
            broker.wait_until(lambda broker=broker: broker.sees(everyone), _READY_S)  # type: ignore[misc]
        self.topics = TopicAdmin(self.bootstrap, timeout_s=_TOPICS_WITHIN_S)
        for topic, partitions in self.at_start.items():
            self.topics.create(topic, partitions, replication=3)
        if self.new_groups == GroupKind.NATIVE:  # a cluster that has had groups before it got instances
            earlier = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "earlier"})
            with suppress(KafkaException):  # the brokers have their topic then, whatever they answer
                earlier.committed([TopicPartition(next(iter(self.at_start)), 0)], timeout=_READY_S)
            earlier.close()
        self.connect()
        tell("starting three coordinators, the producer and the consumers")
        self._begin_tree()
        for number in range(1, SERVERS + 1):
            self._make_serve(number)
        self._start(self.of("serve"))
        self._make_producer()
        self._start(self.of("producer"))
        self._start([self.add_consumer(part) for part in parts])
        for actor in self.actors:
            actor.busy = False

    def connect(self) -> None:
        """Connects to ZooKeeper, with a client that has seen nothing."""
        self.store: KazooStore = connect(self.hosts, session_timeout_ms=30_000)
        self._left.callback(self.store.close)

    def _begin_tree(self) -> None:
        """Makes the coordination tree, unless the instances do."""

    def _serve_options(self) -> list[str]:
        """Returns further options of the instances."""
        managed = ["--managed-groups", self.managed] if self.managed is not None else []
        return managed + (["--new-groups", self.new_groups] if self.new_groups else [])

    def add_consumer(self, part: Part, *, role: str = "consumer", directory: Path | None = None) -> Actor:
        """Adds a consumer of this description, which is not started yet, and is busy. It writes its journal below
        ``directory``. Faults hit only consumers with the usual ``role``."""
        directory = directory or self.directory
        # A consumer without ZooKeeper has no link, because its connection belongs to a coordinator's link.
        without = part.socket or part.stock
        link = self.network.link([server.port for server in self._zookeepers]) if not without else None
        bootstrap = self.instances if part.stock else ",".join(self._of_members)
        part = replace(part, channel=",".join(self._channels.values()), user=self.user(part.user))
        skew = self._skew_file(f"consumer-{part.name}")
        module = f"tests.chaos.{MODULES[part.kind]}"
        arguments = ["--zookeeper", _hosts(link) if link is not None else "none", "--bootstrap", bootstrap]
        arguments += ["--part", part.to_argument(), "--directory", str(directory)]
        process = ChildProcess(part.name, _skewed(skew, module, arguments), self._log(f"consumer-{part.name}"))
        written = directory / "consumers"

        def has_begun() -> bool:
            return (written / f"{part.name}.{process.pid}.jsonl").exists()

        return self._add(
            Actor(
                role,
                part.name,
                process,
                process.start,
                has_begun,
                (link,) if link is not None else (),
                skew,
                part,
            )
        )

    def note_ghost(self, actor: Actor) -> None:
        """Call this before a restart of a ``serve`` process, because the current registration belongs to the earlier
        process."""
        if actor.role == "serve":
            self._ghosts[int(actor.name)] = self.session_at(layout.instance(int(actor.name)))

    def session_at(self, path: str) -> int | None:
        """Returns the session that owns this ephemeral znode, or None if there is no such znode. Repeats the request
        until ZooKeeper answers, because ZooKeeper also has faults."""
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                found = self.store.exists(path)
            except StoreUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)
            else:
                return found.ephemeral_owner or None if found is not None else None

    def take_dead(self, actor: Actor) -> bool:
        """Tells whether the process ended without a fault. If so, sets it to ``busy`` for the caller."""
        with self.lock:
            if actor.busy or actor.process.running:
                return False
            actor.busy = True
            return True

    def remove(self, actor: Actor) -> None:
        """Removes the process from the run."""
        with self.lock:
            self.actors.remove(actor)

    def _add(self, actor: Actor) -> Actor:
        with self.lock:
            self.actors.append(actor)
        return actor

    def _start(self, actors: Iterable[Actor]) -> None:
        started = list(actors)
        for actor in started:
            actor.launch()
        for actor in started:
            actor.process.wait_until(actor.ready, _READY_S)

    def _make_zookeepers(self) -> tuple[ZooKeeperServer, ...]:
        real = [EnsemblePeer(number, free_port(), free_port()) for number in range(1, SERVERS + 1)]
        servers = []
        for peer in real:
            # Each server reaches the others through its own links, and listens on its own ports.
            links = {
                other.server_id: self.network.link([other.quorum_port, other.election_port], patience_s=2.0)
                for other in real
                if other is not peer
            }
            known = [
                EnsemblePeer(other.server_id, *links[other.server_id].ports) if other is not peer else peer
                for other in real
            ]
            server = ZooKeeperServer(
                self.directory / f"zookeeper-{peer.server_id}",
                settings=_ZOOKEEPER,
                server_id=peer.server_id,
                ensemble=known,
            )
            self._add(_server("zookeeper", str(peer.server_id), server, tuple(links.values())))
            servers.append(server)
        return tuple(servers)

    def _make_brokers(self) -> tuple[Broker, ...]:
        brokers = []
        for number in range(1, SERVERS + 1):
            link = self.network.link([server.port for server in self._zookeepers])
            members = f"{LOOPBACK}:{free_port()}"
            broker = self.broker(
                self.directory / f"kafka-{number}",
                number,
                _hosts(link),
                settings=self.settings,
            )
            listens = free_port()
            clients = self.network.link([listens])
            broker.instance_port = clients.ports[0]  # the address that the broker advertises
            self._fronts[number] = _Front(listens, clients, self.network.link([broker.listener_port]))
            listeners = (
                Listener(OF_BROKERS, broker.address, broker.address),
                Listener(OF_MEMBERS, members, members),
                Listener(OF_INSTANCES, broker.listener_address, broker.instance_address),
            )
            properties = {**broker.settings.properties, **self._of_listeners(listeners)}
            broker.settings = replace(broker.settings, properties=properties)
            self._add(_server("kafka", str(number), broker, (link,)))
            brokers.append(broker)
            self._of_members.append(members)
        return tuple(brokers)

    def _of_listeners(self, listeners: tuple[Listener, ...]) -> Mapping[str, str]:
        """Returns the brokers' properties for these listeners."""
        return broker_properties(listeners)

    def _make_serve(self, number: int) -> None:
        link = self.network.link([server.port for server in self._zookeepers])
        listens = free_port()
        channel = self.network.link([listens])
        self._channels[number] = _hosts(channel)
        skew = self._skew_file(f"serve-{number}")
        arguments = ["serve", "--broker-id", str(number), "--zookeeper", _hosts(link)]
        arguments += ["--session-timeout-ms", str(SERVE_SESSION_MS), *as_options(self.user(INSTANCE))]
        arguments += ["--listen-channel", f"{LOOPBACK}:{listens}", "--advertise-channel", _hosts(channel)]
        front = self._fronts[number]
        arguments += ["--listen-kafka", f"{LOOPBACK}:{front.listens}", "--broker-listener", _hosts(front.broker)]
        arguments += ["--kafka-consumer-session-timeout-ms", str(CONSUMER_PROTOCOL_SESSION_MS)]
        arguments += self._serve_options()
        links = (link, channel, front.clients, front.broker)
        process = ChildProcess(
            f"serve-{number}", _skewed(skew, "kafka_coord.cli.main", arguments), self._log(f"serve-{number}")
        )

        def registered() -> bool:
            return self.session_at(layout.instance(number)) not in {None, self._ghosts.get(number)}

        self._add(Actor("serve", str(number), process, process.start, registered, links, skew))

    def _make_producer(self) -> None:
        bootstrap = self.instances if self._produces_to_instances else self.bootstrap
        arguments = ["--bootstrap", bootstrap, "--directory", str(self.directory), "--per-s", str(self._per_s)]
        arguments += ["--linger-ms", str(self.linger_ms)]
        arguments += ["--user", OPERATOR] if self._produces_to_instances and self.has_logins else []
        module = "tests.chaos.producing"
        process = ChildProcess("producer", [sys.executable, "-m", module, *arguments], self._log("producer"))
        self._add(Actor("producer", "1", process, process.start, lambda: True))

    def _skew_file(self, name: str) -> Path:
        path = self.directory / "clocks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        set_skew(path, 0.0)
        return path

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"


def _server(role: str, name: str, server: JvmServer, links: tuple[Link, ...]) -> Actor:
    def serving() -> bool:
        try:
            return server.serving()
        except DevClusterError:
            return False

    return Actor(role, name, server.process, server.launch, serving, links, server=server)


def _hosts(link: Link) -> str:
    return ",".join(f"{LOOPBACK}:{port}" for port in link.ports)


def _skewed(skew: Path, module: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tests.chaos.skewed", str(skew), module, *arguments]
