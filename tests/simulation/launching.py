"""Starts, cuts off, kills and restarts the processes of a simulated cluster."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING

from kafka_coord.channel.link import SocketLink
from kafka_coord.channel.messages import Register
from kafka_coord.channel.operations import MemberChannel, SessionHandle
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.connector import Connector
from kafka_coord.coordinator.assignors import load_assignors
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.decision_writer import DecisionWriter, PreparedPlan
from kafka_coord.coordinator.execute import EVERY_S, TermThread
from kafka_coord.coordinator.image import Snapshot
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.mirroring import MetadataOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.errors import Fenced, MalformedValue, StoreUnavailable
from kafka_coord.frontends.kafka.managed import classic, heartbeats
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.members.registering import registration_value
from kafka_coord.frontends.socket.gateway import LeadershipView
from kafka_coord.model import Member, PartitionSet, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, OwnTree, Source
from kafka_coord.zk.store import SessionState
from tests.frontends.machine import invariants  # noqa: F401  every term checks them
from tests.simulation.applications import SimulatedFetchers
from tests.simulation.classic_members import ClassicMember
from tests.simulation.garbage import GARBAGE
from tests.simulation.group_kind import GROUP, SOFTWARE
from tests.simulation.invariants import InvariantBroken
from tests.simulation.kafka_front import SimulatedListener, SimulatedTerms
from tests.simulation.kafka_members import Identity, KafkaMember, Surroundings
from tests.simulation.process import Process
from tests.simulation.sockets import PipeliningLink, SimulatedClient, SimulatedGateway, Wire
from tests.simulation.store import SimulatedStore

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster


SESSION_MS = 4_000

_assignors = cache(load_assignors)
TREE = ClusterRecord("simulated", 1, Source.ZOOKEEPER, 0)


class Launcher:
    """Starts the processes of ``cluster``: service instances, and consumers of both kinds."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster

    def start(self, name: str) -> None:
        store = SimulatedStore(self.cluster.server, self.cluster.clock, self.cluster, SESSION_MS, name)
        process = self.cluster.processes[name] = Process(name, store)
        if name.startswith("serve"):
            self.reconnect(process)
            self._start_service(process)
        else:
            if not (self.cluster.kind.by_socket(name) or self.cluster.kind.by_kafka(name)):
                self.reconnect(process)
            self._start_consumer(process)

    def _start_service(self, process: Process) -> None:
        broker_id = int(process.name.rpartition("-")[2])
        leadership_view = LeadershipView()
        tree = OwnTree(process.store, lambda _store: TREE)
        service = process.service = leadership_view.service = CoordinatorService(
            process.store,
            broker_id,
            {"channel": process.name},
            self.cluster.options,
            _assignors(),
            lister=self.cluster.log.listed,
            metadata=self._metadata(),
            tree=tree,
        )

        def body() -> None:
            known = None
            while True:
                wait_s = service.turn()
                if service.coordinator is not None and service.coordinator is not known:
                    known = service.coordinator
                    self.cluster.spawn(process, "handler", partial(self._handle, known))
                    for thread in known.threads:
                        self.cluster.spawn(process, thread.name, partial(self._repeat, thread, known))
                self.cluster.scheduler.sleep(self.cluster.clock.now + wait_s, service.awake.is_set)

        self.cluster.spawn(process, "service", body)
        if self.cluster.kind.sockets != "none":
            nonce = partial(self._word, process)
            gateway = process.gateway = SimulatedGateway(process.store, broker_id, leadership_view, nonce)
            self.cluster.spawn(process, "gateway", partial(self._serve, gateway))
        if self.cluster.kind.kafka != "none":
            self._start_listener(process, broker_id, tree)

    def _metadata(self) -> MetadataOptions | None:
        brokers = self.cluster.brokers
        return None if brokers is None else MetadataOptions(lambda: brokers, bootstrap={"": [("b1", 9092)]})

    def _start_listener(self, process: Process, broker_id: int, tree: OwnTree) -> None:
        cluster = self.cluster

        def failed(error: Exception) -> None:
            cluster.checker.broken = cluster.checker.broken or InvariantBroken(f"{process.name}: {error!r}")

        def heard(member_id: str) -> None:
            cluster.checker.heard(process, member_id, cluster.ms())

        def terms(lost: Callable[[int, str], None]) -> SimulatedTerms:
            timeout_s = cluster.kind.kafka_session_ms / 1000
            return SimulatedTerms(process.store, lost, cluster.scheduler, timeout_s, failed, heard)

        listener = process.listener = SimulatedListener(process.store, broker_id, tree, terms)

        def listen() -> None:
            while True:
                listener.turn()
                cluster.scheduler.sleep(float("inf"), listener.is_awake)

        def follow() -> None:
            while True:
                connected = process.store.session.state is SessionState.CONNECTED
                if connected:
                    listener.follow(leads=cluster.log_leader == process.name)
                cluster.scheduler.sleep(cluster.clock.now + cluster.rng.random() * 0.5)

        cluster.spawn(process, "managed groups", listener.terms.run)
        cluster.spawn(process, "listener", listen)
        cluster.spawn(process, "leadership", follow)

    def _serve(self, gateway: SimulatedGateway) -> None:
        while True:
            due = gateway.turn()
            self.cluster.scheduler.sleep(max(due, self.cluster.clock.now), gateway.is_awake)

    def _word(self, process: Process) -> str:
        """Returns a unique word, for a resume key."""
        self.cluster._events_made += 1
        return f"{process.name} {self.cluster._events_made}"

    def _handle(self, coordinator: ConsumerCoordinator) -> None:
        handler, queue = coordinator.handler, coordinator.queue
        self._check_plans(handler._writer)
        while not (handler.closed or handler.deposed):
            if handler.step():
                self.cluster.scheduler.pause()
            elif len(queue):  # it may not decide now
                self.cluster.scheduler.sleep(self.cluster.clock.now + 0.02)
            else:
                due = queue.next_due()
                self.cluster.scheduler.sleep(
                    self.cluster.clock.now + 0.5 if due is None else due, lambda: len(queue) > 0
                )
        if handler.deposed:
            self.cluster.occurred["deposed between read and write"] += 1

    def _repeat(self, thread: TermThread, coordinator: ConsumerCoordinator) -> None:
        while not (coordinator.handler.closed or coordinator.handler.deposed):
            pause_s = EVERY_S
            with suppress(StoreUnavailable, Fenced):
                pause_s = thread.turn()
            self.cluster.scheduler.sleep(self.cluster.clock.now + pause_s, thread.is_awake)

    def _check_plans(self, writer: DecisionWriter) -> None:
        """Checks every plan against the observation it was made from, even if it is never written."""
        decide = writer.decide

        def checked(memory: GroupMemory, snapshot: Snapshot) -> PreparedPlan | None:
            found = decide(memory, snapshot)
            if found is not None:
                self.cluster.checker.planned(found.snapshot.observation, found.plan)
            return found

        writer.decide = checked  # type: ignore[method-assign]

    def _start_consumer(self, process: Process) -> None:
        awake = [True]

        def wake() -> None:
            awake[0] = True

        def handed(partition: TopicPartition, begin: int, end: int, follows: bool) -> None:
            self.cluster.say(f"{process.name} is handed {partition} [{begin}, {end})")
            if not (self._is_doomed(process) or isinstance(process.connector, KafkaMember)):
                self.cluster.checker.in_session(process.name, partition, ended=self._has_ended(process))
                self.cluster.checker.knows_its_commands(process.name, partition, listed_first=self._has_listed(process))
            others = {name: p for name, p in self.cluster.processes.items() if p.connector is not None}
            self.cluster.checker.handed(GROUP, process.name, partition, begin, end, others, follows=follows)

        def registration_value() -> bytes:
            timestamp = str(self.cluster.ms())
            return fields.dump(
                self.cluster.kind.member(process.name, timestamp, by_pattern=process.by_pattern).to_json()
            )

        def may_hand_out() -> bool:
            return process.connector is not None and process.connector.may_hand_out()

        def topic_of(partition: TopicPartition) -> int | None:
            if isinstance(process.connector, KafkaMember):
                return process.connector.topic_of(partition)
            ledger = self.cluster.checker.ledgers.get(GROUP, {}).get(process.name)
            identity = ledger.topic_ids.get(partition.topic, "") if ledger is not None else ""
            return self.cluster.checker.czxids.get(identity, 0)

        fetchers = process.fetchers = SimulatedFetchers(
            self.cluster.log,
            may_hand_out=may_hand_out,
            handed=handed,
            wake=wake,
            topic_of=topic_of,
            from_the_end=self.cluster.kind.from_the_end,
            reset=self.cluster.reset,
            told=lambda partition: self.cluster.occurs("told of an offset that is gone"),
            consumer="" if self.cluster.kind.by_kafka(process.name) else process.name,
        )

        def stopped(partitions: frozenset[TopicPartition]) -> None:
            if process.closing:
                process.leave_began = {tp: fetchers.holdings[tp].consumed for tp in partitions}

        def apply() -> None:
            while True:
                fetchers.poll(self.cluster.rng.randint(1, 4))
                self.cluster.scheduler.sleep(self.cluster.clock.now + self.cluster.rng.random() * 0.2)

        process.closing, process.subscribed_anew, process.leave_began = False, False, {}
        process.by_pattern = self.cluster.kind.by_pattern(process.name)
        if self.cluster.kind.by_kafka(process.name):
            self._start_kafka_member(process, fetchers)
            self.cluster.spawn(process, "application", apply)
            return

        def lost(partitions: Iterable[TopicPartition]) -> None:
            process.subscribed_anew = False
            self.cluster.checker.crashed(GROUP, process.name, PartitionSet.of(partitions))

        handle, channel = self._transport(process, wake)
        connector = process.connector = Connector(
            handle,
            channel,
            fetchers,
            registration_value=registration_value,
            wake=wake,
            on_stop=stopped,
            on_lost=lost,
        )

        def connect() -> None:
            while True:
                awake[0] = False
                due = connector.step()
                if due is None:
                    self.cluster.network.hang_up(process)
                    if connector.failure is not None:
                        raise connector.failure
                    self.cluster.later(self.cluster.rng.random() * 5, lambda: self.restart(process))
                    return
                self.cluster.scheduler.sleep(max(due, self.cluster.clock.now), lambda: awake[0])

        self.cluster.spawn(process, "connector", connect)
        self.cluster.spawn(process, "application", apply)
        if process.client is not None:
            self.cluster.spawn(process, "client", process.client.run)

    def _start_kafka_member(self, process: Process, fetchers: SimulatedFetchers) -> None:
        cluster, kind = self.cluster, self.cluster.kind
        member_id = f"{process.name}.{self._word(process).rpartition(' ')[2]}"
        model = kind.member(process.name, "", by_pattern=process.by_pattern)
        instance_id = process.name if kind.static else ""
        is_classic = kind.by_classic(process.name)
        if cluster.switching is not None and cluster.switching.random() < 0.3:
            is_classic = not is_classic
        topics = ManagedTopics(frozenset(model.subscription.topics), model.subscription.pattern)
        if is_classic and topics.regex:
            topics = ClassicMember.all_topics
        identity = Identity(member_id, instance_id, cluster.rng.choice(SOFTWARE), topics)

        def registration(broker_id: int, wanted: ManagedTopics) -> bytes:
            member = Member(
                identity.consumer,
                0,
                wanted.subscription(),
                session_timeout_ms=kind.kafka_session_ms,
                rejoin_grace_ms=kind.kafka_session_ms if instance_id else 0,
                protocol=classic.PROTOCOL if is_classic else heartbeats.PROTOCOL,
            )
            register = Register(GROUP, member, auto_commit=False, resume_key=member_id)
            return registration_value(register, broker_id, f"{process.name}:1", cluster.ms(), self._word(process))

        def incarnation(values: Iterable[bytes]) -> int | None:
            node = cluster.server.tree.nodes.get(layout.registration(GROUP, identity.consumer))
            # the subscription may have changed before the client learned of the registration
            is_its_own = node is not None and (
                node.data in GARBAGE or any(_nonce(value) in node.data for value in values)
            )
            if node is None or not is_its_own:
                return None
            cluster.checker.joined.add(node.czxid)
            return node.czxid

        def registered() -> str | None:
            node = cluster.server.tree.nodes.get(layout.registration(GROUP, identity.consumer))
            try:
                return fields.load(node.data, "").get("protocol") if node is not None else None
            except MalformedValue:
                return None

        def dial() -> Wire | None:
            stale = not cluster.calm and cluster.rng.random() < 0.2
            return cluster.network.dial(
                process, cluster.rng.choice(cluster.instances()) if stale else cluster.log_leader
            )

        def topic(topic_id: bytes) -> tuple[str, int] | None:
            written = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
            found = next((name for name, one in cluster.topic_ids.items() if one == written), None)
            return None if found is None else (found, cluster.log.topics[found])

        def leaves(consumed: Mapping[TopicPartition, int]) -> None:
            process.leave_began = dict(consumed)
            cluster.checker.said_farewell.add(member_id)

        around = Surroundings(
            dial=dial,
            topic=topic,
            named=cluster.log.topics.get,
            registration=registration,
            incarnation=incarnation,
            registered=registered,
            lost=lambda lost: cluster.checker.crashed(GROUP, process.name, PartitionSet.of(lost)),
            leaves=leaves,
            occurs=cluster.occurs,
            says=cluster.say,
        )
        member: KafkaMember
        who = identity, fetchers, cluster.scheduler, around
        if is_classic:
            assignor = cluster.rng.choice(("range", classic.COOPERATIVE))
            member = ClassicMember(*who, assignor=assignor, session_timeout_s=kind.kafka_session_ms / 1000)
        else:
            member = KafkaMember(*who)
        process.connector = process.client = member

        def run() -> None:
            member.run()
            cluster.later(cluster.rng.random() * 5, lambda: self.restart(process))

        cluster.spawn(process, "client", run)

    def _transport(self, process: Process, wake: Callable[[], None]) -> tuple[SessionHandle, MemberChannel]:
        """Returns the transport of a consumer."""
        if not self.cluster.kind.by_socket(process.name):
            return process.store, ConsumerChannel(process.store, GROUP, process.name)
        link = (PipeliningLink if self.cluster.kind.pipelines else SocketLink)(
            GROUP,
            process.name,
            self.cluster.clock,
            session_timeout_ms=self.cluster.kind.socket_session_ms,
            resume_key=self._word(process),
            auto_commit=True,
            wake=wake,
        )
        hosts = [name for name in self.cluster.processes if name.startswith("serve")]
        process.client = SimulatedClient(
            link, hosts, partial(self.cluster.network.dial, process), self.cluster.scheduler, self.cluster.occurs
        )
        return link, link

    def _is_doomed(self, process: Process) -> bool:
        """Tells whether its session ends early, even before the end of its lease."""
        remote = process.store.remote
        return remote is not None and remote.session_id in self.cluster.doomed

    def _has_ended(self, process: Process) -> bool:
        """Tells whether its session or membership has ended, except by an eviction."""
        if process.client is not None:
            return (GROUP, process.name, process.incarnation) in self.cluster.checker.expired
        return process.store.remote is None or process.store.remote.ended

    def _has_listed(self, process: Process) -> bool:
        """Tells whether a consumer over ZooKeeper has listed its channel since its lease began."""
        listed_at = process.store.listed_at.get(layout.channel(GROUP, process.name), 0.0)
        return process.client is not None or listed_at >= process.store.session.lease_began()

    def reconnect(self, process: Process) -> None:
        store = process.store
        if process is not self.cluster.processes.get(process.name) or not process.alive or process.client is not None:
            return
        if process.frozen:
            self.cluster.later(0.2, lambda: self.reconnect(process))
            return
        if store.session.state in {SessionState.CONNECTED, SessionState.CLOSED}:
            return
        silent_s = self.cluster.silent_until - self.cluster.clock.now
        if silent_s > 0:
            self.cluster.later(silent_s + self.cluster.rng.random() * 0.5, lambda: self.reconnect(process))
            return
        if store.connect(self.cluster.rng.choice(self.cluster.server.replicas)):
            self.cluster.owner[store.session.session_id] = process
            self.cluster.say(f"{process.name} connected")
        else:
            self.cluster.say(f"{process.name} learns that its session ended")
            self.cluster.later(self.cluster.rng.random() * 0.5, lambda: self.reconnect(process))

    def cut(self, process: Process) -> None:
        process.store.disconnect()
        delay = self.cluster.rng.choice((0.05, 0.5, 2.0, 5.0))
        if process.client is not None:
            process.unreachable_until = self.cluster.clock.now + self.cluster.rng.random() * delay
            if process.client.wire is not None:
                self.cluster.network.break_wire(
                    process.client.wire, f"{process.name} - {process.client.wire.host}: cut"
                )
            return
        self.cluster.later(self.cluster.rng.random() * delay, lambda: self.reconnect(process))

    def kill(self, process: Process, *, restarts: bool = True) -> None:
        self.cluster.say(f"{process.name} is killed")
        self.cluster.occurred[f"killed {process.store.asking or 'between requests'}"] += 1
        process.alive = False
        process.store.dead = True
        for actor in list(process.actors):
            self.cluster.scheduler.kill(actor)
        process.actors.clear()
        process.store.disconnect()
        wires = process.gateway.break_all() if process.gateway is not None else ()
        wires += process.listener.break_all() if process.listener is not None else ()
        if process.client is not None and process.client.wire is not None:
            wires = (process.client.wire,)
        for wire in wires:
            self.cluster.network.break_wire(wire, f"{wire.client} - {wire.host}: one end is gone")
        if restarts:
            self.cluster.later(self.cluster.rng.random() * 8, lambda: self.restart(process))

    def restart(self, process: Process) -> None:
        if self.cluster.processes[process.name] is process:
            self.cluster.say(f"{process.name} starts again")
            process.alive = False
            process.store.disconnect()
            self.start(process.name)

    def thaw(self, process: Process) -> None:
        if process.frozen:
            self.cluster.say(f"{process.name} goes on")
            process.frozen = False


def _nonce(registration: bytes) -> bytes:
    """Returns the part of a registration that no other registration has."""
    return fields.text(fields.load(registration, ""), "nonce", "").encode()
