"""Measures what stock clients meet while the cluster is restarted, broker after broker."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from kafka_coord.dev.bench.children import Child
from kafka_coord.dev.bench.kafka_groups.client import RawClient
from kafka_coord.dev.bench.kafka_groups.servers import Servers, started
from kafka_coord.dev.bench.rebalance.newer_client import fetched_client
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Setup, Table
from kafka_coord.dev.bench.rolling.client import ClientPlace
from kafka_coord.dev.bench.rolling.feeder import feeding
from kafka_coord.dev.bench.rolling.java_client import java_client, java_command, java_warnings
from kafka_coord.dev.bench.rolling.journal import Figures, Note, What, figures
from kafka_coord.dev.bench.rolling.sockets import connections
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.kafka import Broker
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.requests import ask
from kafka_coord.model import GroupKind, Request, RequestType
from kafka_coord.wire.messages import message
from kafka_coord.zk.session import connect
from kafka_coord.zk.store import Store

READ, OFFSETS = "rolled", "__consumer_offsets"
_BROKERS = 3
_BEFORE_S = 3.0
_WITHIN_S = 120.0
_PAUSE_BEYOND_S = 0.5
JAVA = "kafka-clients"
LIBRARIES = ("confluent-kafka", "kafka-python", "aiokafka", JAVA)
_FETCHED = {"kafka-python": "kafka-python==3.0.12", "aiokafka": "aiokafka==0.14.0"}


class Procedure(StrEnum):
    """What is restarted, one host after the other, or what happens to the clients' groups instead. In the first,
    clients connect to the brokers; in the others, to the instances."""

    BROKERS = "brokers"
    TOGETHER = "together"
    """Each broker with its instance."""
    ALONE = "alone"
    """Each instance, while its broker runs."""
    GIVE_BACK = "give-back"
    """The groups are given back to the brokers."""
    TAKE_OVER = "take-over"
    """The groups, which were given back before, are taken over again."""


_BECOMES = {Procedure.GIVE_BACK: GroupKind.NATIVE, Procedure.TAKE_OVER: GroupKind.CLIENT_ASSIGNED}


@dataclass(frozen=True, slots=True)
class RollingOptions(BenchOptions):
    """Each procedure is carried out ``rounds`` times, in turn. After each restart, the cluster rests for ``rest_s``.
    With ``static``, the clients are static members."""

    procedures: tuple[Procedure, ...] = (Procedure.BROKERS, Procedure.TOGETHER)
    libraries: tuple[str, ...] = LIBRARIES
    partitions: int = 6
    static: bool = False
    rounds: int = 1
    rest_s: float = 6.0


SMOKE = RollingOptions(libraries=("confluent-kafka",), partitions=3, rest_s=1.0, judged=False)


class RollingClient:
    """One client process, and what it has noted."""

    def __init__(self, place: ClientPlace, child: Child) -> None:
        self.place, self.child = place, child
        self.closed = 0
        """How many of its connections were closed by the restarts."""

    def notes(self) -> list[Note]:
        with suppress(FileNotFoundError):
            lines = Path(self.place.journal).read_text("utf-8").splitlines(keepends=True)
            found = [Note.parse(line.rstrip("\n")) for line in lines if line.endswith("\n")]
            return found + (list(java_warnings(self.child.log)) if self.place.library == JAVA else [])
        return []

    def reads(self, partitions: int) -> bool:
        found = Counter((note.what, note.rest) for note in self.notes() if note.what is What.RECORD)
        return len(found) == partitions and any(note.what is What.COMMITTED for note in self.notes())

    def count_connections(self, port: int) -> None:
        self.closed += connections(self.child.process.pid, port)


def run_rolling_bench(options: RollingOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the procedures one after the other on the same servers."""
    setup = Setup.here()
    rows: list[dict[str, object]] = []
    measured: list[tuple[Procedure, str, Figures, int]] = []
    on_progress(f"starting ZooKeeper, {_BROKERS} brokers and their instances")
    with started(directory, brokers=_BROKERS, as_in_production=options.judged) as servers:
        TopicAdmin(servers.broker.address).create(READ, options.partitions, replication=_BROKERS)
        commands = Commands(directory, options, on_progress)
        with closing(connect(servers.zookeeper)) as store:
            world = Rolling(servers, store)
            world.await_rest(with_instances=True)
            for number in range(options.rounds):
                for procedure in options.procedures:
                    on_progress(f"round {number + 1}: {procedure}")
                    for client, found in _measured(world, procedure, number, commands, options):
                        library = client.place.library
                        measured.append((procedure, library, found, client.closed))
                        rows.append({"procedure": str(procedure), "library": library} | _row(found, client.closed))
    return BenchReport.of("rolling", setup, options, [Table("clients", rows)], bars(measured))


def _row(found: Figures, closed: int) -> dict[str, object]:
    row = {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(found).items()}
    return row | {"closed_connections": closed}


def bars(measured: Sequence[tuple[Procedure, str, Figures, int]]) -> list[Bar]:
    """Judges the procedure for instances by the brokers' own."""
    own = [one for one in measured if one[0] is Procedure.TOGETHER]
    kafka = [one for one in measured if one[0] is Procedure.BROKERS]
    if not own or not kafka:
        return []
    most = max(one[2].longest_pause_s for one in kafka) + _PAUSE_BEYOND_S
    made = [
        Bar.at_most("longest pause", round(most, 2), max(one[2].longest_pause_s for one in own), " s"),
        Bar.at_most("failed commit calls", 0, sum(one[2].failed_commits for one in own)),
        Bar.at_most("rebalances", 0, sum(one[2].rebalances for one in own)),
    ]
    for library in dict.fromkeys(one[1] for one in own):
        mine, theirs = (_warnings_each([one for one in each if one[1] == library]) for each in (own, kafka))
        made.append(Bar.at_most(f"warnings per closed connection, {library}", round(theirs, 2), round(mine, 2)))
    return made


def _warnings_each(measured: Sequence[tuple[Procedure, str, Figures, int]]) -> float:
    return sum(one[2].warnings for one in measured) / max(1, sum(one[3] for one in measured))


class Commands:
    """Prepares the libraries, and starts their clients."""

    def __init__(self, directory: Path, options: RollingOptions, on_progress: OnProgress) -> None:
        self._directory, self._static, libraries = directory, options.static, options.libraries
        self._packages: Mapping[str, Path] = {
            library: fetched_client(_FETCHED[library], on_progress) for library in libraries if library in _FETCHED
        }
        self._class_path = java_client(directory / "java") if JAVA in libraries else ""

    def start(self, library: str, bootstrap: str, group: str) -> RollingClient:
        place = ClientPlace(library, bootstrap, group, READ, str(self._directory / f"{group}.journal"), self._static)
        command = java_command(self._class_path, place) if library == JAVA else ()
        log = self._directory / f"{group}.log"
        argument = json.dumps(asdict(place))
        packages = self._packages.get(library)
        return RollingClient(place, Child("rolling.client", argument, log, command=command, packages=packages))


def _measured(
    world: Rolling, procedure: Procedure, number: int, commands: Commands, options: RollingOptions
) -> Iterator[tuple[RollingClient, Figures]]:
    servers = world.servers
    with_instances = procedure is not Procedure.BROKERS
    world.await_rest(with_instances=with_instances, everyone_leads=True)
    time.sleep(_BEFORE_S)  # until every broker knows the leaders: aiokafka asks old ones for first offsets for ever
    cluster = servers.cluster
    bootstrap = cluster.instance_servers if with_instances else cluster.bootstrap_servers
    with ExitStack() as running:
        running.enter_context(feeding(cluster.bootstrap_servers, READ, options.partitions))
        clients: list[RollingClient] = []
        for library in options.libraries:
            broker_id = cluster.brokers[len(clients) % _BROKERS].broker_id
            topic = TOPIC if with_instances else OFFSETS
            group = world.group(f"{procedure}-{library}-{number}", broker_id, topic)
            clients.append(commands.start(library, bootstrap, group))
            running.callback(clients[-1].child.close)
        awaited(
            lambda: all(one.reads(options.partitions) for one in clients),
            _WITHIN_S,
            "every client to read",
            every_s=0.3,
        )
        time.sleep(_BEFORE_S)
        if procedure is Procedure.TAKE_OVER:
            world.move([one.place.group for one in clients], GroupKind.NATIVE)
            time.sleep(options.rest_s)
        began = time.monotonic()
        if procedure in _BECOMES:
            world.move([one.place.group for one in clients], _BECOMES[procedure])
            time.sleep(options.rest_s)
        for broker in cluster.brokers if procedure not in _BECOMES else ():
            port = broker.instance_port if with_instances else broker.port
            for one in clients:
                one.count_connections(port)
            world.restart(broker, procedure)
            world.await_rest(with_instances=with_instances)
            time.sleep(options.rest_s)
        ended = time.monotonic()
    yield from ((one, figures(one.notes(), began, ended)) for one in clients)


class Rolling:
    """The servers, and how to restart them."""

    def __init__(self, servers: Servers, store: Store) -> None:
        self.servers, self._store = servers, store
        self._admin = AdminClient({"bootstrap.servers": servers.cluster.bootstrap_servers, "log_level": 0})

    def group(self, prefix: str, broker_id: int, topic: str) -> str:
        """Returns a group's name that begins with ``prefix``, and whose partition of ``topic`` broker ``broker_id``
        leads at first, so that the same restarts move the group with every procedure."""
        with RawClient(self.servers.broker.address) as client:  # makes Kafka create its topic
            client.ask("FindCoordinator", 1, message("FindCoordinatorRequest")(key=prefix, key_type=0))

        def preferred() -> dict[int, int]:
            topics = self._admin.list_topics(timeout=10).topics
            found = topics[topic].partitions if topic in topics else {}
            return {number: one.replicas[0] for number, one in found.items()}

        leads = awaited(preferred, _WITHIN_S, topic)
        names = (f"{prefix}-{number}" for number in itertools.count())
        return next(name for name in names if leads[partition_of(name)] == broker_id)

    def restart(self, broker: Broker, procedure: Procedure) -> None:
        instance = self.servers.instances[broker.broker_id].process
        if procedure is not Procedure.ALONE:
            broker.stop()  # moves the leadership to the others first
        if procedure is not Procedure.BROKERS:
            instance.stop()
        if procedure is not Procedure.ALONE:
            broker.launch()
        if procedure is not Procedure.BROKERS:
            instance.start()
        broker.wait_ready(_WITHIN_S)

    def move(self, groups: Iterable[str], to: GroupKind) -> None:
        """Raises :class:`RequestRefused`."""
        for group in groups:
            asked = Request(RequestType.CONVERT_GROUP, group=group, to=to, reason="a benchmark", by="bench")
            ask(self._store, asked, _WITHIN_S, lambda _: None)

    def await_rest(self, *, with_instances: bool, everyone_leads: bool = False) -> None:
        """Waits until all replicas are in sync, and all instances are ready and have heard their clients. With
        ``everyone_leads``, also lets each partition's preferred broker lead it."""
        awaited(
            lambda: self._is_in_sync(elects=everyone_leads) and (not with_instances or self._is_served()),
            _WITHIN_S,
            "replicas and instances",
            every_s=0.25,
        )

    def _is_in_sync(self, *, elects: bool) -> bool:
        try:
            if elects:
                with suppress(KafkaException):
                    self._admin.elect_leaders(ElectionType.PREFERRED).result(30)
            found = self._admin.list_topics(timeout=10)
        except KafkaException:
            return False
        partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
        led = not elects or all(one.leader == one.replicas[0] for one in partitions)
        made = len(found.topics[TOPIC].partitions) == PARTITIONS if TOPIC in found.topics else False
        return led and made and all(len(one.isrs) == len(one.replicas) for one in partitions)

    def _is_served(self) -> bool:
        found = read_cluster(self._store).instances
        return len(found) == len(self.servers.instances) and all(
            one.ready and not one.waiting_for for one in found.values()
        )
