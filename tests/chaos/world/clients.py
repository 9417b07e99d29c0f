"""Scenes about stock clients: idle connections, a large commit, instances that end, and a change of protocol."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Position

from kafka_coord.errors import BrokerError, KafkaCoordError
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.kafka.coordinators import Ask
from kafka_coord.wire.messages import message
from tests.chaos.clients.log_settings import set_of_log
from tests.chaos.logins import OPERATOR, login
from tests.chaos.parts import Part
from tests.chaos.testbed import IDLE_MS, SERVE_SESSION_MS, Actor, ChaosTestbed
from tests.chaos.world.casts import classic, kip_848
from tests.chaos.world.scene import Abandoned, Scene
from tests.chaos.world.waits import AFTER_QUIET, BESIDE, NAMED, RETURNED, STOPPED

_COMMIT_EVERY_S = 0.1
_QUIET_S = IDLE_MS / 1000 * 1.5 + 2.0
_BEFORE_S, _AFTER_S = 2.0, 8.0
_SMALL_BYTES, _DEFAULT_BYTES = "32768", "1048588"
"""Values of the groups log's ``max.message.bytes``."""
_METADATA = "m" * 4_000
_PARTITIONS = 12
"""A commit of as many partitions, each with this metadata, is larger than the smaller of these values."""
_STATIC_SESSION_MS = 30_000
_TOPIC = "chaos-a"
"""A topic of the run, which the clients of these scenes commit to without reading it."""


def idle_connections(scene: Scene) -> None:
    """Nothing uses the connections of a client and of most partitions of the groups log, for longer than brokers keep
    connections open."""
    client = Client(scene.testbed, _quiet_group(scene))
    try:
        scene.require(lambda: client.commit(1) == "", "a first commit", 30.0)
        before = scene.terms()
        scene.testbed.quiet = True
        time.sleep(_QUIET_S)
        begun = time.monotonic()
        error = client.commit(2)
        scene.waited(AFTER_QUIET, time.monotonic() - begun)
        scene.found.commits += 1
        scene.found.failed += [error] if error else []
        scene.found.terms = scene.terms() - before
    finally:
        scene.testbed.quiet = False
        client.close()


def large_commit(scene: Scene) -> None:
    """A client commits more than the log accepts. Another group in the same partition of the log commits on."""
    beside = _group_beside(scene.name)
    client = Client(scene.testbed, scene.name)
    if not set_of_log(scene.testbed.bootstrap, {"max.message.bytes": _SMALL_BYTES}):
        raise Abandoned("the brokers refuse the setting of the groups log")
    try:
        scene.require(lambda: client.commit(1) == "", "a first commit", 30.0)
        before = scene.terms()
        with committing(scene, [beside]) as clients:
            time.sleep(_BEFORE_S)
            large = [Position(_TOPIC, p, 5, _METADATA) for p in range(_PARTITIONS)]
            scene.found.answered = client.commit_all(large) or "no error"
            time.sleep(_AFTER_S / 2)
        scene.waited(BESIDE, max(one.longest_s for one in clients))
        scene.found.terms = scene.terms() - before
    finally:
        client.close()
        scene.require(
            lambda: set_of_log(scene.testbed.bootstrap, {"max.message.bytes": _DEFAULT_BYTES}),
            "the setting of the groups log was undone",
        )


def instance_stopped(scene: Scene) -> None:
    """An instance is stopped cleanly and started again at once. Its groups' clients commit all the time."""
    groups = [f"{scene.name}-{number}" for number in range(6)]
    actor = _serving(scene, groups[0])
    try:
        with committing(scene, groups) as clients:
            time.sleep(_BEFORE_S)
            scene.faults.stop(actor)
            scene.faults.start(actor)
            time.sleep(_AFTER_S)
        scene.waited(STOPPED, max(one.longest_s for one in clients))
    finally:
        actor.busy = False


def instance_killed(scene: Scene) -> None:
    """An instance is killed. From the end of its session on, no other instance may name it as a coordinator."""
    group = scene.name
    actor = _serving(scene, group)
    killed = int(actor.name)
    instances = AskedInstances(scene.testbed.store, login(OPERATOR))
    others = {number: at for number, at in instances.directory().addresses.items() if number != killed}
    try:
        begun = scene.faults.kill_only(actor).t
        named = 0.0
        while time.monotonic() < begun + 2 * SERVE_SESSION_MS / 1000:
            if killed in _named(instances, others, group):
                named = time.monotonic() - begun
            time.sleep(0.5)
        scene.waited(NAMED, named)
        scene.faults.start(actor)
    finally:
        if not actor.process.running:
            scene.faults.start(actor)
        actor.busy = False


def protocol_switched(scene: Scene) -> None:
    """A static classic member stops without leaving, and returns as a KIP-848 member with the same instance id."""
    topic = scene.topic(partitions=2)
    name = f"{scene.name}-static"
    before = scene.join(_named_part(classic(scene.name, topic, session_timeout_ms=_STATIC_SESSION_MS), name))
    scene.produce(topic, 20, (0, 1))
    if not scene.wait_until_read():
        return
    scene.leave(before)
    after = scene.join(_named_part(kip_848(scene.name, topic), name))
    since = scene.opened_at(after)
    pid = after.process.pid
    scene.produce(topic, 20, (0, 1))
    scene.wait_until_read()
    first = scene.first_read(topic, since, pid)
    scene.waited(RETURNED, first - since if first is not None else None)


# --- clients that only commit ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Client:
    """A stock client that commits offsets of a group without being its member."""

    testbed: ChaosTestbed
    group: str
    longest_s: float = 0.0
    commits: int = 0
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._consumer = Consumer(self.testbed.stock_client(self.group) | {"enable.auto.commit": False})

    def commit(self, offset: int) -> str:
        return self.commit_all([Position(_TOPIC, 0, offset)])

    def commit_all(self, positions: Sequence[Position]) -> str:
        """Commits, and waits for the answer. Returns the name of the error, or an empty string."""
        try:
            found = self._consumer.commit(offsets=list(positions), asynchronous=False) or []
        except KafkaException as error:
            return str(error.args[0].name())
        return next((one.error.name() for one in found if one.error is not None), "")

    def commit_until(self, stopping: threading.Event) -> None:
        """Commits until the event is set, and notes the longest time between two acknowledged commits."""
        acknowledged = time.monotonic()
        for offset in itertools.count(1):
            error = self.commit(offset)
            now = time.monotonic()
            self.commits += 1
            self.longest_s = max(self.longest_s, now - acknowledged)
            if error:
                self.failed.append(error)
            else:
                acknowledged = now
            if stopping.wait(_COMMIT_EVERY_S):
                return

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def committing(scene: Scene, groups: Sequence[str]) -> Iterator[list[Client]]:
    """Has a client commit for each group while the block runs, and records the number and the failures of the
    commits."""
    clients = [Client(scene.testbed, group) for group in groups]
    stopping = threading.Event()
    threads = [
        threading.Thread(target=one.commit_until, args=[stopping], name=f"commits-{one.group}") for one in clients
    ]
    try:
        for client in clients:
            scene.require(lambda client=client: client.commit(0) == "", "a first commit", 30.0)  # type: ignore[misc]
        for thread in threads:
            thread.start()
        yield clients
    finally:
        stopping.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for client in clients:
            client.close()
        scene.found.commits += sum(one.commits for one in clients)
        scene.found.failed += [error for one in clients for error in one.failed]


def _quiet_group(scene: Scene) -> str:
    """Returns the name of a group whose broker leads the log partition of no group of the run, because an instance has
    one connection to its broker for all groups. Without such a broker, returns any."""
    leaders = AskedInstances(scene.testbed.store, login(OPERATOR)).directory().leaders
    busy = {leaders.get(partition_of(group)) for group in scene.testbed.groups()}
    names = [f"{scene.name}-{number}" for number in range(len(leaders))]
    return next((name for name in names if leaders.get(partition_of(name)) not in busy), names[0])


def _group_beside(group: str) -> str:
    """Returns the name of another group in the same partition of the groups log."""
    return next(
        name
        for name in (f"{group}-beside-{number}" for number in itertools.count())
        if partition_of(name) == partition_of(group)
    )


def _serving(scene: Scene, group: str) -> Actor:
    """Returns the instance that serves the group, for a fault of the scene. Raises :class:`Abandoned`."""
    try:
        broker_id, _ = AskedInstances(scene.testbed.store, login(OPERATOR)).directory().coordinator_of(group)
    except KafkaCoordError as error:
        raise Abandoned(str(error)) from error
    actor = scene.faults.claim_target(f"serve:{broker_id}")
    if actor is None:
        raise Abandoned(f"serve:{broker_id} is not free")
    scene.found.own.add(actor.target)
    return actor


def _named(instances: AskedInstances, addresses: dict[int, str], group: str) -> set[int]:
    """Returns the broker ids that the instances name as the group's coordinator."""

    async def ask_for_it(ask: Ask) -> int:
        answer = await ask("FindCoordinator", 3, message("FindCoordinatorRequest")(key=group))
        return -1 if answer.error_code else int(answer.node_id)

    try:
        return set(instances.ask_each(addresses, ask_for_it)[0].values())
    except (BrokerError, KafkaCoordError):
        return set()


def _named_part(part: Part, name: str) -> Part:
    return replace(part, name=name, static=True)
