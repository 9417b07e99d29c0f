"""Runs the demo: cluster, records, scenario, verification, report."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.coordinator import serve_command
from kafka_coord.dev.cluster.flights import airline_names, read_flights
from kafka_coord.dev.cluster.kafka import Broker, KafkaSettings
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.demo.countdown import Part, Took
from kafka_coord.dev.demo.expected import count_input
from kafka_coord.dev.demo.journal import now_ms
from kafka_coord.dev.demo.options import ChannelChoice, Clients, DemoOptions
from kafka_coord.dev.demo.report import RunReport, render
from kafka_coord.dev.demo.scenario import Scenario
from kafka_coord.dev.demo.stock.scenario import StockScenario
from kafka_coord.dev.demo.stock.watching import StockWatcher
from kafka_coord.dev.demo.timeline import EventKind, Timeline, assemble, consumed_between, with_seen_changes
from kafka_coord.dev.demo.verification import Evidence, Verification, verify
from kafka_coord.dev.demo.view import PlainView, Step
from kafka_coord.dev.demo.watching import Watcher
from kafka_coord.dev.demo.workforce import Workforce
from kafka_coord.errors import VerificationFailed
from kafka_coord.kafka.librdkafka import produce
from kafka_coord.model import Decision, TopicPartition
from kafka_coord.zk import connect

if TYPE_CHECKING:
    from kafka_coord.dev.demo.sharing import Shared

_CLI_TIMEOUT_S = 180.0
"""A command takes a second, but on a machine that is busy with everything else it has taken more than a minute."""
_POLL_S = 0.5
_CHANNEL_WORDS = {
    ChannelChoice.ZOOKEEPER: "",
    ChannelChoice.SOCKET: ", without ZooKeeper, over a socket to the coordinator",
    ChannelChoice.MIXED: ", every other one without ZooKeeper, over a socket to the coordinator",
}


_CLIENT_WORDS = {
    Clients.KAFKA: ", a stock Kafka client (confluent-kafka)",
    Clients.MIXED: ": stock Kafka clients (confluent-kafka) on both group protocols, a Spark query, and this project's",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: the verdict, the timeline, the path of the page, and the duration of each part."""

    verification: Verification
    timeline: Timeline
    report: Path
    took: tuple[Took, ...] = ()


def run_demo(options: DemoOptions, directory: Path, report: Path, view: PlainView, *, keep: bool = False) -> Outcome:
    """Runs the demo in ``directory`` and writes the page ``report``. With ``keep``, the cluster keeps running. The
    outcome contains the verdict; if the demo fails before there is one, raises
    :class:`~kafka_coord.errors.KafkaCoordError`.
    """

    over_sockets = options.channel is not ChannelChoice.ZOOKEEPER
    channels = {n: f"{LOOPBACK}:{free_port()}" for n in range(1, options.brokers + 1)} if over_sockets else {}

    def serve(broker: Broker) -> Sequence[str]:
        listening = ["--listen-channel", channels[broker.broker_id]] if channels else []
        timeouts = ["--session-timeout-ms", str(options.session_timeout_ms)]
        if options.clients is Clients.MIXED:
            timeouts += ["--kafka-consumer-session-timeout-ms", str(options.stock_session_ms)]
            timeouts += ["--managed-groups", options.group]  # a classic client may be the first to join
        return [*serve_command(broker), *timeouts, *listening]

    with view.step(f"Starting {options.servers}, a coordinator beside each", Part.START) as up:
        cluster = DevCluster(
            directory / "cluster",
            brokers=options.brokers,
            coordinators=True,
            coordinator_command=serve,
            kafka_settings=KafkaSettings(
                kraft=options.kraft,
                replication=min(options.brokers, 3),
                for_instances=options.clients is not Clients.OWN,
            ),
            on_progress=up.progress,
        )
        cluster.up()
        up.outcome = f"ZooKeeper at {cluster.zookeeper}, brokers at {cluster.bootstrap_servers}"
    stays = False
    try:
        outcome = _with_cluster(options, cluster, ",".join(channels.values()), directory, report, view)
        stays = keep
    finally:
        if stays:
            cluster.detach()
        else:
            with view.step("Stopping everything", Part.STOP):
                cluster.down()
    return replace(outcome, took=view.countdown.took)


def _with_cluster(
    options: DemoOptions, cluster: DevCluster, channels: str, directory: Path, report: Path, view: PlainView
) -> Outcome:
    with contextlib.ExitStack() as ending:
        store = ending.enter_context(contextlib.closing(connect(cluster.zookeeper)))
        sharing: Future[Shared] | None = None
        if options.spark:
            from kafka_coord.dev.demo.sharing import Sharing  # needs the extra "spark"

            second = Sharing(options, cluster, store, directory / "spark", view)
            sharing = ending.enter_context(second.alongside())
        _load(options, cluster, view)
        watching = StockWatcher if options.clients is Clients.KAFKA else Watcher
        servers = cluster.bootstrap_servers
        watcher = ending.enter_context(watching(store, servers, options.group, options.topic, view.update))
        bootstrap = cluster.instance_servers or channels
        workforce = ending.enter_context(Workforce(directory / "consumers", cluster.zookeeper, bootstrap, options))

        def check() -> None:
            workforce.check()
            if sharing is not None and sharing.done():
                sharing.result()  # raises the error if the second group's scenario failed

        if isinstance(watcher, StockWatcher):
            scenario: Scenario = StockScenario(options, cluster, watcher, workforce, view)
        else:
            scenario = Scenario(options, cluster, watcher, workforce, view, check)
        doing = f"Playing the scenario with {options.consumers} consumers"
        with view.step(doing, Part.PLAY, ticks=False) as playing:
            with view.playing():
                scenario.play()
            playing.outcome = f"{len(scenario.events)} events"
        with view.step("Verifying", Part.VERIFY) as verifying:
            ends, committed = _as_an_operator_reads(cluster.zookeeper, options.group)
            decisions = watcher.history()
            workforce.dismiss(*workforce.working)
            journals = [with_seen_changes(journal, watcher.samples) for journal in workforce.journals()]
            evidence = Evidence(
                ends, committed, options.total, journals, scenario.killings, count_input(options.records, options.again)
            )
            verification = verify(evidence)
            verifying.outcome = "verified" if verification.passed else "NOT verified"
        shared = None
        if sharing is not None:
            shared = _shared(sharing, view)
            verification = replace(verification, checks=(*verification.checks, *shared.checks))
        timeline = _timeline(evidence, scenario, watcher, decisions)
        report.parent.mkdir(parents=True, exist_ok=True)
        run_report = _run_report(options, timeline, evidence, verification, scenario, view, shared)
        report.write_text(render(run_report), encoding="utf-8")
    return Outcome(verification, timeline, report)


def _shared(sharing: Future[Shared], view: PlainView) -> Shared:
    """Waits for the second group, and returns its result."""
    with view.step("Waiting for the group of Spark queries and a plain consumer", Part.SPARK) as step:
        while not sharing.done():
            step.progress(view.aside)
            wait([sharing], timeout=_POLL_S)
        shared = sharing.result()
        step.outcome = f"{shared.report.summary.flights:,} flights in the table"
    return shared


def _load(options: DemoOptions, cluster: DevCluster, view: PlainView) -> None:
    topic = f"{options.topic} ({options.partitions} partitions)"
    with view.step(f"Writing {options.records:,} flights to the topic {topic}", Part.LOAD) as loading:
        admin = TopicAdmin(cluster.bootstrap_servers)
        admin.create(options.topic, options.partitions, replication=min(options.brokers, 2))
        produce(
            cluster.bootstrap_servers,
            options.topic,
            read_flights(options.records),
            on_count=lambda count: _loaded(count, options, loading, view),
        )


def _loaded(count: int, options: DemoOptions, loading: Step, view: PlainView) -> None:
    loading.progress(f"{count:,} of {options.records:,} written")
    view.countdown.reached(count / options.records)


def _as_an_operator_reads(zookeeper: str, group: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Reads the end offsets and committed offsets with ``kafka-coord groups describe GROUP --offsets -o json``."""
    command = [sys.executable, "-m", "kafka_coord.cli.main", "groups", "describe", group, "--offsets", "-o", "json"]
    try:
        answer = subprocess.run(
            [*command, "--zookeeper", zookeeper], capture_output=True, text=True, timeout=_CLI_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        raise VerificationFailed(
            f"{' '.join(command[2:])} exited with code {error.returncode}: {error.stderr}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise VerificationFailed(
            f"{' '.join(command[2:])} has not ended within {error.timeout:g} s: the machine is too busy, or a server"
            " does not answer; run the demo again when less else is running"
        ) from error
    rows = json.loads(answer.stdout)["offsets"]
    ends = {TopicPartition(row["topic"], row["partition"]): row["end_offset"] for row in rows}
    unknown = sorted(tp for tp, end in ends.items() if end is None)
    if unknown:
        raise VerificationFailed(f"no end offsets for {', '.join(map(str, unknown))}: {answer.stderr}")
    committed = {
        TopicPartition(row["topic"], row["partition"]): row["committed_offset"]
        for row in rows
        if row["committed_offset"] is not None
    }
    return ends, committed


def _timeline(evidence: Evidence, scenario: Scenario, watcher: Watcher, decisions: Sequence[Decision]) -> Timeline:
    finished_ms = max(event.at_ms for event in scenario.events)
    return assemble(
        evidence.journals,
        evidence.killings,
        scenario.events,
        (sample for sample in watcher.samples if sample.at_ms <= finished_ms),
        decisions,
        watcher.reigns(scenario.coordinator_killed, min(finished_ms, now_ms())),
    )


def _run_report(
    options: DemoOptions,
    timeline: Timeline,
    evidence: Evidence,
    verification: Verification,
    scenario: Scenario,
    view: PlainView,
    shared: Shared | None,
) -> RunReport:
    elected_ms = next((event.at_ms for event in scenario.events if event.kind is EventKind.COORDINATOR_ELECTED), None)
    killed_ms = min(scenario.coordinator_killed.values(), default=None)
    took_ms = consumed = None
    if elected_ms is not None and killed_ms is not None:
        took_ms, consumed = elected_ms - killed_ms, consumed_between(evidence.journals, killed_ms, elected_ms)
    return RunReport(
        group=options.group,
        timeline=timeline,
        verification=verification,
        expected=evidence.expected,
        airline_names=airline_names(),
        records=options.total,
        setting=_setting(options),
        stock=options.clients is Clients.KAFKA,
        steps=tuple(view.steps),
        failover_ms=took_ms,
        failover_records=consumed,
        shared=shared,
    )


def _setting(options: DemoOptions) -> str:
    stock = options.clients is Clients.KAFKA
    sessions = sorted({options.session_ms(options.kind(number + 1)) / 1000 for number in range(options.consumers)})
    consumers = _CLIENT_WORDS.get(options.clients, _CHANNEL_WORDS[options.channel])
    again = (
        "The killed coordinator restarts once its session has ended"
        if stock
        else "A dead coordinator is noticed when its session ends"
    )
    return (
        f"Real servers on one machine: {options.servers}, with a coordinator process beside each. Every consumer is a "
        f"process of its own{consumers}. {again}, after {options.session_timeout_ms / 1000:g} seconds; a dead consumer "
        f"is noticed after {' or '.join(f'{seconds:g}' for seconds in sessions)}."
    )
