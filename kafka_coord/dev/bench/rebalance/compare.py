"""Compares the same events in this project's groups and in Kafka's own groups, while all members fetch."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from confluent_kafka import libversion

from kafka_coord.dev.bench.feeding import Feeding
from kafka_coord.dev.bench.kafka_groups.servers import started
from kafka_coord.dev.bench.rebalance.contenders import (
    DEFAULTS,
    EACH_SECOND,
    FASTEST,
    JAVA,
    LIBRARIES,
    MANAGED,
    OURS,
    PEERS,
    Contender,
    Protocol,
    Server,
    contenders,
)
from kafka_coord.dev.bench.rebalance.figures import Cost, Event, Owners, balanced, summary
from kafka_coord.dev.bench.rebalance.java_members import JavaMembers, java_members
from kafka_coord.dev.bench.rebalance.journal import Journals, Line
from kafka_coord.dev.bench.rebalance.newer_client import NEWER_CLIENT, fetched_client, newer_client
from kafka_coord.dev.bench.rebalance.peer import PeerPlace
from kafka_coord.dev.bench.rebalance.testbed import Crew, MeasuredGroup
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Drawing, Setup, Table
from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.jars import KAFKA_4, KAFKA_4_VERSION, KAFKA_VERSION, class_path
from kafka_coord.dev.cluster.kafka import KafkaSettings, KraftBroker
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import DevClusterError, Timeout
from kafka_coord.spark.session import find_java
from kafka_coord.zk import connect, layout

_TOPIC = "flights"
_WITHIN_S = 180.0
_POLL_S = 0.02
_STILL_S = {DEFAULTS: 3.0, EACH_SECOND: 2.0, FASTEST: 1.0}
"""An event ends after this many seconds without activity."""

_WARM_UPS = 3
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class CompareOptions(BenchOptions):
    """``members`` members stay, in at most ten processes, and another joins and leaves ``repeat`` times. Cold starts
    and kills of a member happen only ``rarely`` times. Together, the members fetch ``records_per_s`` records a second,
    spread over all partitions. ``variants`` names the settings to run the other clients with.
    """

    members: int = 10
    partitions: int = 900
    repeat: int = 5
    rarely: int = 1
    records_per_s: int = 200
    against: tuple[Protocol, ...] = PEERS
    variants: tuple[str, ...] = (DEFAULTS, EACH_SECOND, FASTEST)


SMOKE = CompareOptions(
    members=2, partitions=12, repeat=1, rarely=0, records_per_s=50, variants=(FASTEST,), judged=False
)


@dataclass(frozen=True, slots=True)
class Found:
    contender: Contender
    costs: Mapping[Event, Sequence[Cost]]


def run_compare(options: CompareOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    versions = {
        "kafka": KAFKA_VERSION,
        "kafka of kip848": KAFKA_4_VERSION,
        "librdkafka": libversion()[0],
        "confluent-kafka of kip848": NEWER_CLIENT,
    }
    setup = Setup.here(java=find_java().version, **versions)
    found: list[Found] = []
    notes: list[str] = []
    chosen = contenders(options.against, options.variants)
    members: JavaMembers | None = None
    if any(one.protocol in JAVA for one in chosen):
        try:
            members = java_members(directory / "java", on_progress)
        except DevClusterError as error:
            notes.append(f"not compared with Kafka's own client: {error}")
            on_progress(notes[-1])
            chosen = [one for one in chosen if one.protocol not in JAVA]
    for (server, broker), group in itertools.groupby(chosen, key=attrgetter("needs")):
        try:
            with _brokers(directory, server, dict(broker), on_progress) as place:
                for contender in group:
                    java = members if contender.protocol in JAVA else None
                    library = LIBRARIES.get(contender.protocol)
                    packages = fetched_client(library, on_progress) if library else place.packages
                    its = replace(place, java=java, packages=packages)
                    found.append(_measured(contender, its, options, directory, on_progress))
        except DevClusterError as error:
            if server is Server.ZOOKEEPER:
                raise
            notes.append(f"not compared with clients of {server}: {error}")
            on_progress(notes[-1])
    further = {"systems": systems(found), "ratios": ratios(found)}
    return BenchReport.of("compare", setup, options, tables(found), bars(found), notes, further)


# --- the testbed -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Brokers:
    """The servers of one contender. Members use the addresses in ``bootstrap``, all other clients those in ``broker``.
    ``packages`` is passed to :class:`Crew`. ``java`` is set if the members are to run on Kafka's Java client."""

    bootstrap: str
    broker: str
    zookeeper: str
    packages: Path | None = None
    java: JavaMembers | None = None


@contextmanager
def _brokers(
    directory: Path, server: Server, properties: Mapping[str, str], on_progress: OnProgress
) -> Iterator[Brokers]:
    """Starts one broker and warms up its group coordinator, because the first group would otherwise have to wait for
    the offsets topic."""
    where = directory / f"cluster-{next(_numbers)}"
    if server is Server.INSTANCE:
        packages = newer_client(on_progress)
        on_progress(f"starting {server}")
        with started(where) as servers:
            place = Brokers(servers.instance.address, servers.broker.address, servers.zookeeper, packages)
            _warm_up(place, directory, on_progress)
            yield place
    elif server is Server.KRAFT:
        class_path(KAFKA_4, on_progress)
        broker = KraftBroker(where, 1, settings=KafkaSettings(properties=properties, heap_mb=512))
        packages = newer_client(on_progress)
        on_progress(f"starting Kafka {KAFKA_4_VERSION}")
        with broker:
            place = Brokers(broker.address, broker.address, "", packages)
            _warm_up(place, directory, on_progress)
            yield place
    else:
        settings = KafkaSettings(properties=properties, heap_mb=512)
        with DevCluster(
            where, brokers=1, coordinators=True, kafka_settings=settings, on_progress=on_progress
        ) as cluster:
            place = Brokers(cluster.bootstrap_servers, cluster.bootstrap_servers, cluster.zookeeper)
            _warm_up(place, directory, on_progress)
            yield place


def _warm_up(place: Brokers, directory: Path, on_progress: OnProgress) -> None:
    """Runs a group with a topic of its own until its only member owns the topic."""
    on_progress("warming up the broker's group coordinator")
    options = CompareOptions(members=1, partitions=1, repeat=0, rarely=1, records_per_s=0)
    contender = Contender(Protocol.CLASSIC, FASTEST)
    with fetching_group(contender, place, options, directory) as group:
        group.happen(Event.COLD)


def _measured(
    contender: Contender, place: Brokers, options: CompareOptions, directory: Path, on_progress: OnProgress
) -> Found:
    with fetching_group(contender, place, options, directory) as group:
        if contender.protocol in JAVA and options.repeat:
            _warm_up_members(group)
        for event, times in ((Event.COLD, max(1, options.rarely)), (Event.JOIN, options.repeat)):
            for number in range(times):
                # The events are spread evenly between the members' heartbeats, in the same way for all contenders.
                later_s = _STILL_S[contender.variant] * number / times
                time.sleep(later_s)
                group.happen(event)
                if event is Event.JOIN:
                    time.sleep(later_s)
                    group.happen(Event.LEAVE)
            on_progress(_told(contender, event, group.costs[event]))
        on_progress(_told(contender, Event.LEAVE, group.costs[Event.LEAVE]))
        for _ in range(options.rarely):
            group.happen(Event.KILL)
            on_progress(_told(contender, Event.KILL, group.costs[Event.KILL]))
    return Found(contender, group.costs)


def _warm_up_members(group: FetchingGroup) -> None:
    """Lets the members' JVMs load and compile their code."""
    for event in (Event.COLD, *(Event.JOIN, Event.LEAVE) * _WARM_UPS):
        group.happen(event)
    for costs in group.costs.values():
        costs.clear()


class FetchingGroup(MeasuredGroup):
    """The members of one contender."""

    def __init__(
        self, contender: Contender, place: Brokers, topic: str, options: CompareOptions, directory: Path
    ) -> None:
        self._contender, self._options, self._directory = contender, options, directory
        number = next(_numbers)
        journals = directory / f"journals-{number}"
        journals.mkdir(parents=True)
        self._journals = Journals(journals)
        self._place = PeerPlace(
            protocol=contender.protocol,
            bootstrap=place.bootstrap,
            zookeeper=place.zookeeper,
            group=f"bench-{number}",
            topic=topic,
            settings=dict(contender.client),
            journal=str(journals),
        )
        self._packages = place.packages
        self._java = place.java
        if contender.protocol in MANAGED:
            with contextlib.closing(connect(place.zookeeper)) as store:
                store.ensure_path(layout.group(self._place.group))
        self.settled_ns = 0
        """When the group last settled (ns, monotonic)."""
        super().__init__(self._crew, options.members)

    def _crew(self, name: str, consumers: Sequence[str]) -> Crew:
        place = replace(self._place, journal=f"{self._place.journal}/{name}.journal")
        log = self._directory / f"{self._place.group}-{name}.log"
        return Crew(name, place, consumers, log, self._packages, self._java.command(place) if self._java else ())

    def _await_settled(
        self, event: Event, members: int, at_ns: int, killed: str, answered_ns: int
    ) -> tuple[Cost, Owners]:
        """Waits until all partitions are fetched again, evenly spread over the members, and activity has ceased."""
        lines: list[Line] = []
        still_s = _STILL_S[self._contender.variant]
        deadline = time.monotonic() + _WITHIN_S
        heard = time.monotonic()
        while True:
            new = self._journals.new_lines()
            now = time.monotonic()
            if new or not lines:
                lines = sorted([*lines, *new], key=lambda line: line.at_ns)
                heard = now
                found, owners = self._cost(event, lines, at_ns, killed, answered_ns)
            if lines and now - heard >= still_s and balanced(owners, members, self._options.partitions):
                self.settled_ns = lines[-1].at_ns
                return found, owners
            if now > deadline:
                raise Timeout(
                    f"{self._contender.name}: after {event} the group had not settled with {members} members within "
                    f"{_WITHIN_S:.0f} s; logs are in {self._directory}"
                )
            time.sleep(_POLL_S)


@contextmanager
def fetching_group(
    contender: Contender, place: Brokers, options: CompareOptions, directory: Path
) -> Iterator[FetchingGroup]:
    """Creates a topic and a group, and writes to the topic while the block runs."""
    topic = f"{_TOPIC}-{next(_numbers)}"
    TopicAdmin(place.broker).create(topic, options.partitions)
    group = FetchingGroup(contender, place, topic, options, directory)
    with contextlib.ExitStack() as running:
        running.enter_context(contextlib.closing(group))
        if options.records_per_s:
            burst = max(1, options.records_per_s // 10)
            running.enter_context(Feeding(place.broker, topic, burst, 0.1, [b"a record"]))
        yield group


# --- results ---------------------------------------------------------------------------------------------------------


def systems(found: Sequence[Found]) -> dict[str, Any]:
    """Returns each contender's settings and its costs by event, in the format of ``bench rebalance``."""
    return {
        one.contender.name: {
            "setup": {name: getattr(one.contender, name) for name in ("protocol", "variant", "client", "broker")},
            "events": {str(event): summary(costs) for event, costs in one.costs.items() if costs},
        }
        for one in found
    }


def ratios(found: Sequence[Found]) -> dict[str, Any]:
    """Returns the ratio of each contender's time to that of this project's consumer, by contender and event."""
    ours = _ours(found)
    return {
        one.contender.name: {
            str(event): _times(costs, ours.costs[event]) for event, costs in one.costs.items() if costs
        }
        for one in found
        if one.contender != OURS
    }


def tables(found: Sequence[Found]) -> list[Table]:
    """Returns one row for each contender and event. ``times`` is the ratio to this project's consumer."""
    ours = _ours(found)
    rows: list[dict[str, Any]] = []
    for event in (Event.JOIN, Event.LEAVE, Event.KILL, Event.COLD):
        for one in found:
            if not one.costs[event]:
                continue
            told, times = summary(one.costs[event]), _times(one.costs[event], ours.costs[event])
            rows.append(
                {
                    "event": str(event),
                    "group": one.contender.name,
                    "n": told["n"],
                    "settle_p50_ms": told["settle_ms"]["p50"],
                    "settle_max_ms": told["settle_ms"]["max"],
                    "times": times["settle"],
                    "partition_seconds": told["partition_seconds"],
                    "times_partition_seconds": times["partition_seconds"],
                    "longest_gap_ms": told["longest_gap_ms"]["max"],
                    "moved": told["moved"],
                    "interrupted_not_moved": told["interrupted_not_moved"],
                }
            )
    drawn = ("settle_p50_ms", "settle_max_ms"), ("partition_seconds", ""), ("longest_gap_ms", "")
    return [Table("compared", rows, [Drawing(("event", "group"), value, most) for value, most in drawn])]


def _ours(found: Sequence[Found]) -> Found:
    return next(one for one in found if one.contender == OURS)


def _compared(costs: Sequence[Cost]) -> dict[str, float]:
    told = summary(costs)
    return {"settle": float(told["settle_ms"]["p50"]), "partition_seconds": float(told["partition_seconds"])}


def _times(theirs: Sequence[Cost], ours: Sequence[Cost]) -> dict[str, float | None]:
    """Returns the ratio of each figure to this project's, or ``None`` if this project's is zero or missing."""
    base = _compared(ours) if ours else {}
    return {name: round(value / base[name], 1) if base.get(name) else None for name, value in _compared(theirs).items()}


_WANTED = {Event.JOIN: 10.0, Event.LEAVE: 10.0}
_WANTED_SECONDS = 10.0
_WANTED_OF_FASTEST_KIP848 = {Event.JOIN: 5.0, Event.LEAVE: 3.0}
_WANTED_SECONDS_OF_FASTEST_KIP848 = 3.0


def bars(found: Sequence[Found]) -> list[Bar]:
    """Returns the targets for a join and a leave: how many times faster this project's group must settle, and how many
    times fewer partition-seconds it may lose."""
    ours = _ours(found)
    judged = []
    for one in found:
        if one.contender == OURS or one.contender.protocol in {*MANAGED, *LIBRARIES}:
            continue
        tuned = one.contender.protocol is Protocol.KIP848 and one.contender.variant == FASTEST
        wanted = _WANTED_OF_FASTEST_KIP848 if tuned else _WANTED
        seconds = _WANTED_SECONDS_OF_FASTEST_KIP848 if tuned else _WANTED_SECONDS
        for event, times in wanted.items():
            pair = one.costs[event], ours.costs[event]
            if all(pair):
                name, measured = f"{one.contender.name}: {event}", _times(*pair)
                judged.append(_bar(f"{name}, settled", times, measured["settle"]))
                judged.append(_bar(f"{name}, partition-seconds", seconds, measured["partition_seconds"]))
    judged += _bars_of_managed(found)
    needless = sum(cost.interrupted_not_moved for every in ours.costs.values() for cost in every)
    judged.append(Bar.at_most("kafka_coord: interrupted without moving", 0, needless))
    return judged


_MANAGED_MS = {
    Protocol.MANAGED: (100, 400),
    Protocol.MANAGED_JAVA: (300, 1_000),
    Protocol.MANAGED_CLASSIC: (150, 1_200),
    Protocol.MANAGED_COOPERATIVE: (200, 1_200),
    Protocol.MANAGED_JAVA_CLASSIC: (150, 1_200),
    Protocol.MANAGED_JAVA_COOPERATIVE: (200, 1_200),
}
"""The limits on the p50 and on the maximum for a join or a leave, in ms."""
_EAGER = (Protocol.MANAGED_CLASSIC, Protocol.MANAGED_JAVA_CLASSIC)
_MANAGED_TIMES = 50


def _bars_of_managed(found: Sequence[Found]) -> Iterator[Bar]:
    """Yields the targets for stock clients in managed groups, absolute and relative to the same clients in Kafka's own
    groups."""
    by_name = {one.contender.name: one.costs for one in found}
    for protocol, (p50_ms, max_ms) in _MANAGED_MS.items():
        costs = by_name.get(f"{protocol}, {DEFAULTS}", {})
        for event in (Event.JOIN, Event.LEAVE):
            if costs.get(event):
                told = summary(costs[event])["settle_ms"]
                for part, most in (("p50", p50_ms), ("max", max_ms)):
                    yield Bar.at_most(f"{protocol}: {event}, {part}", most, told[part], " ms")
        needless = sum(cost.interrupted_not_moved for every in costs.values() for cost in every)
        if costs and protocol not in _EAGER:  # to give up one partition, an eager client stops all its partitions
            yield Bar.at_most(f"{protocol}: interrupted without moving", 0, needless)
    costs = by_name.get(f"{Protocol.MANAGED}, {DEFAULTS}", {})
    theirs = by_name.get(f"{Protocol.KIP848}, {DEFAULTS}", {})
    if costs.get(Event.JOIN) and theirs.get(Event.JOIN):
        times = _times(theirs[Event.JOIN], costs[Event.JOIN])["settle"]
        yield _bar(
            f"{Protocol.KIP848}, {DEFAULTS}: {Event.JOIN}, compared with {Protocol.MANAGED}", _MANAGED_TIMES, times
        )


def _bar(name: str, wanted: float, found: float | None) -> Bar:
    told = "not measured" if found is None else f"{found:g} times"
    return Bar(name, f"at least {wanted:g} times ours", told, None if found is None else found >= wanted)


def _told(contender: Contender, event: Event, costs: Sequence[Cost]) -> str:
    if not costs:
        return f"{contender.name}: {event}: not tried"
    told = summary(costs)
    return (
        f"{contender.name}: {event}, {len(costs)} times: settled after {told['settle_ms']['p50']:,} ms, "
        f"{told['partition_seconds']} partition-seconds, {told['interrupted_not_moved']} interrupted needlessly"
    )
