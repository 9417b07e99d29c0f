"""A world whose coordination tree is lost and restored, on an ensemble that counts from the beginning again (ADR 58).

Everything but the processes' own code is real: the coordinator, the consumers' channel, backup and restore, each on a
simulated ZooKeeper. Processes of the lost tree read on until their lease ends, come back when they like, and others may
have started under their names meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.coordinator.assignors import built_in_assignors
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import MembershipLost, NoNode
from kafka_coord.groups.backup import Backup, read_tree
from kafka_coord.groups.restore import LEAST_HOLD_MS, plan_restore, restore
from kafka_coord.model import Member, StartFetcher, Subscription, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.root import finish_tree
from kafka_coord.zk.store import Create, SetData
from tests.simulation.audited import violations
from tests.simulation.scheduler import VirtualClock
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import Quiet, SimulatedStore

GROUP, TOPIC, ID = "delays", "flights", "TMyOC9fMQO2RvZzC_cfMOw"
NAMES = ("c1", "c2", "c3")
SESSION_S = 10.0


class RuleBroken(AssertionError):
    """A rule of the world does not hold."""


@dataclass(eq=False)
class Reader:
    """One process of a consumer: what it believes to own, and the next offset that it reads in each partition."""

    name: str
    process: str
    store: SimulatedStore
    channel: ConsumerChannel
    registration: Registration | None = None
    positions: dict[TopicPartition, int] = field(default_factory=dict)

    def reads(self, now: float) -> bool:
        return self.registration is not None and now < self.store.session.lease_deadline()


class LostTreeWorld:
    """One history of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.has_ids = self.rng.random() < 0.8
        self.partitions = self.rng.randint(2, 6)
        self.readers: list[Reader] = []
        self.lost: list[Reader] = []
        """The processes of the lost tree that have not come back."""
        self.committed: dict[TopicPartition, int] = {}
        """What the tree that is served now, or its backup, says."""
        self.handed: dict[TopicPartition, int] = {}
        """The next offset that nobody has read."""
        self.made = self.losses = 0
        self.story: list[str] = []
        self.service: CoordinatorService | None = None
        self.found(SimulatedZooKeeper(replicas=1, first_zxid=self.rng.randint(1, 40)))
        self.backup: Backup | None = None

    # --- the ensemble and the instance -------------------------------------------------------------------------------

    def found(self, server: SimulatedZooKeeper) -> None:
        """Kafka writes its znodes into a new ensemble."""
        self.server = server
        self.write(*(Create(path) for path in ("/brokers", layout.BROKER_IDS, layout.BROKER_TOPICS)))
        for number in range(self.rng.randint(0, 3)):
            self.write(Create(f"/other-{number}"))
        self.write(Create(layout.broker_topic(TOPIC), self.topic()))

    def topic(self) -> bytes:
        return topic_value(self.partitions, topic_id=ID if self.has_ids else None)

    def write(self, *ops: Create | SetData) -> None:
        self.server.write(ops, 0, int(self.clock.time() * 1000))

    def connect(self) -> SimulatedStore:
        store = SimulatedStore(self.server, self.clock, Quiet(), round(SESSION_S * 1000))
        store.connect(self.server.replicas[0])
        return store

    def start(self) -> None:
        self.say("an instance starts")
        options = CoordinatorOptions(settled_after_ms=self.rng.choice((0, 200)))
        self.instance = self.connect()
        self.service = CoordinatorService(self.instance, 1, {}, options, built_in_assignors())

    def stop(self, *, cleanly: bool) -> None:
        self.say(f"the instance stops, cleanly: {cleanly}")
        if self.service is not None and cleanly:
            self.service._resign("it stops")
            self.service._instance.unregister()
        self.service = None
        self.instance.dead = True

    def turn(self) -> None:
        """Lets the instance do all that is due."""
        for _ in range(20):
            if self.service is None:
                return
            self.instance.heartbeat()
            while self.instance.has_notification():
                self.instance.deliver()
            self.service.turn()
            coordinator = self.service.coordinator
            worked = coordinator is not None and coordinator.handler.step(0.0)
            if not worked and not self.instance.has_notification():
                return

    # --- the processes -----------------------------------------------------------------------------------------------

    def join(self, name: str, process: str = "") -> None:
        """A process starts under the name, or ``process`` comes back, having stopped all that it read. It waits while
        a live registration has the name."""
        if layout.registration(GROUP, name) in self.server.tree.nodes:
            return
        self.made += 1
        store = self.connect()
        reader = Reader(name, process or f"p{self.made}", store, ConsumerChannel(store, GROUP, name))
        member = Member(name, 0, Subscription.to([TOPIC]), process=reader.process, timestamp=str(self.made))
        found = reader.channel.register(fields.dump(member.to_json()))
        assert isinstance(found, Registration)
        reader.registration = found
        self.readers.append(reader)
        self.say(f"{name} registers as {reader.process}")

    def act(self, reader: Reader) -> None:
        """Carries out commands, reads a record, and perhaps commits."""
        if reader in self.lost or not reader.reads(self.clock.now) or reader.registration is None:
            self.read(reader)
            return
        reader.store.heartbeat()
        while reader.store.has_notification():
            reader.store.deliver()
        try:
            self.obey(reader, reader.registration)
            self.read(reader)
            if self.rng.random() < 0.5 and reader.positions:
                reader.channel.commit(reader.registration, dict(reader.positions))
                self.committed |= reader.positions
        except (MembershipLost, NoNode):
            reader.registration = None
            reader.positions.clear()

    def obey(self, reader: Reader, registration: Registration) -> None:
        commands, _ = reader.channel.outstanding()
        for command_id in commands:
            command = reader.channel.read(command_id)
            if command is None or command.incarnation != registration.incarnation:
                continue
            if isinstance(command, StartFetcher):
                for tp, point in command.starts.items():
                    reader.positions[tp] = max(point.offset, 0)
                reader.channel.started_at({tp: point.offset for tp, point in command.starts.items()})
                reader.channel.acknowledge(registration, command_id, {})
            else:
                settled = {tp: reader.positions.pop(tp) for tp in command.partitions if tp in reader.positions}
                reader.channel.acknowledge(registration, command_id, settled)
                self.committed |= settled

    def read(self, reader: Reader) -> None:
        """Reads one record of each partition that the process believes to own."""
        if not reader.reads(self.clock.now):
            reader.positions.clear()
            return
        for tp, offset in reader.positions.items():
            for other in (*self.readers, *self.lost):
                if other is not reader and tp in other.positions and other.reads(self.clock.now):
                    raise RuleBroken(f"{tp} is read by {reader.process} and by {other.process}")
            reader.positions[tp] = offset + 1
            if reader in self.lost:
                continue  # what it reads from now on is not committed, and read again
            if not self.has_ids and self.losses:
                raise RuleBroken(f"{tp} is read, and nobody knows of which topic its offset is")
            if offset > self.handed.get(tp, 0):
                raise RuleBroken(f"{reader.process} begins {tp} at {offset}, and skips {self.handed.get(tp, 0)}")
            if offset < self.committed.get(tp, 0):
                raise RuleBroken(f"{reader.process} reads {tp} at {offset} again, although it was committed")
            self.handed[tp] = max(self.handed.get(tp, 0), offset + 1)

    # --- what happens ------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Asks the audit about the log of the present ensemble."""
        found = violations(self.server.log, round(SESSION_S * 1000))
        if found:
            raise RuleBroken(f"audit: {found[0].rule}: {found[0].what}")

    def happen(self) -> None:
        self.clock.now += self.rng.choice((0.05, 0.3, 1.0))
        self.expire()
        self.turn()
        for reader in (*self.readers, *self.lost):
            self.act(reader)
        event = self.rng.random()
        if event < 0.10:
            self.join(self.rng.choice(NAMES))
        elif event < 0.13 and self.readers:
            gone = self.readers.pop(self.rng.randrange(len(self.readers)))
            self.say(f"{gone.process} crashes")
        elif event < 0.15 and self.partitions < 8:
            self.partitions += 1
            self.write(SetData(layout.broker_topic(TOPIC), self.topic()))
        elif event < 0.18:
            self.backup = self.back_up()
        elif event < 0.25 and self.lost:
            self.come_back(self.rng.choice(self.lost))
        elif event < 0.27 and self.losses < 2:
            self.lose()

    def expire(self) -> None:
        for session in list(self.server.sessions.values()):
            if self.clock.now > session.heard_at + session.timeout_s:
                del self.server.sessions[session.session_id]
                self.server.end_session(session, int(self.clock.time() * 1000))

    def back_up(self) -> Backup | None:
        self.say("a backup is made")
        has_tree = layout.CLUSTER in self.server.tree.nodes
        return read_tree(self.connect(), ["zk:2181"], "") if has_tree else None

    def lose(self) -> None:
        """The instance and then the old servers stop; a backup from the end or from before is restored."""
        if self.service is None or layout.CLUSTER not in self.server.tree.nodes:
            return
        self.stop(cleanly=self.rng.random() < 0.7)
        backup = self.back_up() if self.rng.random() < 0.7 else self.backup
        if backup is None:
            self.start()
            return
        self.say(f"the tree is lost; its backup is still: {backup.header.is_still}")
        self.audit()
        self.losses += 1
        self.lost += self.readers
        self.readers, self.backup = [], None
        self.found(SimulatedZooKeeper(replicas=1, first_zxid=self.rng.randint(1, 40)))
        if self.rng.random() < 0.5:
            self.join(self.rng.choice(NAMES))
        plan = plan_restore(backup, "checksum")
        self.committed = {tp: one for group in plan.groups for tp, one in group.offsets.items()}
        store = self.connect()
        finish_tree(store, restore(store, plan))
        self.start()

    def come_back(self, reader: Reader) -> None:
        """A process of the lost tree finds the new servers. It stops everything first."""
        self.lost.remove(reader)
        reader.positions.clear()
        self.join(reader.name, reader.process)

    def run(self, steps: int = 150) -> None:
        """Raises :class:`RuleBroken`; :attr:`story` then says what led to it."""
        self.start()
        self.join("c1")
        for _ in range(steps):
            self.happen()
        for reader in list(self.lost):
            self.come_back(reader)
        for _ in range(round(SESSION_S)):  # whoever has crashed is gone
            self.clock.now += 1.5
            self.turn()
            for reader in self.readers:
                self.act(reader)
            self.expire()
        self.join("c1")
        until = self.clock.now + 3 * LEAST_HOLD_MS / 1000
        while self.clock.now < until:
            self.clock.now += 0.5
            self.expire()
            self.turn()
            for reader in self.readers:
                self.act(reader)
        self.at_rest()
        self.audit()

    def at_rest(self) -> None:
        owned = {tp for one in self.readers if one.reads(self.clock.now) for tp in one.positions}
        wanted = {TopicPartition(TOPIC, number) for number in range(self.partitions)}
        if (self.has_ids or not self.losses) and owned != wanted:
            raise RuleBroken(f"at rest, and nobody reads {wanted - owned}")

    def say(self, sentence: str) -> None:
        self.story.append(f"{self.clock.now - 1000:8.2f} s  {sentence}")


def broken(seeds: range) -> Iterator[str]:
    """Yields the rule that each history broke, with its story."""
    for seed in seeds:
        world = LostTreeWorld(seed)
        try:
            world.run()
        except RuleBroken as error:
            yield "\n".join([f"seed {seed}: {error}", *world.story])
