"""Migrates the cluster of a run from ZooKeeper to KRaft, and on to Kafka 4 or back again, while its members read."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_coord.dev.cluster.jars import KAFKA_4
from kafka_coord.errors import KafkaCoordError
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Migration, read_migration
from kafka_coord.zk.root import read_cluster_record
from tests.chaos.faults import Faults
from tests.chaos.journal import EventWriter, Group, Kind, Phase
from tests.chaos.links import Unlinked
from tests.chaos.logins import OF_BROKERS, OF_INSTANCES, OF_MEMBERS, Listener
from tests.chaos.parts import CONSUMER_PROTOCOL, PLAIN, PREFIX, SOCKET_SESSION_MS, Part
from tests.chaos.run import ChaosRun
from tests.chaos.testbed import KAFKA, SERVE_SESSION_MS, SERVERS, Actor, ChaosTestbed
from tests.chaos.watching import Watch
from tests.migrating import KraftController, MigratingBroker, partitions_shown
from tests.zk.tls import pem_key_store

MANAGED = "own|every|spark"
"""The groups that the coordinator manages. The others are client-assigned."""
_EXTERNAL = "external"
"""The user of the members that come through the external listener, with TLS."""
_IN_SYNC_S = 120.0
_SEEN_S = 60.0
_JOINED_S = 900.0
_CALM_S = 6.0
"""How long members read before and after a phase's action, in seconds."""


def cast() -> tuple[Part, ...]:
    """Returns members of every kind, on three listeners."""
    b, c = f"{PREFIX}b", f"{PREFIX}c"
    cooperative = {
        "strategy": "cooperative-sticky",
        "commit_every": 50,
        "session_timeout_ms": SOCKET_SESSION_MS,  # a broker that starts takes the cores for longer than 6 s
    }

    def stock(name: str, group: str, **more: Any) -> Part:
        return Part(name, group, (b,), kind="confluent-kafka", **more)

    parts = (
        Part("own-1", "own", pattern=f"{PREFIX}.*"),
        Part("own-2", "own", pattern=f"{PREFIX}.*", commit_every=50, user=_EXTERNAL),
        Part("every-zookeeper", "every", (b,), user=_EXTERNAL),
        Part("every-socket", "every", (b,), socket=True, session_timeout_ms=SOCKET_SESSION_MS),
        stock("every-kip-848", "every", protocol=CONSUMER_PROTOCOL, strategy="uniform", commit_every=50),
        stock("every-classic", "every", **cooperative),
        *(stock(f"assigned-{n}", "assigned", **cooperative) for n in (1, 2)),
        Part("spark-1", "spark", (c,), kind="spark"),
        Part("spark-2", "spark", (c,)),
    )
    return tuple(part if part.user == _EXTERNAL else replace(part, user="") for part in parts)


class MigratingTestbed(ChaosTestbed):
    """Three brokers with an internal listener, an external one with TLS and one for the instances, and a controller."""

    broker = MigratingBroker
    settings = replace(KAFKA, properties={"min.insync.replicas": "2", "unclean.leader.election.enable": "false"})
    has_logins = False
    linger_ms = 100

    def __init__(self, directory: Path, per_s: float) -> None:
        super().__init__(directory, per_s, clients="mixed")
        self.managed = MANAGED
        self._produces_to_instances = False
        self.network = Unlinked()
        authority = trustme.CA()
        self._ca, self._keys = self.directory / "ca.pem", self.directory / "brokers.pem"
        authority.cert_pem.write_to_path(self._ca)
        self._keys.write_bytes(pem_key_store(authority))

    @property
    def brokers(self) -> tuple[MigratingBroker, ...]:
        return tuple(one for one in self._brokers if isinstance(one, MigratingBroker))

    def _of_listeners(self, listeners: tuple[Listener, ...]) -> Mapping[str, str]:
        of_external = f"listener.name.{OF_MEMBERS.lower()}"
        protocols = {OF_BROKERS: "PLAINTEXT", OF_MEMBERS: "SSL", OF_INSTANCES: "PLAINTEXT"}
        return {
            "listeners": ",".join(f"{one.name}://{one.address}" for one in listeners),
            "advertised.listeners": ",".join(f"{one.name}://{one.advertised}" for one in listeners),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": OF_BROKERS,
            f"{of_external}.ssl.keystore.type": "PEM",
            f"{of_external}.ssl.keystore.location": str(self._keys),
        }

    def add_consumer(self, part: Part, *, role: str = "consumer", directory: Path | None = None) -> Actor:
        if part.user == _EXTERNAL:
            part = replace(part, user="", properties={"security.protocol": "SSL", "ssl.ca.location": str(self._ca)})
        return super().add_consumer(part, role=role, directory=directory)

    def add_plain_reader(self) -> Actor:
        """Adds and starts the reader that has no group."""
        actor = self.add_consumer(
            Part(PLAIN, PLAIN, kind=PLAIN, user=_EXTERNAL), role=PLAIN, directory=self.directory / PLAIN
        )
        actor.start()
        actor.busy = False
        return actor

    def add_controller(self) -> KraftController:
        """Adds the controller, which is not started."""
        cluster_id = json.loads(self.store.get("/cluster/id").data)["id"]
        controller = KraftController(self.directory / "controller", self.hosts, cluster_id)
        self._add(
            Actor("controller", "1", controller.process, controller.launch, controller.serving, server=controller)
        )
        return controller

    def is_in_sync(self) -> bool:
        """Tells whether all brokers know each other, and all replicas are in sync."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            found = admin.list_topics(timeout=10)
        except KafkaException:
            return False
        partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
        return len(found.brokers) == SERVERS and all(len(one.isrs) == len(one.replicas) for one in partitions)


@dataclass(frozen=True, slots=True)
class Step:
    """A phase. ``doctor`` are words of what the doctor must say about it at its end."""

    name: str
    act: Callable[[MigrationRun], None]
    doctor: tuple[str, ...] = ()


class MigrationRun(ChaosRun):
    """Goes through the phases one after another. With ``kills``, the elected instance is killed in each. With ``back``,
    the migration is rolled back before it is finalised, and tried again."""

    testbed: MigratingTestbed
    faults: Faults
    watch: Watch
    controller: KraftController

    def __init__(self, *arguments: Any, kills: bool, back: bool) -> None:
        super().__init__(*arguments)
        self._kills, self._steps = kills, BACK if back else STEPS
        self._random = random.Random(self._options.seed)

    def _cast(self) -> tuple[Part, ...]:
        return cast()

    def _groups(self) -> tuple[Group, ...]:
        return tuple(replace(one, assigned=not re.fullmatch(MANAGED, one.name)) for one in super()._groups())

    def _await_members(self) -> None:
        self._awaits(self._all_have_joined, "all members have joined", _JOINED_S)

    def _testbed(self) -> ChaosTestbed:
        self.testbed = MigratingTestbed(self._options.directory, self._options.per_s)
        return self.testbed

    def _course(self, testbed: ChaosTestbed, faults: Faults, watch: Watch, events: EventWriter) -> None:
        del testbed
        self.faults, self.watch = faults, watch
        self.controller = self.testbed.add_controller()
        self.testbed.add_plain_reader()
        for number, step in enumerate(self._steps, start=1):
            target = f"phase:{step.name}"
            faults.note(Kind.MIGRATING, target, Phase.BEGIN)
            time.sleep(_CALM_S)
            with self._elected_is_killed() if self._kills else nullcontext():
                step.act(self)
            self._awaits(self.testbed.is_in_sync, f"all replicas are in sync in phase {step.name}")
            self._require_settled(watch, f"in phase {step.name}")
            seen = self._grow(number)
            self._require_settled(watch, f"after the topics grew in phase {step.name}")
            time.sleep(_CALM_S)
            said = self._doctor()
            missing = [words for words in step.doctor if words not in " ".join(said)]
            faults.note(Kind.MIGRATING, target, Phase.END, doctor=said, missing=missing, seen_s=seen)

    @contextmanager
    def _elected_is_killed(self) -> Iterator[None]:
        """Kills the elected instance at some time after the block has begun, and starts it again."""
        failures: list[Exception] = []

        def kill() -> None:
            try:
                time.sleep(self._random.uniform(0, 8))
                elected = self._elected(self.testbed, self.watch)
                elected.busy = True
                self.faults.kill(elected, 2 * SERVE_SESSION_MS / 1000)
                elected.busy = False
            except Exception as error:  # noqa: BLE001  raised on the run's thread
                failures.append(error)

        thread = threading.Thread(target=kill, name="kill")
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if failures:
            raise failures[0]

    # --- what operators do -------------------------------------------------------------------------------------------

    def nothing(self) -> None:
        """Members read for a while."""

    def start_controller(self) -> None:
        self.faults.start(self.testbed.actor("controller:1"))
        self._awaits(lambda: self._source() == "brokers", "the metadata comes from the brokers")

    def restart_controller(self) -> None:
        actor = self.testbed.actor("controller:1")
        self.faults.stop(actor)
        self.faults.start(actor)

    def migrate_brokers(self) -> None:
        """Restarts the brokers with migration enabled."""
        for broker in self._shuffled():
            broker.controller = self.controller
            self._restart(broker)
        self._awaits(lambda: read_migration(self.testbed.store) is Migration.RUNNING, "the metadata is copied")

    def run_in_kraft_mode(self) -> None:
        for broker in self._shuffled():
            broker.kraft = True
            self._restart(broker)

    def finalise(self) -> None:
        self.controller.zookeeper = ""
        self.restart_controller()

    def upgrade(self) -> None:
        """Goes on to Kafka 4."""
        self.controller.release = KAFKA_4
        self.restart_controller()
        for broker in self._shuffled():
            broker.release = KAFKA_4
            self._restart(broker)

    def return_to_zookeeper_mode(self) -> None:
        """Restarts the brokers in ZooKeeper mode, still with migration enabled."""
        for broker in self._shuffled():
            broker.kraft = False
            self._restart(broker)

    def roll_back(self) -> None:
        """Takes the controller away, as Kafka's documents say, and restarts the brokers without it."""
        self.faults.stop(self.testbed.actor("controller:1"))
        for path in (layout.CONTROLLER, layout.MIGRATION):
            self.testbed.store.delete(path)
        for server in (self.controller, *self.testbed.brokers):
            for old in server.directory.glob("data/__cluster_metadata-0"):
                shutil.rmtree(old)
        for broker in self._shuffled():
            broker.controller = None
            self._restart(broker)

    def read_kafkas_own(self) -> None:
        said = self.faults.command("coordinator", "metadata", "zookeeper", "--reason", "the migration was rolled back")
        if said.exit_code or self._source() != "zookeeper":
            raise KafkaCoordError(f"no way back: {said.output}")

    def migrate_again(self) -> None:
        """Begins anew, with a controller that knows nothing."""
        self.faults.start(self.testbed.actor("controller:1"))
        self.migrate_brokers()
        self._awaits(lambda: self._source() == "brokers", "the metadata comes from the brokers again")

    def _shuffled(self) -> list[MigratingBroker]:
        brokers = list(self.testbed.brokers)
        self._random.shuffle(brokers)
        return brokers

    def _restart(self, broker: MigratingBroker) -> None:
        """Restarts a broker once all replicas are in sync, as an operator does."""
        self._awaits(self.testbed.is_in_sync, f"all replicas are in sync before a restart of {broker.name}")
        actor = self.testbed.actor(f"kafka:{broker.broker_id}")
        actor.busy = True
        self.faults.stop(actor)
        self.faults.start(actor)
        actor.busy = False

    def _all_have_joined(self) -> bool:
        """Tells whether the managed groups have all their members: Spark takes minutes on a busy machine."""
        managed = [part.group for part in self._parts if re.fullmatch(MANAGED, part.group)]
        return all(len(self.testbed.members(group)) == count for group, count in Counter(managed).items())

    def _source(self) -> str:
        found = read_cluster_record(self.testbed.store)
        return "" if found is None else found.source

    # --- what is looked at -------------------------------------------------------------------------------------------

    def _grow(self, number: int) -> dict[str, float]:
        """Adds a partition and a topic. Returns how long after each request ZooKeeper showed the result, in seconds."""
        topics, grown, made = self.testbed.topics, f"{PREFIX}b", f"{PREFIX}phase-{number}"
        total = topics.partition_count(grown) + 1
        return {
            "partition": self._seconds(
                lambda: topics.add_partitions(grown, total),
                lambda: partitions_shown(self.testbed.store, grown) == total,
                Kind.PARTITIONS_ADDED,
                topic=grown,
                partitions=total,
            ),
            "topic": self._seconds(
                lambda: topics.create(made, 1, replication=3),
                lambda: partitions_shown(self.testbed.store, made) == 1,
                Kind.TOPIC_ADDED,
                topic=made,
                partitions=1,
            ),
        }

    def _seconds(self, ask: Callable[[], None], seen: Callable[[], bool], kind: Kind, **detail: Any) -> float:
        self.faults.note(kind, f"topic:{detail['topic']}", **detail)
        begun = time.monotonic()
        asking = threading.Thread(target=ask, name="asks")
        asking.start()
        self._awaits(seen, f"{detail['topic']} is seen", _SEEN_S, every_s=0.02)
        took_s = time.monotonic() - begun
        asking.join()
        return round(took_s, 3)

    def _doctor(self) -> list[str]:
        """Returns what the doctor says about brokers, metadata and the migration, and every error."""
        found = json.loads(self.faults.command("doctor", "-o", "json").output)
        about = {"brokers", "metadata", "migration"}
        return [
            f"{one['check']} {one['severity']}: {one['what']} -> {one['todo']}"
            for one in found
            if one["check"] in about or one["severity"] in {"error", "warning"}
        ]

    def _awaits(self, holds: Callable[[], bool], what: str, within_s: float = _IN_SYNC_S, every_s: float = 0.3) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() >= deadline:
                raise KafkaCoordError(f"not within {within_s:g} s: {what}")
            time.sleep(every_s)


STEPS = (
    Step("ZooKeeper", MigrationRun.nothing, ("brokers ok",)),
    Step("prepared", MigrationRun.start_controller, ("is prepared", "restart the brokers with zookeeper.metadata")),
    Step("copied", MigrationRun.migrate_brokers, ("Kafka migrates to KRaft", "restart the brokers in KRaft mode")),
    Step("KRaft", MigrationRun.run_in_kraft_mode, ("every broker is in KRaft mode", "finalise")),
    Step("finalised", MigrationRun.finalise, ("the migration to KRaft is finalised",)),
    Step("Kafka 4.3", MigrationRun.upgrade, ("the migration to KRaft is finalised",)),
)
BACK = (
    *STEPS[1:4],
    Step("ZooKeeper mode", MigrationRun.return_to_zookeeper_mode, ("in ZooKeeper mode: 1, 2, 3",)),
    Step("rolled back", MigrationRun.roll_back, ("coordinator metadata zookeeper",)),
    Step("Kafka's own znodes", MigrationRun.read_kafkas_own, ("brokers ok",)),
    Step("copied again", MigrationRun.migrate_again, ("Kafka migrates to KRaft", "restart the brokers in KRaft mode")),
)
